"""``relay snapshot``: options and output; ``relay.operations.snapshot`` does the work."""

import json
from typing import Annotated

import typer

from relay.commands.options import ConfigArgument, JsonOption, SetOption, load_config
from relay.errors import ConfigError, with_file

_HELP = {
    "tables": "Tables of the source. Default: all of them.",
    "stop": "Stop the snapshot where it is, and withdraw waiting requests. The same command without --stop resumes it.",
}


def snapshot(
    config: ConfigArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The name of the source in the config.")],
    tables: Annotated[list[str] | None, typer.Argument(metavar="TABLE", help=_HELP["tables"])] = None,
    stop: Annotated[bool, typer.Option("--stop", help=_HELP["stop"])] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read tables again alongside their stream, while the relay runs, and publish every row as READ.

    The running workers take the snapshot, or the next ones that start. Snapshots of one source run one after another.
    `relay status` shows the progress. A stopped snapshot continues where it was.
    """
    if stop and tables:
        raise ConfigError("--stop: omit the tables: it stops the running snapshot of the source")
    loaded = load_config(config, settings, every_table=bool(tables))
    from relay.operations import snapshot as snapshots

    if stop:
        ended = snapshots.stop(loaded, source)
        if as_json:
            typer.echo(json.dumps({"source": source, **ended.to_json()}, ensure_ascii=False))
            return
        if ended.snapshot is not None:
            again = " ".join((source, *ended.stopped[0].tables))
            typer.echo(
                f"source {source}: snapshot {ended.snapshot} of {ended.stopped[0].subject} is stopping where it is; "
                f"`{with_file('relay snapshot CONFIG')} {again}` resumes it"
            )
        for request in ended.withdrawn:
            typer.echo(f"source {source}: the request {request.id} of {request.subject} was withdrawn")
        return
    found = snapshots.request(loaded, source, tables or [])
    if as_json:
        typer.echo(json.dumps({"source": source, **found.to_json()}, ensure_ascii=False))
        return
    what = "resumes" if found.resumed else "was requested"
    typer.echo(f"source {source}: a snapshot of {found.request.subject} {what} (request {found.request.id})")
    if found.behind is not None:
        typer.echo(f"it waits until snapshot {found.behind}, which is running, has finished")
    if not found.workers:
        typer.echo("no worker is running: it begins with the next `relay run`")
