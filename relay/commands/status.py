"""``relay status``: options and output; what is found out is in ``relay.operations.status``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from relay.commands.options import AsJson, ConfigFile, load_config


def status(
    config: ConfigFile,
    as_json: AsJson = False,
    every: Annotated[bool, typer.Option("--all", help="Show finished shards, too.")] = False,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="SOURCE",
            help="Print instead where this source stands, as a token for relay.dynamodb.Stream and `start`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show how far the relay is: shards, who reads them, positions, lag, snapshots, gaps, dead letters.

    Works while nothing runs, too. What is shown is what is committed.
    """
    loaded = load_config(config, every_table=False)
    from relay.operations import status as statuses

    if token is not None:
        typer.echo(json.dumps(statuses.token(loaded, token), indent=2))
        return
    found = statuses.status(loaded)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return
    from relay.commands.status_text import show

    show(found, every=every)
