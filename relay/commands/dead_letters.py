"""``relay dead-letters``: options and output; ``relay.operations.dead_letters`` does the work."""

import json
import time
from typing import Annotated, Any

import typer

from relay.commands.logged import Commands
from relay.commands.options import ConfigArgument, JsonOption, SetOption, load_config
from relay.errors import ConfigError

app = Commands(
    help="Inspect, redrive and dismiss changes that could not be published in full or could not be decoded.",
    no_args_is_help=True,
)


@app.command("list")
def list_(config: ConfigArgument, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """List the dead letters: reason, item, size, and whether they were redriven or dismissed."""
    loaded = load_config(config, settings)
    from relay.operations.dead_letters import DeadLetters

    letters = DeadLetters(loaded)
    rows = [letter.to_json(letters.tables) for letter in letters.all()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    if not rows:
        typer.echo("no dead letters")
    for row in rows:
        typer.echo(_line(row))


@app.command()
def show(
    config: ConfigArgument,
    name: Annotated[str, typer.Argument(metavar="ID", help="An id from `list`.")],
    settings: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it on one line, for programs.")] = False,
) -> None:
    """Print one dead letter with its decoded change, as indented JSON."""
    loaded = load_config(config, settings)
    from relay.operations.dead_letters import DeadLetters

    letters = DeadLetters(loaded)
    typer.echo(json.dumps(letters.show(letters.find(name)), indent=None if as_json else 2))


_HELP = {
    "since": "With --all: only since an ISO time, or one such as -2h.",
    "reason": "With --all: only if the reason has this text, such as 'too large'.",
    "at_most": "With --all: only the oldest N.",
}


@app.command()
def redrive(
    config: ConfigArgument,
    names: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids, as `list` shows them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Redrive all that are pending.")] = False,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=_HELP["since"])] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help=_HELP["reason"])] = None,
    at_most: Annotated[int | None, typer.Option("--max", min=1, metavar="N", help=_HELP["at_most"])] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be sent.")] = False,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Send dead letters again, to the topic and partition they belong to.

    Consumers complete the changes that were incomplete, and ignore changes that newer ones have replaced. Exit code 1:
    some dead letters could not be sent, and the errors say what to do.
    """
    begin = None if since is None else _time(since)
    if bool(names) == every:
        raise ConfigError("give the ids of the dead letters to redrive, or --all")
    if not every and (since, reason, at_most) != (None, None, None):
        raise ConfigError("--since, --reason and --max only narrow down --all: omit the ids")
    loaded = load_config(config, settings)
    from relay.operations.dead_letters import DeadLetter, DeadLetters

    letters = DeadLetters(loaded)
    chosen = [letters.find(name) for name in names or ()]
    if every:
        chosen = letters.pending(since=begin, reason=reason, at_most=at_most)
    done = "would be sent" if dry_run else "sent"

    def show_sent(letter: DeadLetter) -> None:
        if as_json:
            typer.echo(json.dumps({**letter.to_json(letters.tables), "sent": not dry_run}))
        else:
            typer.echo(f"{letter.id} {done} to {letter.topic}[{letter.partition}]")

    if not chosen and not as_json:
        typer.echo("no dead letters to redrive")
    letters.redrive(chosen, show_sent, dry_run=dry_run)


@app.command()
def dismiss(
    config: ConfigArgument,
    names: Annotated[list[str], typer.Argument(metavar="ID", help="Ids from `list`.")],
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Mark dead letters that nobody will redrive as seen.

    The dead letters stay in the topic and in `list`. `status` no longer counts them, and `redrive --all` leaves them
    out.
    """
    loaded = load_config(config, settings)
    from relay.operations.dead_letters import DeadLetter, DeadLetters

    letters = DeadLetters(loaded)

    def show_dismissed(letter: DeadLetter) -> None:
        typer.echo(json.dumps(letter.to_json(letters.tables)) if as_json else f"{letter.id} dismissed")

    letters.dismiss([letters.find(name) for name in names], show_dismissed)


def _time(since: str) -> float:
    """Return ``--since`` in seconds since the epoch. Raises ``ConfigError``."""
    from relay.config.value_types import start_time

    try:
        found = start_time(since, time.time())
    except ValueError:
        found = None
    if found is None or since == "latest":
        raise ConfigError(
            f"--since {since}: must be an ISO time such as 2026-11-21T06:00:00Z, or a relative time such as -2h"
        )
    return found


def _line(row: dict[str, Any]) -> str:
    waits = "pending" if row["whole"] else "in part"
    state = "redriven" if row["redriven"] else "dismissed" if row["dismissed"] else waits
    place = f"{row['topic']}[{row['partition']}]" + ("" if row["offset"] is None else f" offset {row['offset']}")
    reason = f"{row['reason']}: {row['detail']}" if row["detail"] else row["reason"]
    key = "" if row["key"] is None else f"  key {json.dumps(row['key'])}"
    where = "" if row["shard"] is None else f"  at {row['position']} of {row['shard']}"
    return f"{row['id']}  {state}  {reason}  {row['size']} bytes  {row['table']}{key}{where}  {place}"
