"""``relay check``: independent checks of everything in a config, with timeouts and the relay's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING

from relay.avro.debezium import value_schema
from relay.avro.registry import open_registry
from relay.avro.schema import namespace_of
from relay.cache import ConditionalWrite, entry_key, open_store
from relay.cache.store import KEEP, READ
from relay.config import Config, HttpConfig, SchemaRegistryConfig, SourceConfig, VitessConfig, redacted
from relay.config.errors import MISSPELT, did_you_mean, nearest
from relay.config.template import Template
from relay.engine.kinds import kind_of, open_source
from relay.errors import ConfigError, RelayError, Unavailable, with_file
from relay.jvm.connectors import connectors_of, installed_spark
from relay.jvm.java import find_java
from relay.kafka import permissions, topics
from relay.kafka.checkpoints import committed_records, requested_partitions
from relay.kafka.settings import KafkaSettings, unusable_security
from relay.native import CoreMissing, core
from relay.observe.access import Access, client_side
from relay.operations.status import relayed_tables
from relay.process.connections import Closable
from relay.source import CheckedTable, Finding
from relay.stream.new_tables import known_in
from relay.stream.planning import changed_start
from relay.stream.topic_partitions import moved_keys, moved_tables
from relay.table import Column, TableSchema
from relay.types.columns import ColumnKind
from spark_consumers.sinks.places import copy_target, log_target

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


_SOCKET_TIMEOUT = 5.0

Check = Callable[[], str | list[Finding]]  # returns a message or findings; raises a ``RelayError`` for a problem


def run(config: Config, *, offline: bool = False) -> Iterator[Finding]:
    """Run all checks, and yield their findings in the config's order. ``offline``: check only this machine."""
    if offline:
        yield Finding(f"config {config.file}", "valid; nothing was connected to")
    config, failed = (config, {}) if offline else _with_tables(config)
    if "" in failed:
        yield Finding(f"config {config.file}", str(failed[""]), ConfigError.exit_code)
    checks = list(_offline(config) if offline else _online(config, failed))
    if log := config.log:
        checks.append((f"log {redacted(log.path)}", lambda: log_target(config, log).check()))
    if copy := config.copy_:
        checks.append((f"copy {redacted(copy.url)}", lambda: copy_target(config, copy).check(offline=offline)))
    checks += _of_machine(config)
    with ThreadPoolExecutor(max_workers=8) as pool:
        for findings in pool.map(lambda named: _run(*named), checks):
            yield from findings


def _with_tables(config: Config) -> tuple[Config, dict[str, RelayError]]:
    """Find the tables of all sources that name none, concurrently; return the config with them.

    Also return, by the name of the source, why tables are unknown. The key "" says why the tables conflict.
    """
    failed: dict[str, RelayError] = {}
    found: dict[str, list[str]] = {}

    def find(source: SourceConfig) -> None:
        try:
            found[source.name] = list(kind_of(source).find_tables(source))
        except RelayError as error:
            failed[source.name] = error
            found.pop(source.name, None)  # by an earlier look

    asked = [source for source in config.sources if not source.names_tables]
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(find, asked))
        if config.claims.is_contested:
            with suppress(RelayError):  # Kafka's error, which Kafka's own check reports
                config.claim(relayed_tables(config))  # a contested topic belongs to the table that was there first
                list(pool.map(find, asked))
    try:
        return config.with_tables(lambda source: found.get(source.name)), failed
    except ConfigError as error:
        return config, failed | {"": error}


def _online(config: Config, failed: Mapping[str, RelayError]) -> Iterator[tuple[str, Check]]:
    """Yield the checks that connect. ``failed``: why the tables of some sources are unknown, by source."""
    yield f"kafka {config.kafka.bootstrap_servers}", partial(_check_kafka, config)
    for each in config.sources:
        yield f"source {each.name}", partial(_check_source, config, each, failed.get(each.name))
    if registry := config.schema_registry:
        yield f"schema registry {redacted(registry.url)}", partial(_check_registry, config, registry)
    if cache := config.cache:
        yield f"cache {redacted(cache.url)}", partial(_check_store, cache.url, cache.namespace)


def _offline(config: Config) -> Iterator[tuple[str, Check]]:
    yield "kafka.producer", partial(_check_security, config)
    for source in config.sources:
        yield f"source {source.name}", partial(_check_opening, source)
    if registry := config.schema_registry:
        yield "schema registry", partial(_check_packages, partial(open_registry, config, registry))
    if cache := config.cache:
        yield f"cache {redacted(cache.url)}", partial(_check_packages, partial(open_store, cache.url))


def _of_machine(config: Config) -> Iterator[tuple[str, Check]]:
    """Yield checks of this machine: the files of the HTTP server, and what the consumers run on."""
    if config.http and config.http.certificate:
        yield f"http {config.http.address}", partial(_check_certificates, config.http)
    yield "compiled core", _check_core
    needs_spark = config.log or config.copy_
    if needs_spark or config.cache:
        yield "java", _check_java if needs_spark else partial(_or_python, _check_java)
        yield "pyspark", _check_spark if needs_spark else partial(_or_python, _check_spark)


def _run(name: str, check: Check) -> list[Finding]:
    try:
        found = check()
    except RelayError as error:
        return [Finding(name, str(error).removeprefix(f"{name}: "), error.exit_code)]
    return [Finding(name, found)] if isinstance(found, str) else found


def _check_kafka(config: Config) -> list[Finding]:
    admin = topics.connect(config)
    found = topics.survey(admin, config, list(config.tables), partial(requested_partitions, config, admin))
    has_acls = config.kafka.iam is None
    problems, contradicted = _contradicted(config, admin)
    if has_acls:
        problems |= permissions.forbidden_topics(admin, found)
    findings = [
        Finding(f"kafka {config.kafka.bootstrap_servers}", "reachable"),
        *(Finding(name, problem, ConfigError.exit_code) for name, problem in contradicted.items()),
        *(_topic_finding(each, problems.get(each.topic.name, "")) for each in found),
    ]
    group = KafkaSettings.from_config(config).group
    if has_acls and (problem := permissions.forbidden_group(admin, group)):
        findings.append(Finding(f"group {group}", problem, Unavailable.exit_code))
    return findings


def _contradicted(config: Config, admin: AdminClient) -> tuple[dict[str, str], dict[str, str]]:
    """Return what contradicts the plans: by topic, that its partitions have changed since the relay published there; by
    source, that it has another start; by table, that it moves."""
    found, contradicted = dict[str, str](), dict[str, str]()
    with suppress(RelayError):  # such as a lack of permissions, which other findings name
        view = committed_records(config, admin)
        for source in config.sources:
            name, read = source.name, view.newest(source.name)
            if (read is None or read.plan is None) and (problem := source.start_problem):
                contradicted[f"source {name}"] = problem
            if read is not None and read.plan is not None:
                of = [table for table, entry in config.tables.items() if entry.name == name]
                moved = moved_tables(known_in(read.plan, read, config.claims), of, config.claims)
                contradicted |= {f"table {table}": problem for table, problem in moved.items()}
                if problem := changed_start(name, str(source.start), read.plan):
                    contradicted[f"source {name}"] = with_file(problem)
                found |= moved_keys(admin, config, read.plan, view.requested_of(name))
    return found, contradicted


def _topic_finding(found: topics.FoundTopic, elsewhere: str) -> Finding:
    topic = found.topic
    name = f"topic {topic.name}"
    if problem := found.problem or elsewhere:
        return Finding(name, problem, Unavailable.exit_code)
    if not found.exists:
        return Finding(name, f"will be created with {topic.described()}")
    detail = "; ".join(filter(None, (topics.partitions_text(topic.partitions), found.hint, found.advice)))
    wanted = int(topic.settings.get("max.message.bytes", 0))
    if (largest := found.largest_message) is not None and largest < wanted:
        detail += f"; max.message.bytes is {largest}, so larger changes become dead letters; {wanted} fits all"
    return Finding(name, detail)


def _check_registry(config: Config, registry: SchemaRegistryConfig) -> list[Finding]:
    """Look up the subjects of the topics in the schema registry. Raises ``Unavailable``."""
    findings = [Finding(f"schema registry {redacted(registry.url)}", "reachable")]
    with closing(open_registry(config, registry, timeout=_SOCKET_TIMEOUT, retries=0)) as schemas:
        from relay.avro.schema_registry import COMPATIBILITY

        subjects = set(schemas.subjects())
        for table, source in config.tables.items():
            topic, namespace = config.topic(table), namespace_of(source.name, table)
            subject, detail = schemas.name_of(topic, namespace), f"will be created with compatibility {COMPATIBILITY}"
            if subject in subjects:
                versions, level = schemas.subject(topic, namespace)
                compatibility = f"compatibility {level}" if level else "the registry's default compatibility"
                detail = f"{versions} version{'' if versions == 1 else 's'}, {compatibility}"
                if level == "NONE":
                    detail += ", so old readers may be unable to read a new version"
            findings.append(Finding(f"subject {subject}", detail))
    return findings


def _check_schema(config: Config, registry: SchemaRegistryConfig, table: TableSchema) -> list[Finding]:
    """Report whether the registry would refuse the table's current schema. Raises ``Unavailable``."""
    topic = config.topic(table.table)
    with closing(open_registry(config, registry, timeout=_SOCKET_TIMEOUT, retries=0)) as schemas:
        problem = schemas.refusal(topic, value_schema(config, table))
    if not problem:
        return []
    refused = registry.on_incompatible == "fail"
    return [Finding(f"schema of {topic}", problem, RelayError.exit_code if refused else 0)]


def _check_source(config: Config, source: SourceConfig, failed: RelayError | None) -> list[Finding]:
    if failed is not None:
        raise failed
    found = kind_of(source).check(source)
    findings = list(found.findings)
    if found.rows and not isinstance(source, VitessConfig) and source.snapshot == "none":
        left_out = "rows that never change again are not published: `snapshot: initial` publishes all"
        findings.append(Finding(f"rows of {source.name}", f"about {found.rows:,} are there now; {left_out}"))
    for table in found.tables:
        findings += [*table.findings, *(table.for_copy if config.copy_ else ()), *check_cache_keys(config, table)]
        if config.schema_registry:
            schema = partial(_check_schema, config, config.schema_registry, table.schema)
            findings += _run(f"schema of {config.topic(table.schema.table)}", schema)
    return findings


def _check_security(config: Config) -> str:
    if problem := unusable_security(config):
        raise Unavailable(f"clients cannot connect with these settings: {problem}")
    return "accepted by librdkafka"


def _check_opening(source: SourceConfig) -> str:
    """Check a source's packages, and the files that its config names, by opening it."""
    open_source(source).close()
    named = ", ".join(source.table_names) or "all tables that it finds"
    return f"{source.type}, {named}; its packages are installed"


def _check_packages(open_: Callable[[], Closable]) -> str:
    """Check the packages of a registry or a store, and the files that its config names, by opening it."""
    open_().close()
    return "its packages are installed"


def _check_certificates(http: HttpConfig) -> str:
    Access(http)
    client_side(http)
    return "its certificate can be loaded"


def _check_core() -> str:
    """Check that the compiled core is installed if the environment requires it. Raises ``ConfigError``."""
    try:
        return "used" if core() is not None else "not used: pure Python does the same work more slowly"
    except CoreMissing as error:
        raise ConfigError(str(error)) from error


def _or_python(check: Callable[[], str]) -> str:
    """Run a check of something that only the Spark engine needs; its error then suggests the Python engine."""
    try:
        return check()
    except Unavailable as error:
        return f"{error}, or use `relay consume cache --engine python`"


def _check_java() -> str:
    return str(find_java())


def _check_spark() -> str:
    """Check that PySpark is installed, in a version that works. Raises ``Unavailable``."""
    version = installed_spark()
    connectors_of(version)
    return version


def check_cache_keys(config: Config, found: CheckedTable) -> list[Finding]:
    """Check that each change of a table has the columns of its cache keys, and that applications build equal keys."""
    table, columns = found.schema.table, {column.name: column for column in found.columns}
    key = [column.name for column in found.schema.key]
    findings: list[Finding] = []
    for text in config.cache.keys.get(table, ()) if config.cache else ():
        named = Template.parse(text).columns
        non_key = [column for column in named if column not in key]
        name = f"cache key {text}"
        if unfit := next(filter(None, (_unfit(table, columns[each]) for each in named if each in columns)), None):
            findings.append(Finding(name, f"{unfit}: use another column", Unavailable.exit_code))
        elif unknown := [column for column in non_key if columns and column not in columns]:
            # I6: such a key would never be invalidated.
            hint = did_you_mean(unknown[0], columns, "its columns are ")
            findings.append(Finding(name, f"{table} has no column `{unknown[0]}`; {hint}", Unavailable.exit_code))
        elif non_key and found.partial:
            # I6: an update or a delete would not say which entry held the old value.
            detail = f"`{non_key[0]}` is not in the key of {table}, and {found.partial}"
            findings.append(Finding(name, detail, Unavailable.exit_code))
        elif found.seen and (unseen := [column for column in non_key if column not in found.seen]):
            # I6
            like = nearest(unseen[0], found.seen, MISSPELT)
            detail = f"none of the items of {table} that were looked at has `{unseen[0]}`, and an item without it"
            detail += f" invalidates nothing{f'; did you mean `{like}`?' if like else ''}"
            findings.append(Finding(name, detail, ConfigError.exit_code if like else 0))
        elif not non_key:
            findings.append(Finding(name, f"every change of {table} carries its columns"))
        else:
            missing = " or ".join(f"`{column}`" for column in non_key)
            findings.append(Finding(name, f"items of {table} without {missing} invalidate nothing"))
    return findings


def _unfit(table: str, column: Column) -> str | None:
    if column.type == ColumnKind.SET:
        return f"`{column.name}` is a SET, so every change of {table} would invalidate the whole namespace"
    if column.type == ColumnKind.FLOAT:
        return f"`{column.name}` is a FLOAT: databases print six of its digits, so applications would use another key"
    if column.is_address:  # I6
        return f"`{column.name}` is in keys as base64, but drivers return text, so applications would use another key"
    return None


def _check_store(url: str, namespace: str) -> list[Finding]:
    """Ask the servers of the store what the consumer will ask, and write nothing. Raises ``Unavailable``."""
    keys = [entry_key(namespace, f"check {number}") for number in range(100)]  # should reach all servers
    with closing(open_store(url, timeout=_SOCKET_TIMEOUT)) as store:
        try:
            store.losses()
            store.compare_and_set([ConditionalWrite(key, READ, None, None, KEEP) for key in keys])
            servers = store.memory()
        except RelayError as error:
            raise Unavailable(str(error)) from error
    return [
        Finding(f"cache {redacted(url)}", "reachable"),
        *(Finding(f"memory of {each.server}", str(each)) for each in servers),
    ]
