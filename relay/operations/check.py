"""``relay check``: connects to everything in a config and says what is missing.

Every check is independent and bounded in time, so that one run shows all there is to repair. The probes of
DynamoDB and of the topics are those the relay starts with.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import redis

from relay.avro.schema import change_schema
from relay.avro.schema_registry import COMPATIBILITY, RegistrySchemas
from relay.config import Config, DynamoDBConfig, MySQLConfig, SchemaRegistryConfig, SourceConfig, VitessConfig, redacted
from relay.config.fields import StartAtToken
from relay.config.template import Template
from relay.dynamodb import describe
from relay.dynamodb.source import table_schema
from relay.engine.open_source import open_source
from relay.errors import ConfigError, RelayError, Unavailable
from relay.jvm.java import find_java
from relay.kafka import topics
from relay.table import TableSchema

_SOCKET_TIMEOUT = 5.0
_CREATION_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. ``exit_code``: 0 if it is well, else that of the error."""

    check: str
    detail: str
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


Check = Callable[[], str | list[Finding]]
"""A check says that all is well, or what it found; or it raises a ``RelayError``."""


def run(config: Config) -> Iterator[Finding]:
    """Yield what each check found, in the order of the config; none stops another."""
    checks: list[tuple[str, Check]] = [
        (f"kafka {config.kafka.bootstrap_servers}", partial(_kafka, config)),
        *((f"source {source.name}", partial(_source, config, source)) for source in config.sources),
    ]
    if config.schema_registry:
        url = config.schema_registry.url
        checks.append((f"schema registry {redacted(url)}", partial(_registry, config, config.schema_registry)))
    if config.cache:
        url = config.cache.url
        checks.append((f"cache {redacted(url)}", partial(_cache, url)))
    if config.log:
        checks.append((f"log {redacted(config.log.path)}", partial(_folder, "log", config.log.path)))
    if config.copy_:
        checks.append((f"copy {redacted(config.copy_.url)}", partial(_folder, "copy", config.copy_.url)))
    if config.cache or config.log or config.copy_:
        checks += [("java", _java), ("pyspark", _spark)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        for findings in pool.map(lambda named: _settled(*named), checks):
            yield from findings


def _settled(name: str, check: Check) -> list[Finding]:
    try:
        found = check()
    except RelayError as error:
        return [Finding(name, str(error).removeprefix(f"{name}: "), error.exit_code)]
    return [Finding(name, found)] if isinstance(found, str) else found


def _kafka(config: Config) -> list[Finding]:
    admin = topics.connect(config)
    tables = list(config.tables)
    return [
        Finding(f"kafka {config.kafka.bootstrap_servers}", "reachable"),
        *(_topic(found) for found in topics.survey(admin, config, tables)),
    ]


def _topic(found: topics.FoundTopic) -> Finding:
    topic = found.topic
    name = f"topic {topic.name}"
    count = topics.partitions_text(topic.partitions)
    if found.problem:
        return Finding(name, found.problem, Unavailable.exit_code)
    if not found.exists:
        return Finding(name, f"will be created with {count}")
    if found.hint:
        count += f"; {found.hint}"
    wanted = int(topic.settings.get("max.message.bytes", 0))
    if found.largest_message is not None and found.largest_message < wanted:
        return Finding(name, f"{count}; takes at most {found.largest_message} bytes a change, {wanted} would take any")
    return Finding(name, count)


def _registry(config: Config, registry: SchemaRegistryConfig) -> list[Finding]:
    """Ask the schema registry for the subjects of the topics. Raises ``Unavailable``."""
    findings = [Finding(f"schema registry {redacted(registry.url)}", "reachable")]
    with closing(_schemas(registry)) as schemas:
        there = set(schemas.subjects())
        for topic in map(config.topic, config.tables):
            detail = f"will be created with compatibility {COMPATIBILITY}"
            if f"{topic}-value" in there:
                versions, level = schemas.subject(topic)
                detail = f"{versions} version{'' if versions == 1 else 's'}, compatibility {level or 'by default'}"
                if level == "NONE":
                    detail += ": whether old readers could read a new version is not asked"
            findings.append(Finding(f"subject {topic}-value", detail))
    return findings


def _schemas(registry: SchemaRegistryConfig) -> RegistrySchemas:
    return RegistrySchemas(registry.url, registry.on_incompatible, timeout=_SOCKET_TIMEOUT, retries=0)


def _next_schema(config: Config, registry: SchemaRegistryConfig, table: TableSchema) -> list[Finding]:
    """Say whether the registry would refuse the schema that the table has now. Raises ``Unavailable``."""
    topic = config.topic(table.table)
    with closing(_schemas(registry)) as schemas:
        problem = schemas.refusal(topic, change_schema(table))
    if not problem:
        return []
    refused = registry.on_incompatible == "fail"
    return [Finding(f"schema of {topic}", problem, RelayError.exit_code if refused else 0)]


def table(source: DynamoDBConfig) -> describe.Description:
    """Look up the table of ``source`` and its stream, within 35 seconds. Raises ``Unavailable``."""
    client, streams = describe.clients(source, probe=True)
    with closing(client), closing(streams):
        return describe.describe(client, source, streams, patience=_CREATION_PATIENCE)


def _source(config: Config, source: SourceConfig) -> list[Finding]:
    return _stream(config, source) if isinstance(source, DynamoDBConfig) else _database(config, source)


def _stream(config: Config, source: DynamoDBConfig) -> list[Finding]:
    found = table(source)
    key = ", ".join(f"{column.name} ({column.type})" for column in found.key)
    stream = Finding(f"source {source.name}", f"table {found.table}, key {key}, stream of {found.view_type}")
    findings = [stream, *start(source, found), *columns(source, found)]
    findings += [*images(config, found), *templates(config, found)]
    if config.schema_registry:
        schema = partial(_next_schema, config, config.schema_registry, table_schema(source, found))
        findings += _settled(f"schema of {config.topic(found.table)}", schema)
    return findings


def _database(config: Config, source: VitessConfig | MySQLConfig) -> list[Finding]:
    """Connect as the relay would, and look at every table. Raises ``RelayError`` for the first that cannot be read."""
    with closing(open_source(source)) as opened:
        opened.connect()
        tables = opened.tables()
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    findings = [Finding(f"source {source.name}", f"{source.database}: {count}")]
    for table in tables:
        names = [column.name for column in table.key]
        hashed = ", ".join(names[: table.hash_columns])
        findings.append(Finding(f"table {table.table}", f"key {', '.join(names)}, hashed by {hashed}"))
        findings += _templates(config, table.table, names, columns=[column.name for column in table.row or ()])
        if config.schema_registry:
            schema = partial(_next_schema, config, config.schema_registry, table)
            findings += _settled(f"schema of {config.topic(table.table)}", schema)
    return findings


def images(config: Config, found: describe.Description) -> list[Finding]:
    """Say whether the stream carries the rows that a copy of the table is to hold."""
    if config.copy_ is None:
        return []
    name = f"copy of {found.table}"
    if found.view_type in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES"):
        return [Finding(name, "every change has the row that it leaves")]
    return [
        Finding(
            name,
            f"a stream of {found.view_type} does not carry the rows: each one changed would be marked incomplete; set "
            "the table's StreamViewType to NEW_IMAGE or NEW_AND_OLD_IMAGES",
            Unavailable.exit_code,
        )
    ]


def start(source: DynamoDBConfig, found: describe.Description) -> list[Finding]:
    """Say whether the token that ``source`` starts at is of its stream."""
    if not isinstance(source.start, StartAtToken):
        return []
    name, arn = f"start of {source.name}", source.start.stream_arn
    if arn != found.stream_arn:
        detail = f"the token {source.start.path} is of the stream {arn}, not of {found.stream_arn}"
        return [Finding(name, detail, ConfigError.exit_code)]
    return [Finding(name, f"the token {source.start.path} is of this stream")]


def columns(source: DynamoDBConfig, found: describe.Description) -> list[Finding]:
    """Say where the declared columns of ``source`` and its table differ."""
    if not source.columns:
        return []
    name = f"columns of {source.name}"
    if problems := describe.mismatches(found, source.columns):
        return [Finding(name, problem, Unavailable.exit_code) for problem in problems]
    return [Finding(name, f"{len(source.columns)} declared, as {found.table} has them")]


def templates(config: Config, found: describe.Description) -> list[Finding]:
    """Say which cache templates of a table name columns that not every change of it carries."""
    lacks = (
        f"a stream of {found.view_type} does not carry it with every change: use key columns, or set the table's "
        "StreamViewType to NEW_AND_OLD_IMAGES"
    )
    key = [column.name for column in found.key]
    return _templates(config, found.table, key, "" if found.view_type == "NEW_AND_OLD_IMAGES" else lacks)


def _templates(
    config: Config, table: str, key: Collection[str], lacks: str = "", *, columns: Sequence[str] = ()
) -> list[Finding]:
    """As ``templates``. ``lacks``: why not every change carries both rows, and what to do; empty if it does.

    ``columns``: all that the table has, where that is known.
    """
    findings: list[Finding] = []
    for text in config.cache.keys.get(table, ()) if config.cache else ():
        beyond = [column for column in Template.parse(text).columns if column not in key]
        name = f"cache key {text}"
        if strange := [column for column in beyond if columns and column not in columns]:
            # I6: it would invalidate nothing, whatever changes.
            nearest = difflib.get_close_matches(strange[0], columns, n=1, cutoff=0.5)
            hint = f"did you mean `{nearest[0]}`?" if nearest else f"there are: {', '.join(columns)}"
            findings.append(Finding(name, f"{table} has no column `{strange[0]}`; {hint}", Unavailable.exit_code))
        elif not beyond:
            findings.append(Finding(name, f"every change of {table} has it"))
        elif not lacks:
            missing = " or ".join(f"`{column}`" for column in beyond)
            findings.append(Finding(name, f"items of {table} without {missing} invalidate nothing"))
        else:
            # I6: an update or a delete would not say which entry held the value it replaced.
            findings.append(
                Finding(name, f"`{beyond[0]}` is not in the key of {table}, and {lacks}", Unavailable.exit_code)
            )
    return findings


def _cache(url: str) -> str:
    """Ping Redis. Raises ``Unavailable``."""
    client = redis.Redis.from_url(url, socket_timeout=_SOCKET_TIMEOUT, socket_connect_timeout=_SOCKET_TIMEOUT)
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        raise Unavailable(f"Redis at {redacted(url)} does not answer: {error}") from error
    finally:
        client.close()
    return "reachable"


def _folder(kind: str, url: str) -> str:
    """See whether a local folder can be written to. Raises ``Unavailable``; other stores are not looked at."""
    parts = urlsplit(url)
    if parts.scheme not in ("", "file", "delta") or parts.netloc:
        return "not looked at: only local folders are"
    path = Path(unquote(parts.path))
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise Unavailable(f"cannot write to {nearest}, where the {kind} is to be kept")
    return "writable" if path.exists() else "will be created"


def _java() -> str:
    return str(find_java())


def _spark() -> str:
    """See whether PySpark is installed. Raises ``Unavailable``."""
    if find_spec("pyspark") is None:
        raise Unavailable("PySpark is not installed: `pip install 'change-relay[spark]'`")
    return "installed"
