"""``relay gaps``: options and output; what is done is in ``relay.operations.gaps``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from relay.commands.options import AsJson, ConfigFile, load_config

app = typer.Typer(help="Look at lost changes, and decide how to go on after them.", no_args_is_help=True)


class Policy(StrEnum):
    SKIP = "skip"
    RESNAPSHOT = "resnapshot"


@app.command("list")
def gaps_list(config: ConfigFile, as_json: AsJson = False) -> None:
    """Show all losses: pending ones that the relay has stopped for, accepted and published ones."""
    loaded = load_config(config, every_table=False)
    from relay.kafka import topics
    from relay.operations.gaps import found_gaps

    found = found_gaps(topics.connect(loaded), loaded)
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


@app.command("accept")
def gaps_accept(
    config: ConfigFile,
    gap_id: Annotated[str, typer.Argument(metavar="ID", help="As `relay gaps list` shows it.", show_default=False)],
    decision: Annotated[
        Policy,
        typer.Argument(help="skip: record the loss, go on. resnapshot: read the table again, too.", show_default=False),
    ],
) -> None:
    """Let the relay go on after a pending loss, which is then published for all consumers to see."""
    loaded = load_config(config, every_table=False)
    from relay.engine.gap_decisions import Decision
    from relay.operations.gaps import accept

    found = accept(loaded, gap_id, Decision(decision.value))
    typer.echo(f"gap {found.id} of source {found.source} is accepted: {decision.value}. The next `relay run` goes on.")
