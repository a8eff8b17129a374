"""The config file: every key, its valid values, and the checks across keys.

The keys are a contract with users. The docstring of a key is also its description in ``relay check --schema``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from relay.config import overrides, yaml_file
from relay.config.cache import CacheConfig
from relay.config.errors import did_you_mean, explain, refuse
from relay.config.fields import ConfigModel, Name, duration_text
from relay.config.http import Http
from relay.config.kafka import KafkaConfig, SchemaRegistryConfig
from relay.config.locations import are_nested, legal
from relay.config.schema_forms import like
from relay.config.sinks import CopyConfig, LogConfig
from relay.config.sources import SourceConfig
from relay.config.spark import SparkConfig
from relay.config.template import Template
from relay.config.topic_claims import Place, TopicClaims, topic_key
from relay.config.yaml_file import Document, Location
from relay.errors import ConfigError

PUBLISHED = {"columns", "key", "keyrange", "on_unencodable", "protect", "tables", "tombstones", "where"}
"""The keys of sources that decide which rows and values are published."""

_TOPIC_LENGTH = 249

Internal = Literal["checkpoints", "schemas", "gaps", "dead_letters", "watermarks", "ddl"]
INTERNAL: tuple[Internal, ...] = ("checkpoints", "schemas", "gaps", "dead_letters", "watermarks")


@dataclass(frozen=True)
class _Origin:
    """Where a config was read. Configs of two files are equal if they say the same."""

    file: str = field(default="relay.yaml", compare=False)


class Config(ConfigModel):
    """The complete file. Checks across keys are validators, so they also apply to a config built in Python."""

    name: Name
    """The name of this relay: the prefix of its internal topics and consumer groups."""

    kafka: KafkaConfig
    """The Kafka cluster to publish to."""

    schema_registry: SchemaRegistryConfig | None = None
    """Where to register the Avro schemas. Without it, they go to the topic `<name>.schemas`."""

    topics: Annotated[str, like(r"(?:[^{}]|\{(?:name|table)\}|\{\{|\}\})+")] = "{name}.{table}"
    """The topic of a table's changes. What Kafka does not allow in a table's name is `_xHHHH_`, its code point."""

    sources: list[SourceConfig] = Field(min_length=1)
    """What to relay. `type` says which keys a source has."""

    # For each source, the index of its entry in the file.
    _entries: list[int] = PrivateAttr(default_factory=list)
    _claims: TopicClaims = PrivateAttr()

    cache: CacheConfig | None = None
    """The cache that `relay consume cache` keeps honest."""

    log: LogConfig | None = None
    """The change log that `relay consume log` appends to."""

    copy_: CopyConfig | None = Field(default=None, alias="copy")
    """The second copy of the tables that `relay consume copy` keeps up to date."""

    spark: SparkConfig = Field(default_factory=SparkConfig)
    """The Spark that `relay consume` runs on. By default it runs on this machine."""

    http: Http | None = None
    """Where `relay run` serves its metrics, health and status, such as `127.0.0.1:9400`; as a mapping, also who may
    look."""

    # What `load` has read.
    _origin: _Origin = PrivateAttr(default_factory=_Origin)

    @field_validator("topics")
    @classmethod
    def _topics_template(cls, value: str) -> str:
        unknown = set(Template.parse(value).columns) - {"name", "table"}
        if unknown:
            raise ValueError(f"unknown placeholder {{{min(unknown)}}}; use {{name}} and {{table}}")
        return value

    @model_validator(mode="after")
    def _check_across_keys(self) -> Self:
        split = [source.split() for source in self.sources]
        self._entries = [number for number, sources in enumerate(split) for _ in sources]
        # The model is frozen. From here on, every DynamoDB source has one table, or tags to find its tables by.
        object.__setattr__(self, "sources", [source for sources in split for source in sources])
        problems = [*self._source_problems(), *self._topic_problems(), *self._cache_problems(), *self._place_problems()]
        refuse(problems)
        self._claims = TopicClaims(self.topic, tuple(self.own_topics.values()))
        for source in self.sources:
            source.share(self._claims)
        self.claim(())
        return self

    @property
    def claims(self) -> TopicClaims:
        """Whose each topic is, which the sources know, too."""
        return self._claims

    def claim(self, relayed: Iterable[Place]) -> None:
        """Give topics to the tables that the sources name, to those that were ``relayed`` before, then to others."""
        named = ((source.name, table) for source in self.sources for table in source.table_names)
        self._claims.begin(dict.fromkeys([*named, *relayed]))

    def entry_of(self, number: int) -> int:
        """Return the number of the entry of the file that the source ``number`` comes from. Both count from 0."""
        return self._entries[number]

    @property
    def file(self) -> str:
        """The file that this was loaded from, for commands that a person is to run; `relay.yaml` if there is none."""
        return self._origin.file

    @property
    def names_tables(self) -> bool:
        """Whether every source names its tables, so that no database has to be asked for them."""
        return all(source.names_tables for source in self.sources)

    @property
    def tables(self) -> dict[str, SourceConfig]:
        """The known tables, each with its source."""
        return {table: source for source in self.sources for table in source.table_names}

    def with_tables(self, find: Callable[[SourceConfig], Iterable[str] | None], *, only_split: bool = False) -> Config:
        """Return this config with the tables that ``find`` returns for sources that name none. Raises ``ConfigError``.

        A source stays as it is where that is None. ``only_split``: find them only for sources whose tables become
        sources of their own.
        """
        if self.names_tables:
            return self
        split = [
            [source]
            if source.names_tables
            or (only_split and not source.one_source_per_table)
            or (tables := find(source)) is None
            else source.for_tables(sorted(tables))
            for source in self.sources
        ]
        found = self.model_copy(update={"sources": [source for sources in split for source in sources]})
        found._entries = list(range(len(found.sources)))
        for _, problem in (*found._source_problems(), *found._topic_problems(), *found._cache_problems()):
            raise ConfigError(f"after looking up the tables of the sources: {problem}")
        return found

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

    def _topic_problems(self) -> Iterator[tuple[Location, str]]:
        tables = list(dict.fromkeys(self.tables))
        several = len(tables) > 1 or not self.names_tables
        if several and "table" not in Template.parse(self.topics).columns:
            yield ("topics",), "must contain {table}, because there are several tables"
            return
        # Kafka itself refuses two topics that differ only in dots and underscores.
        own = self.own_topics.values()
        taken = {topic_key(topic): topic for topic in own}
        key = "topics" if "topics" in self.model_fields_set else "name"
        long = [("name", topic) for topic in own if len(topic) > _TOPIC_LENGTH]
        # Those of tables are cut, so they say nothing that the relay's own do not.
        for place, topic in long or [(key, each) for each in map(self.topic, tables) if len(each) > _TOPIC_LENGTH]:
            yield ((place,), f"topic {topic!r} is longer than the {_TOPIC_LENGTH} characters that Kafka allows")
        for table in tables:
            topic = self.topic(table)
            other = taken.setdefault(topic_key(topic), topic)
            if not is_topic(topic):
                yield ("topics",), f"Kafka does not allow the topic name {topic!r}"
            elif other != topic or topic in own:
                yield (("topics",), f"topic {topic!r} of table {table!r} collides with topic {other!r}")

    def _cache_problems(self) -> Iterator[tuple[Location, str]]:
        for source in self.sources:
            for table in source.protect:
                for i, text in enumerate(self.cache.keys.get(table, ()) if self.cache else ()):
                    # I6: no change would say which entry holds the row.
                    for column in (each for each in Template.parse(text).columns if source.protects(table, each)):
                        problem = f"`{column}` is not published as it is: source {source.name} protects it; use another"
                        yield ("cache", "keys", table, i), problem
        yield from self._late_invalidations()
        if not self.names_tables:
            return  # checked once the tables are known
        tables = list(self.tables)
        for table in self.cache.keys if self.cache else ():
            if table not in tables:
                hint = did_you_mean(table, tables, "known tables: ")
                yield ("cache", "keys", table), f"no source reads table {table!r}; {hint}"

    def _late_invalidations(self) -> Iterator[tuple[Location, str]]:
        """Yield why invalidations may come so late by this config that the consumer would call it behind."""
        for i, source in zip(self._entries, self.sources, strict=True):
            if self.cache is None or source.late_by is None:
                continue  # a server that is alone is read however late it is
            is_cached = not source.names_tables or any(table in self.cache.keys for table in source.table_names)
            if is_cached and self.cache.tombstone_ttl <= 2 * source.late_by:
                yield (
                    ("cache", "tombstone_ttl"),
                    f"{duration_text(self.cache.tombstone_ttl)} is not more than twice `sources[{i}].max_lag` "
                    f"({duration_text(source.late_by)}), so a replica that may be read for {source.name} can make "
                    "invalidations late: raise tombstone_ttl, or lower max_lag",
                )

    def _place_problems(self) -> Iterator[tuple[Location, str]]:
        log, copy = self.log, self.copy_.location if self.copy_ else None
        # I1: VACUUM deletes what is in the folder of a table in Delta and is not the table's.
        if log is not None and copy is not None and are_nested(log.path, copy):
            yield ("copy", "url"), "neither it nor `log.path` may be inside the other: Delta would delete its files"

    def topic(self, table: str) -> str:
        """Return the topic of the changes of ``table``.

        Characters of its name that Kafka does not allow are escaped as in names of Avro, so no two names become one.
        Where that is too long for Kafka, the end of the name becomes the first 16 digits of its SHA-256.
        """
        template = Template.parse(self.topics)
        excess = len(template.render({"name": self.name, "table": legal(table)})) - _TOPIC_LENGTH
        return template.render({"name": self.name, "table": legal(table, max(0, excess))})

    @property
    def own_topics(self) -> dict[str, str]:
        """The relay's own topics by their kind. Only sources of SQL have statements."""
        kinds: tuple[Internal, ...] = (
            (*INTERNAL, "ddl") if any(source.has_statements for source in self.sources) else INTERNAL
        )
        return {kind: self.internal(kind) for kind in kinds}

    def internal(self, kind: Internal) -> str:
        return f"{self.name}.{kind}"

    def hashes(self) -> dict[str, str]:
        """Return, by source, a hash of what decides which rows and values are published, and where."""
        found = {}
        for source in self.sources:
            said = source.model_dump(mode="json", include=PUBLISHED, exclude_defaults=True)
            text = json.dumps([self.topics, said | {"tables": sorted(said.get("tables") or ())}], sort_keys=True)
            found[source.name] = blake2b(text.encode(), digest_size=8).hexdigest()
        return found

    def client(self, role: str) -> dict[str, Any]:
        """Return the connection settings of a Kafka client called ``<name>-<role>`` in the brokers' logs and quotas."""
        return {**self.kafka.client(), "client.id": f"{self.name}-{role}"}


def is_topic(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None and name not in (".", "..")


def load(path: Path, settings: Sequence[str] = ()) -> Config:
    """Read and check the file at ``path``, without connecting to anything.

    ``settings``: texts ``key=value`` that take the place of what the file says. Raises ``ConfigError`` with one line
    ``file:line:column: problem`` for each problem.
    """
    return read(path, settings)[0]


def read(path: Path, settings: Sequence[str] = ()) -> tuple[Config, Document]:
    """Return the config as ``load`` does, and what the file says, with ``settings`` in place."""
    document = yaml_file.read(path)
    return validate(document, path, settings), document


def validate(document: Document, path: Path, settings: Sequence[str] = ()) -> Config:
    """Return the config of a document, whose relative paths begin at the folder of ``path``. Raises ``ConfigError``."""
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
