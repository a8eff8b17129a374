"""``relay init``: options, questions and output; ``relay.operations.init`` writes the config."""

import errno
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copymode
from tempfile import mkstemp
from typing import Annotated, Any

import typer

from relay.commands.options import Database
from relay.errors import ConfigError

_OPTIONS = {
    Database.DYNAMODB: {
        "table": "Tables, separated by commas", "region": "AWS region, such as eu-west-1", "endpoint_url": None
    },
    Database.MYSQL: {
        "server": "Servers as HOST:PORT, separated by commas", "database": "Database", "user": "User", "table": None
    },
    Database.VITESS: {"vtgate": "vtgate as HOST:PORT", "keyspace": "Keyspace", "user": None, "table": None},
}  # fmt: skip
"""The options for each kind of database: the required ones, each with its question, and the others."""
_OF_COMMAND = {"file", "kind", "look", "force"}
_PLACES = {
    "cache": "A cache to invalidate, such as redis://127.0.0.1:6379/0 (empty: none)",
    "log": "A folder for the change log, such as file:///var/lib/relay/log (empty: none)",
    "copy": "A copy of the tables, such as delta:///var/lib/relay/copy (empty: none)",
}


_HELP = {
    "file": "The file to write; - prints it instead.",
    "table": "A table; may be repeated. Default: all, except for DynamoDB.",
    "server": "MySQL, MariaDB: a server; may be repeated for its replicas.",
    "user": "MySQL, MariaDB, Vitess: the user. The config names an environment variable for the password.",
    "name": "The name of the relay. Default: the name of the database or table.",
    "http": "Where to serve metrics, health and the status page.",
    "look": "Connect to the database to look up the tables and their keys.",
}


def init(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="CONFIG", help=_HELP["file"], readable=False)],
    kind: Annotated[Database | None, typer.Option("--type", help="The kind of database; MariaDB is mysql.")] = None,
    table: Annotated[list[str] | None, typer.Option(metavar="TABLE", help=_HELP["table"])] = None,
    region: Annotated[str | None, typer.Option(help="DynamoDB: the AWS region.")] = None,
    endpoint_url: Annotated[str | None, typer.Option(help="DynamoDB: the address, if not AWS's own.")] = None,
    server: Annotated[list[str] | None, typer.Option(metavar="HOST:PORT", help=_HELP["server"])] = None,
    database: Annotated[str | None, typer.Option(help="MySQL, MariaDB: the database.")] = None,
    user: Annotated[str | None, typer.Option(help=_HELP["user"])] = None,
    vtgate: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Vitess: the address of vtgate.")] = None,
    keyspace: Annotated[str | None, typer.Option(help="Vitess: the keyspace.")] = None,
    kafka: Annotated[str | None, typer.Option(metavar="HOST:PORT,...", help="The Kafka brokers.")] = None,
    name: Annotated[str | None, typer.Option(help=_HELP["name"])] = None,
    cache: Annotated[str | None, typer.Option(metavar="URL", help="A cache to invalidate; needs --look.")] = None,
    log: Annotated[str | None, typer.Option(metavar="PATH", help="The folder of a change log.")] = None,
    copy: Annotated[str | None, typer.Option(metavar="URL", help="A copy of the tables.")] = None,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help=_HELP["http"])] = "127.0.0.1:9400",
    look: Annotated[bool, typer.Option("--look", help=_HELP["look"])] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a first config with comments. On a terminal, ask for missing options.

    Without --look, the command connects to nothing. The file passes `relay check --offline`.
    """
    to_stdout = str(file) == "-"
    if not to_stdout and not force and os.path.exists(file):  # also False in a folder that may not be searched
        raise ConfigError(f"{file}: already exists: choose another name, or replace it with --force")
    values = {key: value for key, value in ctx.params.items() if value and key not in _OF_COMMAND}
    if missing := _missing(kind, values):
        if not sys.stdin.isatty():
            raise ConfigError(f"give {', '.join(missing)}, or run `relay init` on a terminal, where it asks for them")
        kind = kind or Database(
            typer.prompt("Type of database: dynamodb, mysql (also MariaDB) or vitess", type=Database)
        )
        values |= _asked(kind, values)
        look = look or "cache" in values or typer.confirm("Connect to the database to look up the keys of the tables?")
    assert kind is not None
    others = {key for options in _OPTIONS.values() for key in options} - _OPTIONS[kind].keys()
    if wrong := [key for key in values if key in others]:
        raise ConfigError(f"{_flag(wrong[0])}: does not apply to a source of type {kind}")
    from relay.operations import init as drafts

    wanted = drafts.Wanted(type=kind.value, **values)
    text = drafts.draft(str(file), wanted, look=look)
    if to_stdout:
        typer.echo(text, nl=False)
        return
    try:
        if force and file.is_file():
            _replace(file.resolve(), text)
        else:
            with file.open("w" if force else "x", encoding="utf-8") as opened:
                opened.write(text)
    except OSError as error:
        if not force and error.errno != errno.EEXIST:
            with suppress(OSError):
                file.unlink()  # otherwise it would be in the way of the next attempt
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    typer.echo(f"wrote {file}")
    if wanted.user and wanted.password not in os.environ:
        typer.echo(f"set the password of {wanted.user} in the environment: export {wanted.password}=...")
    named = shlex.quote(str(file))
    typer.echo(f"next: relay check {named}, then relay run {named}")


def _replace(file: Path, text: str) -> None:
    """Replace a file by ``text``, keeping its permissions. Raises ``OSError``, and then leaves the file as it was."""
    number, beside = mkstemp(dir=file.parent, prefix=f".{file.name[:64]}.")
    try:
        with open(number, "w", encoding="utf-8") as opened:
            opened.write(text)
        copymode(file, beside)
        os.replace(beside, file)
    except OSError:
        os.unlink(beside)
        raise


def _missing(kind: Database | None, values: dict[str, Any]) -> list[str]:
    needed = [] if kind is None else [key for key, question in _OPTIONS[kind].items() if question]
    missing = [_flag(key) for key in (*needed, "kafka") if key not in values]
    return ["--type", *missing] if kind is None else missing


def _asked(kind: Database, values: dict[str, Any]) -> dict[str, Any]:
    """Ask for missing required options, and for optional ones."""
    found: dict[str, Any] = {}
    for key, question in _OPTIONS[kind].items():
        if question and key not in values:
            parts: list[str] = []
            while not parts:  # typer itself asks again only after an empty answer
                answer = typer.prompt(question).strip()
                parts = [part.strip() for part in answer.split(",") if part.strip()]
            found[key] = parts if key in ("table", "server") else answer
    if "kafka" not in values:
        found["kafka"] = typer.prompt("Kafka brokers", default="127.0.0.1:9092").strip()
    for key, question in _PLACES.items():
        if key not in values and (answer := typer.prompt(question, default="", show_default=False)):
            found[key] = answer
    return found


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"
