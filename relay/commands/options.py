"""What several commands share: arguments and options, how a config is read, where the log goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relay.errors import RelayError

if TYPE_CHECKING:
    from relay.config import Config


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The YAML file that says what to relay, and where to.")
]
UntilCaughtUp = Annotated[
    bool,
    typer.Option("--until-caught-up", help="Stop, with exit code 0, once all there was at the start is done."),
]
LogAs = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", envvar="RELAY_LOG_FORMAT", help="How the log on stderr is written: JSON is one object a line."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def load_config(path: Path, *, every_table: bool = True) -> Config:
    """Read the config, and find the tables of sources that do not name them.

    ``every_table``: False where the topics of all tables are not needed: then a database is not asked for its tables.
    Tags are looked up all the same, since each table that has them is a source of its own.
    """
    from relay.config import load

    config = load(path)
    if config.names_tables:
        return config
    from relay.engine.open_source import find_tables

    return config.with_tables(find_tables, only_split=not every_table)


@contextmanager
def logging_to_stderr(log_format: LogFormat) -> Iterator[None]:
    """Log to stderr. In JSON, an error that ends the command is a line of the log as well."""
    import logging

    from relay.observe.logs import JsonFormatter, TextFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    log = logging.getLogger("relay")
    log.setLevel(logging.INFO)
    try:
        yield
    except Exception as error:
        if log_format is LogFormat.TEXT:
            raise
        if isinstance(error, RelayError):
            log.error("%s", error)
            raise typer.Exit(error.exit_code) from error
        log.critical("the relay has failed: %s", error, exc_info=True)
        raise typer.Exit(RelayError.exit_code) from error
