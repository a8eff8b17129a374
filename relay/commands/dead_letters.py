"""``relay dead-letters``: look into what could not be published or read, and send it again."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from relay.commands.options import AsJson, ConfigFile, load_config
from relay.errors import ConfigError

app = typer.Typer(
    help="Look into the changes that could not be published whole or be read, and send them again.",
    no_args_is_help=True,
)


@app.command("list")
def list_(config: ConfigFile, as_json: AsJson = False) -> None:
    """List the dead letters: why, what of, how large, and whether they were sent again."""
    loaded = load_config(config)
    from relay.operations.dead_letters import Letters

    letters = Letters(loaded)
    rows = [letter.to_json(letters.tables) for letter in letters.all()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(_line(row))


@app.command()
def show(
    config: ConfigFile,
    name: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.", show_default=False)],
) -> None:
    """Print one dead letter whole, decoded, as JSON."""
    loaded = load_config(config)
    from relay.operations.dead_letters import Letters

    letters = Letters(loaded)
    typer.echo(json.dumps(letters.shown(letters.find(name)), indent=2))


@app.command()
def redrive(
    config: ConfigFile,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="As `list` shows them.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that were not sent again yet.")] = False,
) -> None:
    """Send dead letters again, to the topic and partition they belong to.

    What a change was missing is completed by it; what has changed since stays as it is. Exit code 1: some could not
    be sent, and the message says what to do.
    """
    if bool(names) == everything:
        raise ConfigError("name the dead letters to send again, or give --all")
    loaded = load_config(config)
    from relay.operations.dead_letters import Letter, Letters

    letters = Letters(loaded)
    chosen = [letters.find(name) for name in names or ()] or [each for each in letters.all() if not each.redriven]

    def tell(letter: Letter) -> None:
        typer.echo(f"{letter.id} sent to {letter.topic}[{letter.partition}]")

    letters.redrive(chosen, tell)


def _line(row: dict[str, Any]) -> str:
    state = "redriven" if row["redriven"] else "pending" if row["whole"] else "in part"
    place = f"{row['topic']}[{row['partition']}]" + ("" if row["offset"] is None else f" offset {row['offset']}")
    key = "" if row["key"] is None else f"  key {json.dumps(row['key'])}"
    where = "" if row["shard"] is None else f"  at {row['position']} of {row['shard']}"
    return f"{row['id']}  {state}  {row['reason']}  {row['size']} bytes  {row['table']}{key}{where}  {place}"
