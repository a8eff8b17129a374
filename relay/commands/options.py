"""Arguments, options and set-up that several commands share: the config, and logging to stderr."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.exceptions import TyperException

from relay.commands.machine import local_failures
from relay.errors import ConfigError, RelayError, Unavailable

if TYPE_CHECKING:
    from relay.config import Config, SourceConfig
    from relay.config.yaml_file import Document

log = logging.getLogger("relay")

LogFormat = Literal["text", "json"]


class Database(StrEnum):
    DYNAMODB = "dynamodb"
    MYSQL = "mysql"
    VITESS = "vitess"


class ConsumerKind(StrEnum):  # a list of literals is not an argument
    CACHE = "cache"
    LOG = "log"
    COPY = "copy"


_HELP = {
    "set": "Replace a value of CONFIG, such as http=127.0.0.1:9401 or sources.NAME.on_gap=skip; may be repeated.",
    "until_caught_up": "Exit with code 0 once everything present at the start is processed.",
    "keyrange": "Only changes of Vitess tables whose keyspace id is in this range, such as -80 or 80-c0.",
    "log_format": "The format of the log on stderr; json: one object per line.",
}

# `readable=False` leaves it to the code that reads the file to say that it cannot.
ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML config file.", readable=False)]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_HELP["set"])]
UntilCaughtUpOption = Annotated[bool, typer.Option("--until-caught-up", help=_HELP["until_caught_up"])]
KeyRangeOption = Annotated[str | None, typer.Option("--keyrange", metavar="RANGE", help=_HELP["keyrange"])]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", envvar="RELAY_LOG_FORMAT", help=_HELP["log_format"])
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def load_config(
    path: Path, settings: Sequence[str] | None, *, every_table: bool = True, is_relay: bool = False
) -> Config:
    """Read the config, and find the tables of sources that name none: see ``read_config`` and ``with_tables``."""
    return with_tables(read_config(path, settings)[0], every_table=every_table, is_relay=is_relay)


def read_config(path: Path, settings: Sequence[str] | None) -> tuple[Config, Document]:
    """Return the config, changed by ``--set``, and the parsed file. Raises ``ConfigError`` with a line per problem."""
    from relay.config.config import read
    from relay.kafka.settings import refused

    RelayError.file = shlex.quote(str(path))
    config, document = read(path, settings or ())
    lines = []
    for key, reason in refused(config).items():
        place = ("kafka", "producer", key) if key else ("kafka", "producer")
        lines.append(document.problem(place, f"`{'.'.join(place)}`: librdkafka refuses it: {reason}"))
    if lines:
        raise ConfigError("\n".join(lines))
    return config, document


def with_tables(config: Config, *, every_table: bool = True, is_relay: bool = False) -> Config:
    """Return the config with the tables of sources that name none.

    ``every_table``: False if the command does not need the topics of all tables; then it works while a database is
    down. Tags are always looked up, because each table that has them becomes a source of its own. ``is_relay``: a
    source whose database is down stays without tables, and `ConnectedSources` refuses it; otherwise it has the tables
    that were relayed before.
    """
    if config.names_tables:
        return config
    from relay.engine.kinds import kind_of
    from relay.operations.status import relayed_tables

    away: dict[str, Unavailable] = {}
    before: list[tuple[str, str]] = []

    def find(entry: SourceConfig) -> Iterable[str] | None:
        if entry.name not in away:
            try:
                return kind_of(entry).find_tables(entry)
            except Unavailable as error:  # I12
                if entry.traits.one_source_per_table:
                    raise
                away[entry.name] = error
        return None if is_relay else [table for source, table in before if source == entry.name] or None

    def found() -> Config:
        return config.with_tables(find, only_split=not every_table)

    with_all = found()
    if not (away or config.claims.is_contested):
        return with_all
    before += relayed_tables(config)
    config.claim(before)  # I8: a contested topic belongs to the table that was there first
    for name, error in away.items():
        if not is_relay and name not in dict(before):
            raise error
        instead = "" if is_relay else "; taking those that were relayed before"
        log.warning("the tables of source %s cannot be looked up%s: %s", name, instead, error)
    return found()


@contextmanager
def logging_to_stderr(log_format: LogFormat) -> Iterator[None]:
    """Log to stderr. With JSON, also log an error that ends the command."""
    from relay.observe.logs import JsonFormatter, TextFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    log.setLevel(logging.INFO)
    try:
        with local_failures():
            yield
    except (typer.Exit, typer.Abort, TyperException):
        raise  # the command has said how it ends, or its arguments are wrong
    except Exception as error:
        if log_format == "text":
            raise
        if isinstance(error, RelayError):
            log.error("%s", error)
            raise typer.Exit(error.exit_code) from error
        log.critical("unexpected error: %s", error, exc_info=True)
        raise typer.Exit(RelayError.exit_code) from error
