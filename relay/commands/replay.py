"""``relay replay``: options and output; ``spark_consumers.replay.rebuild`` does the work."""

import json
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from relay.commands.options import ConfigArgument, JsonOption, SetOption, read_config, with_tables
from relay.errors import ConfigError, NotDrained
from relay.extras import needs

_HELP = {
    "into": "A new place, as in `copy.url` or `log.path`; or schema:NAME, for schemas named NAME_SOURCE in the "
    "PostgreSQL database of `copy.url`.",
    "start": "Where to begin: earliest, committed, committed:GROUP, an ISO time, a relative time such as -2h, or "
    "offsets in JSON.",
    "to": "Where to end: latest, which is the end of the topics when the replay starts; any other START; or "
    "watermark:TIME, the last change committed before TIME, which needs all such changes on the topics.",
    "swap": "At the end, replace the present copy or log, which is kept under another name, and let the consumer "
    "continue from there. This works for local folders and for schemas of one PostgreSQL database. Stop the "
    "consumer first.",
    "checkpoint": "The folder of the consumer's checkpoint; needed with --swap.",
}


def replay(
    kind: Annotated[Literal["copy", "log"], typer.Argument(metavar="copy|log", help="What to rebuild.")],
    config: ConfigArgument,
    into: Annotated[str, typer.Option(metavar="URL", help=_HELP["into"])],
    start: Annotated[str, typer.Option("--from", metavar="START", help=_HELP["start"])] = "earliest",
    to: Annotated[str, typer.Option("--to", metavar="END", help=_HELP["to"])] = "latest",
    partial: Annotated[bool, typer.Option("--partial", help="Replay even if the topics lack earlier records.")] = False,
    swap: Annotated[bool, typer.Option("--swap", help=_HELP["swap"])] = False,
    checkpoint: Annotated[str | None, typer.Option(help=_HELP["checkpoint"], metavar="DIR")] = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the copy or the log from the topics, beside the present one.

    After a stop or a crash, the same command continues where it was. The consumer may run at the same time.
    """
    loaded, _ = read_config(config, settings)
    if {"log": loaded.log, "copy": loaded.copy_}[kind] is None:
        raise ConfigError(f"{config}: no `{kind}:` section: add one to replay it")
    if checkpoint is not None and not swap:
        raise ConfigError("--checkpoint: only --swap changes the consumer's checkpoint: omit it, or add --swap")
    with needs("spark", "`relay replay`"):
        from spark_consumers.replay import bounds, rebuild
    bounds.check(start, to)  # fail before a database is asked for its tables
    found = rebuild.run(
        kind, with_tables(loaded), into, start=start, to=to, partial=partial, swap=swap, checkpoint=checkpoint
    )
    if as_json:
        typer.echo(json.dumps(asdict(found), ensure_ascii=False))
    elif found.kept is not None:
        earlier = f"; the earlier one is kept: {', '.join(found.kept)}" if found.kept else ""
        typer.echo(f"the {found.kind} was rebuilt and put in its place{earlier}")
    elif found.finished:
        typer.echo(f"the {found.kind} was rebuilt in {found.into}")
    if not found.finished:
        raise NotDrained(f"stopped after {found.done} of {found.total} offsets: run the same command again to continue")
