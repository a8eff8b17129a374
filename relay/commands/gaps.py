"""``relay gaps``: options and output; ``relay.operations.gaps`` does the work."""

import json
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from relay.commands.logged import Commands
from relay.commands.options import ConfigArgument, JsonOption, SetOption, load_config
from relay.errors import with_file

app = Commands(help="List lost changes, and decide how to continue after them.", no_args_is_help=True)
_DECISION_HELP = "skip: publish the gap and continue. resnapshot: also read the tables again."


@app.command("list")
def gaps_list(config: ConfigArgument, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """List all gaps: pending ones, where the relay has stopped, and accepted and published ones."""
    loaded = load_config(config, settings, every_table=False)
    from relay.operations.gaps import list_gaps

    found = list_gaps(loaded)
    if as_json:
        typer.echo(json.dumps([gap.to_json() for gap in found], ensure_ascii=False))
        return
    if not found:
        typer.echo("no changes were lost")
    for gap in found:
        when = datetime.fromtimestamp(gap.gap["found_at"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        state = f"{gap.state} ({gap.decision})" if gap.decision else gap.state
        where = f"shard {gap.gap['shard']}" if gap.gap["shard"] else f"stream {gap.gap['stream']}"
        typer.echo(f"{gap.id}  {state}  {when}  source {gap.source}: {gap.gap['reason']} at {where}")
    if any(gap.state == "pending" for gap in found):
        command = with_file("relay gaps accept CONFIG ID skip|resnapshot")
        typer.echo(f"the relay waits: `{command}` lets it continue after a gap")


@app.command("accept")
def gaps_accept(
    config: ConfigArgument,
    gap_id: Annotated[str, typer.Argument(metavar="ID", help="An id from `relay gaps list`.")],
    decision: Annotated[Literal["skip", "resnapshot"], typer.Argument(metavar="skip|resnapshot", help=_DECISION_HELP)],
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the relay continue after a pending gap. The relay then publishes the gap for all consumers."""
    loaded = load_config(config, settings, every_table=False)
    from relay.operations.gaps import accept
    from relay.records import Decision

    found = accept(loaded, gap_id, Decision(decision))
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return
    if table := found.gap.get("table"):
        since = f", but those of {', '.join(found.newer)} are not: copies may differ since" if found.newer else ""
        typer.echo(f"statements about table {table} of source {found.source} up to {found.id} are forgotten{since}")
        return
    instead = f", which replaces the decision {found.replaced}" if found.replaced else ""
    typer.echo(f"gap {found.id} of source {found.source} is accepted: {decision}{instead}. The relay continues.")
