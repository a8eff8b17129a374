"""``relay status``: options and output; ``relay.operations.status`` does the work."""

import json
import time
from typing import Annotated

import typer

from relay.commands.options import ConfigArgument, JsonOption, SetOption, load_config
from relay.errors import ConfigError, Unavailable

_WATCHED_EVERY = 2.0  # seconds


_HELP = {
    "watch": "Refresh every 2 seconds, until Ctrl-C; with --json print a line each time.",
    "token": "Print only the position of this source, as a token for relay.dynamodb.Stream and `start`.",
    "mirrored": "Print only the time for `start` at which this source loses nothing, by the changes on topics that a "
    "mirror has brought from another cluster.",
    "whole_until": "With --mirrored: the mirror certainly has everything that was published until this ISO time.",
}


def status(
    config: ConfigArgument,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help=_HELP["watch"])] = False,
    every: Annotated[bool, typer.Option("--all", help="Also show finished shards.")] = False,
    token: Annotated[str | None, typer.Option("--token", metavar="SOURCE", help=_HELP["token"])] = None,
    mirrored: Annotated[str | None, typer.Option("--mirrored", metavar="SOURCE", help=_HELP["mirrored"])] = None,
    whole_until: Annotated[str | None, typer.Option("--whole-until", metavar="TIME", help=_HELP["whole_until"])] = None,
    settings: SetOption = None,
) -> None:
    """Show the committed progress of the relay: shards, owners, positions, lag, snapshots, gaps, dead letters.

    It also works while no worker is running.
    """
    if watch and (token, mirrored) != (None, None):
        raise ConfigError("--watch: it shows the status, not a token: omit --watch, or --token and --mirrored")
    if mirrored is not None and (token is not None or as_json):
        raise ConfigError("--mirrored: it prints a time: omit --token and --json")
    if whole_until is not None and mirrored is None:
        raise ConfigError("--whole-until: it is about a mirror: add --mirrored SOURCE")
    loaded = load_config(config, settings, every_table=False)
    if mirrored is not None:
        from relay.operations.mirrored import start_of_mirror

        typer.echo(start_of_mirror(loaded, mirrored, whole_until))
        return
    from relay.operations import status as statuses

    if token is not None:
        typer.echo(json.dumps(statuses.stream_token(loaded, token), indent=2))
        return

    while True:
        try:
            found = statuses.status(loaded)
        except Unavailable as error:
            if not watch:
                raise
            typer.echo(f"relay: error: {error}", err=True)  # people watch a broker restart
        else:
            if as_json:
                print(json.dumps(found.to_json(), ensure_ascii=False), flush=True)
            else:
                from relay.commands.status_text import show

                show(found, every=every, again=watch)
        if not watch:
            return
        time.sleep(_WATCHED_EVERY)
