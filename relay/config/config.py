"""The config file: every key, its valid values, and the checks across keys.

The keys are a contract with users. The docstring of a key is also its description in ``relay check --schema``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from relay.config import overrides, yaml_file
from relay.config.addresses import POSTGRES, Url
from relay.config.errors import explain, invalid
from relay.config.fields import ConfigModel, Name, Seconds, duration_text
from relay.config.hidden import redacted
from relay.config.http import Http
from relay.config.kafka import KafkaConfig, SchemaRegistryConfig
from relay.config.locations import WITHOUT_COLON, misread
from relay.config.schema_forms import TEMPLATE, implies, like, texts
from relay.config.sources import DynamoDBConfig, SourceConfig
from relay.config.spark import SparkConfig
from relay.config.sql_sources import MySQLConfig, VitessConfig
from relay.config.template import Template
from relay.config.yaml_file import Document, Location
from relay.errors import ConfigError

__all__ = [
    "INTERNAL",
    "CacheConfig",
    "Config",
    "CopyConfig",
    "DynamoDBConfig",
    "Internal",
    "KafkaConfig",
    "LogConfig",
    "MySQLConfig",
    "SchemaRegistryConfig",
    "SourceConfig",
    "SparkConfig",
    "VitessConfig",
    "load",
    "redacted",
]

_TOPIC_LENGTH = 249

REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
MEMCACHED = ("memcached", "memcacheds")

Internal = Literal["checkpoints", "schemas", "gaps", "dead_letters", "watermarks", "ddl"]
INTERNAL: tuple[Internal, ...] = ("checkpoints", "schemas", "gaps", "dead_letters", "watermarks")


class CacheConfig(ConfigModel):
    url: Annotated[str, Url((*REDIS, *MEMCACHED))]
    """The store to invalidate in, such as `redis://127.0.0.1:6379/0` or `memcached://cache1:11211,cache2:11211`."""

    namespace: Annotated[str, like(r"[^\s{}]+")]
    """The prefix of every key of this cache."""

    keys: dict[str, list[str]] = Field(
        min_length=1,
        json_schema_extra={"additionalProperties": {"type": "array", "minItems": 1, "items": texts(TEMPLATE)}},
    )
    """Per table, templates of the cache keys that a change of one of its items invalidates."""

    tombstone_ttl: Seconds = Field(default="1h", validate_default=True)
    """How long the cache remembers an invalidation: longer than a load of the application takes, and more than twice
    the usual lag of its consumer."""

    @field_validator("namespace")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not value or re.search(r"[\s{}]", value):
            raise invalid("must be text without spaces or braces")
        return value

    @field_validator("keys")
    @classmethod
    def _templates(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        problems: list[tuple[Location, str]] = []
        for table, templates in value.items():
            if not templates:
                problems.append(((table,), "needs a template such as order:{order_id}"))
            for i, template in enumerate(templates):
                try:
                    if not Template.parse(template).text:
                        problems.append(((table, i), "a template cannot be empty"))
                except ValueError as error:
                    problems.append(((table, i), str(error)))
        if problems:
            raise invalid(*problems)
        return value


class DeltaConfig(ConfigModel):
    """What the tables in Delta have in common."""

    maintain_every: Seconds = Field(default="1d", validate_default=True)
    """How often the consumer merges small files, and deletes those that no kept version needs."""

    keep_versions: Seconds = Field(default="7d", validate_default=True)
    """For how long an earlier version can be read, also by a query that has begun with it."""


def _in_delta(location: str) -> str:
    """Refuse a folder of this machine that would be taken for another one, or for one of another store."""
    if location.startswith("~"):
        raise invalid("~ is not replaced by a home folder: write the folder in full")
    bare = location.removeprefix("delta+")
    if (problem := misread(bare)) is not None:
        raise invalid(problem)
    parts = urlsplit(bare)
    if parts.scheme in ("file", "delta") and bare != location:
        raise invalid(f"is a folder of this machine: write delta://{parts.path}")
    return location


class LogConfig(DeltaConfig):
    path: Annotated[
        str,
        Field(min_length=1),
        AfterValidator(_in_delta),
        like(rf"(?!(?:file|delta)://[^/]|~|delta\+(?:file|delta):|(?:delta\+)?{WITHOUT_COLON}).+"),
    ]
    """Where to keep the change log, such as `file:///var/lib/relay/log` or `s3a://bucket/log`."""


_UPKEEP = implies({"url": {"pattern": "^postgres"}}, {"maintain_every": False, "keep_versions": False})


class CopyConfig(DeltaConfig):
    model_config = ConfigDict(json_schema_extra=_UPKEEP)

    url: Annotated[str, AfterValidator(_in_delta), Url(("delta", *POSTGRES), prefix="delta+")]
    """Where to keep the copy, such as `delta:///var/lib/relay/copy`, `delta+s3a://bucket/copy` or
    `postgresql://user:password@host:5432/db`."""

    tombstone_retention: Seconds = Field(default="30d", validate_default=True)
    """How long the copy remembers a deleted row. A change older than this, applied again, may bring the row back."""

    items: Literal["json", "variant"] = "json"
    """How the copy keeps DynamoDB's items and other JSON: as text, or as VARIANT in Delta and `jsonb` in PostgreSQL."""

    @property
    def is_postgres(self) -> bool:
        """Whether it is kept in a PostgreSQL, not in Delta."""
        return self.url.partition(":")[0] in POSTGRES

    @model_validator(mode="after")
    def _upkeep_of_delta(self) -> Self:
        given = sorted(self.model_fields_set & DeltaConfig.model_fields.keys())
        if given and self.is_postgres:
            raise invalid(((given[0],), "is for a copy in Delta; PostgreSQL vacuums by itself: remove it"))
        return self

    @model_serializer(mode="wrap", when_used="json")
    def _without_upkeep(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what a file may not have."""
        found: dict[str, Any] = serialize(self)
        return {key: each for key, each in found.items() if not (self.is_postgres and key in DeltaConfig.model_fields)}


@dataclass(frozen=True)
class _Origin:
    """Where a config was read. Configs of two files are equal if they say the same."""

    file: str = field(default="relay.yaml", compare=False)


class Config(ConfigModel):
    """The complete file. Checks across keys are validators, so they also apply to a config built in Python."""

    name: Name
    """The name of this relay: the prefix of its internal topics and consumer groups."""

    kafka: KafkaConfig

    schema_registry: SchemaRegistryConfig | None = None
    """Where to register the Avro schemas. Without it, they go to the topic `<name>.schemas`."""

    topics: Annotated[str, like(r"(?:[^{}]|\{(?:name|table)\}|\{\{|\}\})+")] = "{name}.{table}"
    """The topic of a table's changes."""

    sources: list[SourceConfig] = Field(min_length=1)
    # For each source, the index of its entry in the file.
    _entries: list[int] = PrivateAttr(default_factory=list)

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
        try:
            unknown = set(Template.parse(value).columns) - {"name", "table"}
        except ValueError as error:
            raise invalid(str(error)) from error
        if unknown:
            raise invalid(f"unknown placeholder {{{min(unknown)}}}; use {{name}} and {{table}}")
        return value

    @model_validator(mode="after")
    def _check_across_keys(self) -> Self:
        split = [source.split() for source in self.sources]
        self._entries = [number for number, sources in enumerate(split) for _ in sources]
        # The model is frozen. From here on, every DynamoDB source has one table, or tags to find its tables by.
        object.__setattr__(self, "sources", [source for sources in split for source in sources])
        if problems := [*self._source_problems(), *self._topic_problems(), *self._cache_problems()]:
            raise invalid(*problems)
        return self

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

    def with_tables(self, find: Callable[[SourceConfig], Iterable[str]], *, only_split: bool = False) -> Config:
        """Return this config with the tables that ``find`` returns for sources that name none. Raises ``ConfigError``.

        ``only_split``: find them only for sources of which each table becomes a source of its own.
        """
        if self.names_tables:
            return self
        split = [
            [source]
            if source.names_tables or (only_split and not source.one_source_per_table)
            else source.for_tables(sorted(find(source)))
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
        taken = {topic.replace(".", "_"): topic for topic in own}
        for topic in [*taken.values(), *map(self.topic, tables)]:
            if len(topic) > _TOPIC_LENGTH:
                yield (
                    ("name",),
                    f"topic {topic!r} is longer than the {_TOPIC_LENGTH} characters that Kafka allows",
                )
        for table in tables:
            topic = self.topic(table)
            other = taken.setdefault(topic.replace(".", "_"), topic)
            if not is_topic(topic):
                yield ("topics",), f"Kafka does not allow the topic name {topic!r}"
            elif other != topic or topic in own:
                yield (
                    ("topics",),
                    f"topic {topic!r} of table {table!r} collides with topic {other!r}",
                )

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
                nearest = difflib.get_close_matches(table, tables, n=1, cutoff=0.5)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"known tables: {', '.join(tables)}"
                yield ("cache", "keys", table), f"no source reads table {table!r}; {hint}"

    def _late_invalidations(self) -> Iterator[tuple[Location, str]]:
        """Yield why invalidations may come so late by this config that the consumer would call it behind."""
        for i, source in zip(self._entries, self.sources, strict=True):
            if self.cache is None or not isinstance(source, MySQLConfig):
                continue
            if all(len(servers) == 1 for servers in source.shards.values()):
                continue  # which is read however late it is
            is_cached = not source.names_tables or any(table in self.cache.keys for table in source.table_names)
            if is_cached and self.cache.tombstone_ttl <= 2 * source.max_lag:
                yield (
                    ("cache", "tombstone_ttl"),
                    f"{duration_text(self.cache.tombstone_ttl)} is not more than twice `sources[{i}].max_lag` "
                    f"({duration_text(source.max_lag)}), so a replica that may be read for {source.name} can make "
                    "invalidations late: raise tombstone_ttl, or lower max_lag",
                )

    def topic(self, table: str) -> str:
        """Return the topic of the changes of ``table``."""
        return Template.parse(self.topics).render({"name": self.name, "table": table})

    @property
    def own_topics(self) -> dict[str, str]:
        """The relay's own topics by their kind. Only sources of SQL have statements."""
        kinds: tuple[Internal, ...] = (
            INTERNAL if all(source.type == "dynamodb" for source in self.sources) else (*INTERNAL, "ddl")
        )
        return {kind: self.internal(kind) for kind in kinds}

    def internal(self, kind: Internal) -> str:
        """Return the name of one of the relay's own topics."""
        return f"{self.name}.{kind}"

    def client(self, role: str) -> dict[str, Any]:
        """Return the connection settings of a Kafka client called ``<name>-<role>`` in the brokers' logs and quotas."""
        return {**self.kafka.client(), "client.id": f"{self.name}-{role}"}


def is_topic(name: str) -> bool:
    """Return whether Kafka allows a topic of this name."""
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
    try:
        config = Config.model_validate(document.data, context={"file": path}, by_alias=True, by_name=False)
    except ValidationError as error:
        raise explain(document, error, Config) from None
    config._origin = _Origin(str(path))
    return config
