"""The config file: every key, its valid values, and the checks across keys. The keys are a contract with users."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from relay.config import overrides, topic_routes, yaml_file
from relay.config.errors import did_you_mean, explain, refuse
from relay.config.http import Http
from relay.config.kafka import KafkaConfig, SchemaRegistryConfig
from relay.config.locations import are_nested
from relay.config.model import ConfigModel, WithVariables
from relay.config.per_table import NO_READS, Envelope
from relay.config.sinks import CacheConfig, CopyConfig, LogConfig
from relay.config.sources import SourceConfig
from relay.config.spark import SparkConfig
from relay.config.template import Template
from relay.config.topic_routes import LONGEST, OTHERS, Place, TopicClaims, Topics, is_common, topic_key, topic_of
from relay.config.topic_settings import PARTITIONS, TopicSettings, chosen, contradictions
from relay.config.value_types import Name, duration_text
from relay.config.yaml_file import Document, Location
from relay.errors import ConfigError
from relay.types.connect import one_name

PUBLISHED = {"columns", "envelope", "key", "keyrange", "on_unencodable", "protect", "tables", "tombstones", "where"}
"""The keys of sources that decide which rows and values are published."""

_READING = {"start": "copy", "snapshot": "initial", "on_gap": "resnapshot", "on_alter": "resnapshot"}
"""By key of a source, the value that lets it read its tables beside their stream."""

Internal = Literal["checkpoints", "schemas", "gaps", "dead_letters", "watermarks", "ddl"]
INTERNAL: tuple[Internal, ...] = ("checkpoints", "schemas", "gaps", "dead_letters", "watermarks")


@dataclass(frozen=True)
class _Origin:
    """The file from which a config was read. Configs from two files are equal if their content is."""

    file: str = field(default="relay.yaml", compare=False)


class Config(ConfigModel):
    """The complete file. Checks across keys are validators, so they also apply to a config built in Python."""

    name: Name
    """The name of this relay: the prefix of its internal topics and consumer groups."""

    kafka: KafkaConfig
    """The Kafka cluster to publish to."""

    schema_registry: SchemaRegistryConfig | None = None
    """Where to register the Avro schemas. Without a registry, they go to the topic `<name>.schemas`."""

    topics: Topics = topic_routes.DEFAULT
    """The topic of a table's changes, or a mapping with a topic for each table: `{orders: "sales.orders.v1", "audit_*":
    "audit", default: "{name}.{table}"}`. A character of `{table}` that Kafka does not allow becomes `_xHHHH_`, with its
    code point in hexadecimal. Tables share a topic, here `audit`, if it is named without `{table}`."""

    topic_settings: TopicSettings | None = None
    """The partitions and Kafka's settings of the topics of tables, by table, with the same patterns as `topics`:
    `{orders: {partitions: 24, retention.ms: 604800000}, "audit_*": {partitions: 3}, default: {replication.factor: 3,
    min.insync.replicas: 2}}`. A topic is created with them; `relay check` compares them with an existing one."""

    envelope: Envelope = "change"
    """The form of the records. `change` is the relay's own form. `debezium` is the form that Debezium's connectors
    write through an Avro converter; it needs `schema_registry`. A source may set another form."""

    sources: list[SourceConfig] = Field(min_length=1)
    """What to relay. `type` says which keys a source has."""

    # For each source, the index of its entry in the file.
    _entries: list[int] = PrivateAttr(default_factory=list)
    _claims: TopicClaims = PrivateAttr()
    _shared: frozenset[str] = PrivateAttr(frozenset())

    cache: CacheConfig | None = None
    """The cache that `relay consume cache` keeps honest."""

    log: LogConfig | None = None
    """The change log that `relay consume log` appends to."""

    copy_: CopyConfig | None = Field(default=None, alias="copy")
    """The second copy of the tables that `relay consume copy` keeps up to date."""

    spark: SparkConfig = Field(default_factory=SparkConfig)
    """The Spark that `relay consume` runs on. By default it runs on this machine."""

    http: Http | None = None
    """Where `relay run` serves its metrics, health and status, such as `127.0.0.1:9400`. A mapping also says who has
    access."""

    # The file that `load` has read.
    _origin: _Origin = PrivateAttr(default_factory=_Origin)

    @model_validator(mode="after")
    def _check_across_keys(self) -> Self:
        split = [source.in_envelope(self.envelope).split() for source in self.sources]
        self._entries = [number for number, sources in enumerate(split) for _ in sources]
        # The model is frozen. From here on, each DynamoDB source has one table, or tags that find its tables.
        object.__setattr__(self, "sources", [source for sources in split for source in sources])
        self._shared = self._find_shared()
        self._claims = TopicClaims(self.name, self.topics, tuple(self.own_topics.values()), self.topic_settings_of)
        refuse(self._problems())
        for source in self.sources:
            source.share(self._claims)
        self.claim(())
        return self

    @property
    def claims(self) -> TopicClaims:
        """The owner of each topic, which the sources know, too."""
        return self._claims

    @property
    def shared_topics(self) -> frozenset[str]:
        """The topics that several tables have, or that any table gets that matches a pattern. They stay the same when
        the tables of sources are found."""
        return self._shared

    @property
    def common_topics(self) -> frozenset[str]:
        """The shared topics, and those that may have been shared: their names say nothing of their tables."""
        return self._shared | {self.topic(table) for table in self.tables if is_common(self.topics, table)}

    def _find_shared(self) -> frozenset[str]:
        found = Counter(map(self.topic, self.tables))
        for key, template in () if self.names_tables else topic_routes.by_table(self.topics).items():
            if is_common(template, key):
                tables = 2 if "*" in key or key == OTHERS else key not in self.tables
                found[topic_of(self.name, template, key)] += tables
        return frozenset(topic for topic, tables in found.items() if tables > 1)

    def claim(self, relayed: Iterable[Place]) -> None:
        """Assign topics first to tables that sources name, then to those ``relayed`` before, then to others."""
        named = ((source.name, table) for source in self.sources for table in source.table_names)
        self._claims.begin(dict.fromkeys([*named, *relayed]))

    def entry_of(self, number: int) -> int:
        """Return the number of the file's entry that the source ``number`` comes from. Both count from 0."""
        return self._entries[number]

    @property
    def file(self) -> str:
        """The file that this config was loaded from, for commands shown to people; `relay.yaml` if there is none."""
        return self._origin.file

    @property
    def names_tables(self) -> bool:
        """Whether every source names its tables, so that no database has to be asked."""
        return all(source.names_tables for source in self.sources)

    @property
    def tables(self) -> dict[str, SourceConfig]:
        return {table: source for source in self.sources for table in source.table_names}

    def with_tables(self, find: Callable[[SourceConfig], Iterable[str] | None], *, only_split: bool = False) -> Self:
        """Return this config with the tables that ``find`` returns for sources that name none. Raises ``ConfigError``.

        A source for which it returns None stays as it is. ``only_split``: ask only for sources whose tables become
        sources of their own.
        """
        if self.names_tables:
            return self
        split = [
            [source]
            if source.names_tables
            or (only_split and not source.traits.one_source_per_table)
            or (tables := find(source)) is None
            else source.for_tables(sorted(tables))
            for source in self.sources
        ]
        found = self.model_copy(update={"sources": [source for sources in split for source in sources]})
        found._entries = list(range(len(found.sources)))
        for _, problem in found._problems():
            raise ConfigError(f"after looking up the tables of the sources: {problem}")
        return found

    def _problems(self) -> Iterator[tuple[Location, str]]:
        finds = self._source_problems, self._envelope_problems, self._topic_problems, self._shared_problems
        for find in (*finds, self._cache_problems):
            yield from find()
        log, copy = self.log, self.copy_.location if self.copy_ else None
        # I1: in the folder of a Delta table, VACUUM deletes files that do not belong to the table.
        if log is not None and copy is not None and are_nested(log.path, copy):
            yield ("copy", "url"), "neither it nor `log.path` may be inside the other: Delta would delete its files"

    def _source_problems(self) -> Iterator[tuple[Location, str]]:
        names: set[str] = set()
        tables: dict[str, str] = {}
        for i, source in zip(self._entries, self.sources, strict=True):
            if source.name in names:
                yield ("sources", i, "name"), f"another source is already called {source.name!r}"
            names.add(source.name)
            for table in source.table_names:
                if (other := tables.setdefault(table, source.name)) != source.name:
                    yield (
                        ("sources", i, source.table_key),
                        f"source {other!r} already reads table {table!r}, "
                        f"and both would write to topic {self.topic(table)!r}",
                    )

    def _envelope_problems(self) -> Iterator[tuple[Location, str]]:
        """Yield what sources in Debezium's envelope lack, and what cannot read their records."""
        for i, source in zip(self._entries, self.sources, strict=True):
            if not source.is_debezium:
                continue
            if self.schema_registry is None:
                yield ("sources", i), "`envelope: debezium` needs `schema_registry`: its records name the schemas there"
            for key in ("tombstones", "key"):
                if getattr(source, key) in (True, "item"):
                    yield (
                        ("sources", i, key),
                        "belongs to `envelope: change`: in Debezium's, the complete primary key is always the key, and "
                        "a null follows each deletion; leave it out",
                    )
            if problem := one_name(getattr(source, "columns", None) or ()):
                yield ("sources", i, "columns"), problem
            for key, read in _READING.items():
                if getattr(source, key, None) == read:  # I7
                    yield ("sources", i, key), f"`{read}` {NO_READS}"
            cached = self.cache.keys.keys() & set(source.table_names) if self.cache is not None else ()
            for table in cached:
                yield ("cache", "keys", table), f"cannot be read: source {source.name} has `envelope: debezium`"
            for key, consumer in (("log", self.log), ("copy", self.copy_)):
                if consumer is not None:
                    problem = f"reads all tables, but not the records of source {source.name}, which has `envelope: "
                    yield (key,), f"{problem}debezium`: move that source to another config, with another `name`"

    def _topic_problems(self) -> Iterator[tuple[Location, str]]:
        tables = list(dict.fromkeys(self.tables))
        if self.names_tables:  # otherwise checked once the tables are known
            routed = () if isinstance(self.topics, str) else self.topics
            known = [*tables, *self._claims.refused]  # I12: a table without its topic is left out, not unknown
            yield from topic_routes.unknown_tables("topics", routed, known)
            yield from topic_routes.unknown_tables("topic_settings", self.topic_settings or (), known)
        shared = {table for table in tables if self.topic(table) in self._shared}
        yield from contradictions(self.topic_settings or {}, self.tables, shared)
        # Kafka itself refuses two topics that differ only in dots and underscores.
        own = self.own_topics.values()
        taken: dict[str, tuple[str, str | None]] = {topic_key(topic): (topic, None) for topic in own}
        is_set = "topics" in self.model_fields_set
        places = [(topic_routes.route(self.topics, table)[0] if is_set else ("name",), table) for table in tables]
        topics = [(place, table, self.topic(table)) for place, table in places]
        long: list[tuple[Location, str]] = [(("name",), topic) for topic in own if len(topic) > LONGEST]
        # Topics of tables are cut, so they say nothing that the relay's own do not.
        long = long[:1] or [(place, topic) for place, _, topic in topics if len(topic) > LONGEST]
        for place, topic in long:
            yield place, f"topic {topic!r} is longer than the {LONGEST} characters that Kafka allows"
        for place, table, topic in topics:
            mine = topic, "" if is_common(self.topics, table) else table
            if not is_topic(topic):
                yield place, f"Kafka does not allow the topic name {topic!r}"
            elif (other := taken.setdefault(topic_key(topic), mine)) != mine:  # I8
                yield place, f"topic {topic!r} of table {table!r} collides with topic {other[0]!r}"

    def _shared_problems(self) -> Iterator[tuple[Location, str]]:
        """Yield what sources and settings may not have where several tables share a topic."""
        for i, source in zip(self._entries, self.sources, strict=True):
            topics = self._shared.intersection(map(self.topic, source.table_names))
            for topic in sorted(topics if source.names_tables else self._shared)[:1]:
                if source.is_debezium:
                    problem = f"`envelope: debezium` gives each table a topic of its own, but several share {topic!r}"
                    yield ("sources", i), problem
                if source.tombstones:  # I8
                    problem = f"does not fit topic {topic!r}: its tables may have equal keys, and a null says no table"
                    yield ("sources", i, "tombstones"), problem
        first: dict[str, str] = {}
        for table in (each for each in self.tables if self.topic(each) in self._shared):
            other = first.setdefault(self.topic(table), table)
            both = self.topic_settings_of(table), self.topic_settings_of(other)
            for name in topic_routes.different_settings(*both):  # I8
                problem = f"tables {other!r} and {table!r} share topic {self.topic(table)!r}, so `{name}` must be "
                yield max(each[name][0] for each in both if name in each), f"{problem}the same for both"

    def _cache_problems(self) -> Iterator[tuple[Location, str]]:
        if (cache := self.cache) is None:
            return
        for source in self.sources:
            for table in source.protect:
                for i, text in enumerate(cache.keys.get(table, ())):
                    # I6: no change would say which entry holds the row.
                    for column in (each for each in Template.parse(text).columns if source.protects(table, each)):
                        problem = f"source {source.name} protects `{column}`: use another column"
                        yield ("cache", "keys", table, i), problem
        yield from self._late_invalidations(cache)
        tables = list(self.tables)
        for table in cache.keys if self.names_tables else ():  # otherwise checked once the tables are known
            if table not in tables:
                hint = did_you_mean(table, tables, "known tables: ")
                yield ("cache", "keys", table), f"no source reads table {table!r}; {hint}"

    def _late_invalidations(self, cache: CacheConfig) -> Iterator[tuple[Location, str]]:
        """Yield why this config lets invalidations come so late that the consumer would count as behind."""
        for i, source in zip(self._entries, self.sources, strict=True):
            if source.late_by is None:
                continue  # a server without others is read however late it is
            is_cached = not source.names_tables or any(table in cache.keys for table in source.table_names)
            if is_cached and cache.tombstone_ttl <= 2 * source.late_by:
                yield (
                    ("cache", "tombstone_ttl"),
                    f"{duration_text(cache.tombstone_ttl)} is not more than twice `sources[{i}].max_lag` "
                    f"({duration_text(source.late_by)}), so a lagging replica of {source.name} can make invalidations "
                    f"late: raise tombstone_ttl, or lower max_lag",
                )

    def topic(self, table: str) -> str:
        """Return the topic of the changes of ``table``, with a name that Kafka allows."""
        return topic_of(self.name, self.topics, table)

    def topic_settings_of(self, table: str) -> dict[str, tuple[Location, str]]:
        """Return the settings of the topic of ``table``, each with its place in the file, and its partitions."""
        partitions = {PARTITIONS: (("kafka", "partitions"), str(self.kafka.partitions))}
        return {**partitions, **chosen(self.topic_settings or {}, table)}

    def partitions(self, table: str) -> int:
        return int(self.topic_settings_of(table)[PARTITIONS][1])

    @property
    def own_topics(self) -> dict[str, str]:
        """The relay's own topics by their kind. Only SQL sources have a topic for statements."""
        has_statements = any(source.traits.has_statements for source in self.sources)
        kinds: tuple[Internal, ...] = (*INTERNAL, "ddl") if has_statements else INTERNAL
        return {kind: self.internal(kind) for kind in kinds}

    def internal(self, kind: Internal) -> str:
        return f"{self.name}.{kind}"

    def hashes(self) -> dict[str, str]:
        """Return, by source, a hash of the settings that decide which rows and values are published, and where."""
        found = {}
        for source in self.sources:
            said = source.model_dump(mode="json", include=PUBLISHED, exclude_defaults=True)
            # In their order: the first pattern that matches decides (I2).
            routes = [*self.topics.items()] if isinstance(self.topics, dict) else self.topics
            text = json.dumps([routes, said | {"tables": sorted(said.get("tables") or ())}], sort_keys=True)
            found[source.name] = blake2b(text.encode(), digest_size=8).hexdigest()
        return found

    def client(self, role: str) -> dict[str, Any]:
        """Return the connection settings of a Kafka client called ``<name>-<role>`` in the brokers' logs and quotas."""
        return {**self.kafka.client(), "client.id": f"{self.name}-{role}"}


def is_topic(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None and name not in (".", "..")


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of configs, for editors: what ``relay check --schema`` prints."""
    return {"$schema": WithVariables.schema_dialect, **Config.model_json_schema(schema_generator=WithVariables)}


def load(path: Path | str, settings: Sequence[str] = ()) -> Config:
    """Read and check the file at ``path``, without connecting to anything.

    ``settings``: texts ``key=value`` that override the file. Raises ``ConfigError`` with one line ``file:line:column:
    problem`` for each problem.
    """
    return read(Path(path), settings)[0]


def loaded(config: Config | Path | str) -> Config:
    """Return a config that may be given as its file. Raises ``ConfigError``."""
    return config if isinstance(config, Config) else load(config)


def read(path: Path, settings: Sequence[str] = ()) -> tuple[Config, Document]:
    """Return the config as ``load`` does, and the data of the file with ``settings`` applied."""
    document = yaml_file.read(path)
    return validate(document, path, settings), document


def validate(document: Document, path: Path, settings: Sequence[str] = ()) -> Config:
    """Return the config in a document. Relative paths start at the folder of ``path``. Raises ``ConfigError``."""
    if not isinstance(document.data, dict):
        problem = "is empty" if document.data is None else "must be a mapping of keys to values"
        raise ConfigError(f"{path}:1:1: the file {problem}")
    overrides.apply(document, settings, Config)
    while True:
        try:
            config = Config.model_validate(document.data, context={"file": path}, by_alias=True, by_name=False)
        except ValidationError as error:
            if not overrides.read_as_wanted(document, error):
                raise explain(document, error, Config) from None
        else:
            config._origin = _Origin(str(path))
            return config
