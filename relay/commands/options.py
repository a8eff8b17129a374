"""What several commands share: arguments and options, how a config is read, where the log goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from relay.config import Config

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The YAML file that says what to relay, and where to.")
]
UntilCaughtUp = Annotated[
    bool,
    typer.Option("--until-caught-up", help="Stop, with exit code 0, once all there was at the start is done."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def load_config(path: Path) -> Config:
    """Read the config, and find the tables that its tags mean."""
    from relay.config import load

    config = load(path)
    if not any(source.tags for source in config.sources):
        return config  # spares boto3 to commands that do not need it
    from relay.dynamodb.discover import tagged

    return config.with_tables(tagged)


def log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("relay").setLevel(logging.INFO)
