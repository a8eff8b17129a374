"""``relay reset``: options and output; ``relay.operations.reset`` does the work."""

import json
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
}


def reset(
    config: ConfigArgument,
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help=_HELP["source"])] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="START", help=_HELP["to"])] = None,
    lost_state: Annotated[bool, typer.Option("--lost-state", help=_HELP["lost_state"])] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what the reset would do.")] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the next run read a source from another place. Stop all workers first.

    The command removes the checkpoints of the source and publishes a gap, so that caches drop their entries. Changes
    between the old place and the new one are published twice, or never. The config file stays as it is.

    With --lost-state, sources whose checkpoints are lost begin where `start` says. The present schemas of the tables
    replace lost schemas. A gap for each source tells consumers about the loss.
    """
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
    removed = f"1 record of checkpoints {would}" if count == 1 else f"{count} records of checkpoints {were}"
    typer.echo(f"{removed} removed, gap {found.gap.id} {would} published")
    if found.snapshot is not None:
        typer.echo("the unfinished snapshot begins again with the next run")
    if found.workers:
        typer.echo(f"stop the workers first: {', '.join(found.workers)}")
