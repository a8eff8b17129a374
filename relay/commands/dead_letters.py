"""``relay dead-letters``: options and output; ``relay.operations.dead_letters`` does the work."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from relay.commands.options import ConfigArgument, JsonOption, SetOption, load_config
from relay.errors import ConfigError

app = typer.Typer(
    help="Inspect and redrive changes that could not be published in full or not be decoded.",
    no_args_is_help=True,
)


@app.command("list")
def list_(config: ConfigArgument, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """List the dead letters: reason, item, size, and whether they were redriven."""
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
    name: Annotated[str, typer.Argument(metavar="ID", help="An id from `list`.", show_default=False)],
    settings: SetOption = None,
) -> None:
    """Print one dead letter with its decoded change, as JSON."""
    loaded = load_config(config, settings)
    from relay.operations.dead_letters import DeadLetters

    letters = DeadLetters(loaded)
    typer.echo(json.dumps(letters.show(letters.find(name)), indent=2))


@app.command()
def redrive(
    config: ConfigArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids from `list`.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Redrive all that have not been redriven yet.")] = False,
    settings: SetOption = None,
) -> None:
    """Send dead letters again, to the topic and partition they belong to.

    Consumers complete the changes that were incomplete and ignore those that newer changes have replaced. Exit code 1:
    some could not be sent; the errors say what to do.
    """
    if bool(names) == every:
        raise ConfigError("give the ids of the dead letters to redrive, or --all")
    loaded = load_config(config, settings)
    from relay.operations.dead_letters import DeadLetter, DeadLetters

    letters = DeadLetters(loaded)
    chosen = [letters.find(name) for name in names or ()] or [each for each in letters.all() if not each.redriven]

    def print_sent(letter: DeadLetter) -> None:
        typer.echo(f"{letter.id} sent to {letter.topic}[{letter.partition}]")

    letters.redrive(chosen, print_sent)


def _line(row: dict[str, Any]) -> str:
    state = "redriven" if row["redriven"] else "pending" if row["whole"] else "in part"
    place = f"{row['topic']}[{row['partition']}]" + ("" if row["offset"] is None else f" offset {row['offset']}")
    key = "" if row["key"] is None else f"  key {json.dumps(row['key'])}"
    where = "" if row["shard"] is None else f"  at {row['position']} of {row['shard']}"
    return f"{row['id']}  {state}  {row['reason']}  {row['size']} bytes  {row['table']}{key}{where}  {place}"
