"""``relay check``: connects to everything in a config and reports what is missing.

The checks are independent of each other and have timeouts, so one run shows all problems. They inspect DynamoDB and
the topics with the same code as the relay at its start.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from relay.avro.schema import change_schema
from relay.cache import ConditionalWrite, entry_key, open_store
from relay.cache.store import KEEP, READ
from relay.config import Config, DynamoDBConfig, MySQLConfig, SchemaRegistryConfig, SourceConfig, VitessConfig, redacted
from relay.config.fields import StartAtToken
from relay.config.template import Template
from relay.engine.open_source import open_source
from relay.errors import ConfigError, RelayError, Unavailable
from relay.extras import needs
from relay.kafka import permissions, topics
from relay.kafka.settings import KafkaSettings
from relay.mysql_dialect.tables import missing_tables
from relay.operations.check_machine import checks_of_machine
from relay.table import Column, TableSchema
from relay.types.columns import ColumnKind

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

    from relay.avro.schema_registry import RegistrySchemas
    from relay.dynamodb import describe

_SOCKET_TIMEOUT = 5.0
_TABLE_TIMEOUT = 10.0  # for a table that is being created


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. ``exit_code``: 0 if all is well, else that of the problem."""

    check: str
    detail: str
    exit_code: int = 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, "ok": self.ok, "detail": self.detail}


Check = Callable[[], str | list[Finding]]
"""Returns a message if all is well, or findings; raises a ``RelayError`` for a problem."""


def run(config: Config) -> Iterator[Finding]:
    """Run all checks and yield their findings, in the order of the config. A failed check does not stop the others."""
    checks: list[tuple[str, Check]] = [
        (f"kafka {config.kafka.bootstrap_servers}", partial(_check_kafka, config)),
        *((f"source {source.name}", partial(_check_source, config, source)) for source in config.sources),
    ]
    if config.schema_registry:
        url = config.schema_registry.url
        checks.append((f"schema registry {redacted(url)}", partial(_check_registry, config, config.schema_registry)))
    if config.cache:
        url = config.cache.url
        checks.append((f"cache {redacted(url)}", partial(_check_store, url, config.cache.namespace)))
    checks += checks_of_places(config, partial(_check_postgres, config))
    checks += checks_of_machine(config)
    with ThreadPoolExecutor(max_workers=8) as pool:
        for findings in pool.map(lambda named: run_check(*named), checks):
            yield from findings


def checks_of_places(config: Config, check_postgres: Check) -> list[tuple[str, Check]]:
    """Return the checks of the places of the log and the copy, with their names."""
    found: list[tuple[str, Check]] = []
    if config.log:
        found.append((f"log {redacted(config.log.path)}", partial(check_folder, "log", config.log.path)))
    if config.copy_:
        url = config.copy_.url
        check = check_postgres if config.copy_.is_postgres else partial(check_folder, "copy", url)
        found.append((f"copy {redacted(url)}", check))
    return found


def run_check(name: str, check: Check) -> list[Finding]:
    """Run one check; an error is its finding."""
    try:
        found = check()
    except RelayError as error:
        return [Finding(name, str(error).removeprefix(f"{name}: "), error.exit_code)]
    return [Finding(name, found)] if isinstance(found, str) else found


def _check_kafka(config: Config) -> list[Finding]:
    admin = topics.connect(config)
    found = topics.survey(admin, config, list(config.tables))
    has_acls = config.kafka.iam is None
    forbidden = permissions.forbidden_topics(admin, found) if has_acls else {}
    findings = [
        Finding(f"kafka {config.kafka.bootstrap_servers}", "reachable"),
        *(_topic_finding(each, forbidden.get(each.topic.name, "")) for each in found),
    ]
    group = KafkaSettings.from_config(config).group
    if has_acls and (problem := permissions.forbidden_group(admin, group)):
        findings.append(Finding(f"group {group}", problem, Unavailable.exit_code))
    return findings


def _topic_finding(found: topics.FoundTopic, forbidden: str) -> Finding:
    topic = found.topic
    name = f"topic {topic.name}"
    count = topics.partitions_text(topic.partitions)
    if problem := found.problem or forbidden:
        return Finding(name, problem, Unavailable.exit_code)
    if not found.exists:
        return Finding(name, f"will be created with {count}")
    for advice in filter(None, (found.hint, found.advice)):
        count += f"; {advice}"
    wanted = int(topic.settings.get("max.message.bytes", 0))
    if found.largest_message is not None and found.largest_message < wanted:
        largest = found.largest_message
        return Finding(
            name, f"{count}; max.message.bytes is {largest}, so larger changes become dead letters; {wanted} fits all"
        )
    return Finding(name, count)


def _check_registry(config: Config, registry: SchemaRegistryConfig) -> list[Finding]:
    """Look up the subjects of the topics in the schema registry. Raises ``Unavailable``."""
    findings = [Finding(f"schema registry {redacted(registry.url)}", "reachable")]
    with closing(open_registry(registry)) as schemas:
        from relay.avro.schema_registry import COMPATIBILITY

        subjects = set(schemas.subjects())
        for topic in map(config.topic, config.tables):
            detail = f"will be created with compatibility {COMPATIBILITY}"
            if f"{topic}-value" in subjects:
                versions, level = schemas.subject(topic)
                compatibility = f"compatibility {level}" if level else "the registry's default compatibility"
                detail = f"{versions} version{'' if versions == 1 else 's'}, {compatibility}"
                if level == "NONE":
                    detail += ", so old readers may be unable to read a new version"
            findings.append(Finding(f"subject {topic}-value", detail))
    return findings


def open_registry(registry: SchemaRegistryConfig) -> RegistrySchemas:
    with needs("registry", "`schema_registry`"):
        from relay.avro.schema_registry import RegistrySchemas
    return RegistrySchemas(
        registry.url, registry.on_incompatible, access=registry.access(), timeout=_SOCKET_TIMEOUT, retries=0
    )


def _check_schema(config: Config, registry: SchemaRegistryConfig, table: TableSchema) -> list[Finding]:
    """Report if the registry would refuse the table's current schema. Raises ``Unavailable``."""
    topic = config.topic(table.table)
    with closing(open_registry(registry)) as schemas:
        problem = schemas.refusal(topic, change_schema(table))
    if not problem:
        return []
    refused = registry.on_incompatible == "fail"
    return [Finding(f"schema of {topic}", problem, RelayError.exit_code if refused else 0)]


def _check_source(config: Config, source: SourceConfig) -> list[Finding]:
    if isinstance(source, DynamoDBConfig):
        return _check_dynamodb(config, source)
    return _check_sql(config, source)


def _check_dynamodb(config: Config, source: DynamoDBConfig) -> list[Finding]:
    """Look up the table of ``source`` and its stream, within 35 seconds. Raises ``Unavailable``."""
    with needs("dynamodb", f'the source "{source.name}"'):
        from relay.dynamodb import config_match, describe
        from relay.dynamodb.permissions import refusals
        from relay.dynamodb.source import table_schema
    client, streams = describe.clients(source, probe=True)
    with closing(client), closing(streams):
        found = describe.describe(client, source, streams, patience=_TABLE_TIMEOUT)
        of_model = check_model(client, source)
        refused = list(refusals(source, client, streams, found))
    key = ", ".join(f"{column.name} ({column.type})" for column in found.key)
    protected = _protected((name, rule.kind) for name, rule in source.rules(found.table).items())
    detail = f"table {found.table}, key {key}, stream of {found.view_type}{protected}"
    stream = Finding(f"source {source.name}", detail)
    findings = [stream, *check_start(source, found), *check_columns(source, found), *of_model]
    findings += [Finding(f"reading of {source.name}", problem, Unavailable.exit_code) for problem in refused]
    if problem := config_match.refused_rule(found, source):
        findings.append(Finding(f"source {source.name}", problem, ConfigError.exit_code))
    findings += [*check_images(config, found), *check_cache_keys(config, found)]
    if config.schema_registry:
        schema = partial(_check_schema, config, config.schema_registry, table_schema(source, found))
        findings += run_check(f"schema of {config.topic(found.table)}", schema)
    return findings


def _check_sql(config: Config, source: VitessConfig | MySQLConfig) -> list[Finding]:
    """Connect as the relay does, and read the layout of every table. Raises ``RelayError`` if one cannot be relayed."""
    with closing(open_source(source)) as opened:
        opened.connect()
        tables = opened.tables()
    count = f"{len(tables)} table{'' if len(tables) == 1 else 's'}"
    if absent := missing_tables(source.named_tables, tables):
        there = "create it, or remove it from `tables` and `where`"
        raise Unavailable(f"it has no table {', '.join(absent)}: {there}")
    findings = [Finding(f"source {source.name}", f"{source.database}: {count}")]
    if isinstance(source, MySQLConfig):
        findings += _server_findings(source)
    for table in tables:
        names = [column.name for column in table.key]
        hashed = ", ".join(names[: table.hash_columns])
        key = f"key {', '.join(names)}, hashed by {hashed}"
        findings.append(Finding(f"table {table.table}", f"{key}{_protected(table.protected)}"))
        findings += check_cache_keys_of(config, table)
        if config.schema_registry:
            schema = partial(_check_schema, config, config.schema_registry, table)
            findings += run_check(f"schema of {config.topic(table.table)}", schema)
    return findings


def _server_findings(source: MySQLConfig) -> list[Finding]:
    """Report the servers of all shards whose binlog cannot be read now, which the relay would notice later."""
    from relay.mysql.source import MySQLSource

    unreadable = MySQLSource(source).unreadable()
    return [Finding(f"server {address}", problem, Unavailable.exit_code) for address, problem in unreadable.items()]


def _protected(columns: Iterable[tuple[str, str]]) -> str:
    shown = ", ".join(f"{name} ({kind})" for name, kind in columns)
    return f"; protects {shown}" if shown else ""


def check_images(config: Config, found: describe.Description) -> list[Finding]:
    """Check that the stream carries the rows that a copy of the table needs."""
    if config.copy_ is None:
        return []
    name = f"copy of {found.table}"
    if found.view_type in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES"):
        return [Finding(name, "every change carries the new row")]
    return [
        Finding(
            name,
            f"a stream of {found.view_type} does not carry the rows, so every changed row would be marked incomplete; "
            "set the table's StreamViewType to NEW_IMAGE or NEW_AND_OLD_IMAGES",
            Unavailable.exit_code,
        )
    ]


def check_start(source: DynamoDBConfig, found: describe.Description) -> list[Finding]:
    """Check that the token in ``start`` belongs to the stream of ``source``."""
    if not isinstance(source.start, StartAtToken):
        return []
    name, arn = f"start of {source.name}", source.start.stream_arn
    if arn != found.stream_arn:
        detail = f"the token in {source.start.path} belongs to stream {arn}, not to {found.stream_arn}"
        return [Finding(name, detail, ConfigError.exit_code)]
    return [Finding(name, f"the token in {source.start.path} belongs to this stream")]


def check_columns(source: DynamoDBConfig, found: describe.Description) -> list[Finding]:
    """Compare the declared columns of ``source`` with its table."""
    if not source.columns:
        return []
    from relay.dynamodb import config_match

    name = f"columns of {source.name}"
    if problems := config_match.mismatches(found, source.columns):
        return [Finding(name, problem, Unavailable.exit_code) for problem in problems]
    return [Finding(name, f"{len(source.columns)} declared, matching table {found.table}")]


def check_model(client: DynamoDBClient, source: DynamoDBConfig) -> list[Finding]:
    """Compare the class that declares the table of ``source`` with the table. Raises ``Unavailable``."""
    if not source.model:
        return []
    from relay.dynamodb import describe

    name = f"model of {source.name}"
    if problems := describe.differences(client, source, source.model):
        return [Finding(name, problem, Unavailable.exit_code) for problem in problems]
    return [Finding(name, f"{source.model} matches table {source.table_name}")]


def check_cache_keys(config: Config, found: describe.Description) -> list[Finding]:
    """Check that every change of a table carries the columns of its cache key templates."""
    problem = (
        f"a stream of {found.view_type} does not carry it with every change: use key columns, or set the table's "
        "StreamViewType to NEW_AND_OLD_IMAGES"
    )
    key = [column.name for column in found.key]
    problem = "" if found.view_type == "NEW_AND_OLD_IMAGES" else problem
    return _cache_key_findings(config, found.table, key, {}, problem)


def check_cache_keys_of(config: Config, table: TableSchema) -> list[Finding]:
    """Check that a table has the columns of its cache key templates, and that applications make the same keys."""
    columns = {column.name: column for column in table.row or ()}
    return _cache_key_findings(config, table.table, [column.name for column in table.key], columns)


def _cache_key_findings(
    config: Config, table: str, key: Collection[str], columns: Mapping[str, Column], problem: str = ""
) -> list[Finding]:
    """``columns``: all of the table, by name; empty if they are not known.

    ``problem``: why not every change carries both images, and what to do; empty if every change does.
    """
    findings: list[Finding] = []
    for text in config.cache.keys.get(table, ()) if config.cache else ():
        named = Template.parse(text).columns
        non_key = [column for column in named if column not in key]
        name = f"cache key {text}"
        if unfit := next(filter(None, (_unfit(table, columns[each]) for each in named if each in columns)), None):
            findings.append(Finding(name, f"{unfit}: use another column", Unavailable.exit_code))
        elif unknown := [column for column in non_key if columns and column not in columns]:
            # I6: such a key would never be invalidated.
            nearest = difflib.get_close_matches(unknown[0], columns, n=1, cutoff=0.5)
            hint = f"did you mean `{nearest[0]}`?" if nearest else f"its columns are {', '.join(columns)}"
            findings.append(Finding(name, f"{table} has no column `{unknown[0]}`; {hint}", Unavailable.exit_code))
        elif not non_key:
            findings.append(Finding(name, f"every change of {table} carries it"))
        elif not problem:
            missing = " or ".join(f"`{column}`" for column in non_key)
            findings.append(Finding(name, f"items of {table} without {missing} invalidate nothing"))
        else:
            # I6: an update or a delete would not say which entry held the value it replaced.
            detail = f"`{non_key[0]}` is not in the key of {table}, and {problem}"
            findings.append(Finding(name, detail, Unavailable.exit_code))
    return findings


def _unfit(table: str, column: Column) -> str | None:
    """Return why a column should not be in a cache key; None if it may."""
    if column.type == ColumnKind.SET:
        return f"`{column.name}` is a SET, so every change of {table} would invalidate the whole namespace"
    if column.type == ColumnKind.FLOAT:
        return f"`{column.name}` is a FLOAT: databases print six of its digits, so applications would make another key"
    if column.is_address:  # I6
        return (
            f"`{column.name}` is in keys as base64, and drivers return its text, so applications would make another key"
        )
    return None


def _check_store(url: str, namespace: str) -> str:
    """Ask the servers of the store what the consumer will ask them, and write nothing. Raises ``Unavailable``."""
    keys = [entry_key(namespace, f"check {number}") for number in range(100)]  # on all servers, with some luck
    with closing(open_store(url, timeout=_SOCKET_TIMEOUT)) as store:
        try:
            store.losses()
            store.compare_and_set([ConditionalWrite(key, READ, None, None, KEEP) for key in keys])
        except RelayError as error:
            raise Unavailable(str(error)) from error
    return "reachable"


def check_folder(kind: str, url: str) -> str:
    """Check that a local folder is writable; other stores are not checked. Raises ``Unavailable``."""
    parts = urlsplit(url)
    if parts.scheme not in ("", "file", "delta") or parts.netloc:
        return "not checked: it is not a local folder"
    path = Path(unquote(parts.path))
    # Path.exists raises where one may not look.
    nearest = next(each for each in (path, *path.absolute().parents) if os.path.exists(each))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise Unavailable(f"cannot write to {nearest}: the {kind} needs a writable folder")
    return "writable" if nearest == path else "will be created"


def _check_postgres(config: Config) -> str:
    """Check that the copy can be kept in its database, with a schema for each source. Raises ``Unavailable``."""
    from spark_consumers.sinks import postgres

    assert config.copy_ is not None
    with closing(postgres.PostgresDatabase(config.copy_.url)) as database:
        if missing := postgres.problems(database, [source.name for source in config.sources]):
            raise Unavailable("; ".join(missing))
    return "reachable, and may create its tables"
