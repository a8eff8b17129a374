"""``relay reset``: options and output; ``relay.operations.reset`` does the work."""

import json
from pathlib import Path
from typing import Annotated

import typer

from relay.commands.options import ConfigArgument, JsonOption, SetOption, load_config

_HELP = {
    "source": "The name of the source in the config.",
    "to": "The new place, as in `start` of the config: an ISO time, a relative time such as -30s; DynamoDB: "
    "trim_horizon, latest, token:PATH; MySQL, MariaDB: current, {gtid: {SHARD: GTIDS}}; Vitess: current, copy, "
    "{vgtid: [...]}.",
    "lost_state": "In place of SOURCE and --to: accept the loss of checkpoints or schemas that `relay run` refuses to "
    "start without.",
    "moved": "In place of SOURCE and --to: from now on, publish TABLE to the topic that the config names. It may "
    "contain `*`, and be repeated.",
}


def reset(
    config: ConfigArgument,
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help=_HELP["source"])] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="START", help=_HELP["to"])] = None,
    lost_state: Annotated[bool, typer.Option("--lost-state", help=_HELP["lost_state"])] = False,
    moved: Annotated[list[str] | None, typer.Option("--moved", metavar="TABLE", help=_HELP["moved"])] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what the reset would do.")] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the next run read a source from another place. Stop all workers first.

    The command removes the checkpoints of the source and publishes a gap, so that caches drop their entries. Changes
    between the old place and the new one are published twice, or never. The config file stays as it is.

    With --lost-state, sources whose checkpoints are lost begin where `start` says. The present schemas of the tables
    replace lost schemas. A gap for each source tells consumers about the loss.

    With --moved, no position changes. The next run publishes the table to another topic, which `relay run` refuses
    before. Let all consumers read the former topic to its end first.
    """
    if moved:
        if lost_state or (source, to, dry_run) != (None, None, False):
            raise typer.BadParameter("cannot be combined with other options, or SOURCE.", param_hint="--moved")
        _accept_moves(config, moved, settings, as_json=as_json)
        return
    if lost_state and (source, to, dry_run) != (None, None, False):
        raise typer.BadParameter("cannot be combined with SOURCE, --to or --dry-run.", param_hint="--lost-state")
    if not lost_state and (source is None or to is None):
        raise typer.BadParameter("give both, or give --lost-state alone.", param_hint="SOURCE and --to")
    loaded = load_config(config, settings, every_table=False)
    from relay.operations import reset as resets

    if source is None or to is None:
        for gap in resets.accept_lost_state(loaded):
            said = {"source": gap.source, "reason": gap.reason, "gap": gap.id}
            typer.echo(
                json.dumps(said) if as_json else f"source {gap.source}: {gap.reason}, gap {gap.id} was published"
            )
        return
    found = resets.preview(loaded, source, to) if dry_run else resets.reset(loaded, source, to)
    if as_json:
        typer.echo(json.dumps({"source": source, "dry_run": dry_run, **found.to_json()}, ensure_ascii=False))
        return
    would, were = ("would be", "would be") if dry_run else ("was", "were")
    typer.echo(f"source {source}, stream {found.stream.label}: {would} reset to {found.start}")
    count = len(found.removed_keys)
    removed = f"1 checkpoint record {would}" if count == 1 else f"{count} checkpoint records {were}"
    typer.echo(f"{removed} removed, and gap {found.gap.id} {would} published")
    if found.snapshot is not None:
        typer.echo("the unfinished snapshot begins again with the next run")
    if found.workers:
        typer.echo(f"stop the workers first: {', '.join(found.workers)}")


def _accept_moves(config: Path, moved: list[str], settings: list[str] | None, *, as_json: bool) -> None:
    loaded = load_config(config, settings)
    from relay.operations.reset import accept_moves

    found = accept_moves(loaded, moved)
    for table, before in found.items():
        said = {"table": table, "topic": loaded.topic(table), "before": before}
        text = f"table {table}: the next run publishes its changes to topic {said['topic']}, {before} before"
        typer.echo(json.dumps(said, ensure_ascii=False) if as_json else text)
    if not found and not as_json:
        typer.echo("nothing to move: the changes go to the topics that the config names")
