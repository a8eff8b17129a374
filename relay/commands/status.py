"""``relay status``: options and output; ``relay.operations.status`` does the work."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from relay.commands.options import ConfigArgument, JsonOption, SetOption, load_config


def status(
    config: ConfigArgument,
    as_json: JsonOption = False,
    every: Annotated[bool, typer.Option("--all", help="Also show finished shards.")] = False,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="SOURCE",
            help="Print only the position of this source, as a token for relay.dynamodb.Stream and `start`.",
            show_default=False,
        ),
    ] = None,
    settings: SetOption = None,
) -> None:
    """Show the committed progress of the relay: shards, owners, positions, lag, snapshots, gaps, dead letters.

    It also works while no worker is running.
    """
    loaded = load_config(config, settings, every_table=False)
    from relay.operations import status as statuses

    if token is not None:
        typer.echo(json.dumps(statuses.stream_token(loaded, token), indent=2))
        return
    found = statuses.status(loaded)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return
    from relay.commands.status_text import show

    show(found, every=every)
