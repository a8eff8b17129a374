"""The configuration: every key, what it may hold, and what has to fit together.

The keys are a contract with users. Add one here with a docstring, which is also its text in
``relay check --schema``, and take it out of the list of later keys in ``relay.config.errors``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from relay.config import yaml_file
from relay.config.errors import explain, refuse
from relay.config.fields import Address, Name, Part, Seconds, redacted, url
from relay.config.kafka import KafkaConfig, SchemaRegistryConfig
from relay.config.sources import DynamoDBConfig, MySQLConfig, SourceConfig, VitessConfig
from relay.config.template import Template
from relay.config.yaml_file import Location
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
    "VitessConfig",
    "load",
    "redacted",
]

_TOPIC_LENGTH = 249

Internal = Literal["checkpoints", "schemas", "gaps", "dead_letters", "watermarks"]
INTERNAL: tuple[Internal, ...] = ("checkpoints", "schemas", "gaps", "dead_letters", "watermarks")


class CacheConfig(Part):
    url: Annotated[str, url("redis", "rediss", "unix", unbuilt=("memcached", "memcache"))]
    """The Redis to invalidate in, such as `redis://127.0.0.1:6379/0`."""

    namespace: str
    """What every key of this cache begins with."""

    keys: dict[str, list[str]] = Field(min_length=1)
    """Per table, templates of the cache keys that a change of one of its items invalidates."""

    tombstone_ttl: Seconds = 3600.0
    """How long an invalidation is remembered. Longer than any load from the database takes."""

    @field_validator("namespace")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not value or re.search(r"[\s{}]", value):
            raise refuse("has to be text without spaces and braces")
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
            raise refuse(*problems)
        return value


class LogConfig(Part):
    path: Annotated[str, Field(min_length=1)]
    """Where the change log is kept, such as `file:///var/lib/relay/log`."""


class CopyConfig(Part):
    url: Annotated[str, url("delta", unbuilt=("postgresql", "postgres"))]
    """Where the copy is kept, such as `delta:///var/lib/relay/copy`."""

    tombstone_retention: Seconds = 30 * 86400.0
    """How long the copy remembers a deleted row. Changes older than this, applied again, may bring it back."""


class Config(Part):
    """The whole file. The checks across keys are here, so that a config built in Python meets them too."""

    name: Name
    """What this relay is called: its internal topics and consumer groups begin with it."""

    kafka: KafkaConfig

    schema_registry: SchemaRegistryConfig | None = None
    """Where the Avro schemas go. Without it: into the topic `<name>.schemas`."""

    topics: str = "{name}.{table}"
    """The topic of a table's changes."""

    sources: list[SourceConfig] = Field(min_length=1)
    # Of each source, the number of its entry in the file.
    _entries: list[int] = PrivateAttr(default_factory=list)

    cache: CacheConfig | None = None
    """The cache that `relay consume cache` keeps honest."""

    log: LogConfig | None = None
    """The change log that `relay consume log` appends to."""

    copy_: CopyConfig | None = Field(default=None, alias="copy")
    """The second copy of the tables that `relay consume copy` keeps up to date."""

    http: Address | None = None
    """Where `relay run` shows its metrics, health and status, such as `127.0.0.1:9400`."""

    @field_validator("topics")
    @classmethod
    def _topics_template(cls, value: str) -> str:
        try:
            unknown = set(Template.parse(value).columns) - {"name", "table"}
        except ValueError as error:
            raise refuse(str(error)) from error
        if unknown:
            raise refuse(f"{{{min(unknown)}}} is not known in it: {{name}} and {{table}} are")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        each = [source.split() for source in self.sources]
        self._entries = [number for number, sources in enumerate(each) for _ in sources]
        # Frozen for all others: from here on every source of DynamoDB has one table, or tags that say which.
        object.__setattr__(self, "sources", [source for sources in each for source in sources])
        if problems := [*self._source_problems(), *self._topic_problems(), *self._cache_problems()]:
            raise refuse(*problems)
        return self

    @property
    def names_tables(self) -> bool:
        """Whether the config says itself which tables there are."""
        return all(source.names_tables for source in self.sources)

    @property
    def tables(self) -> dict[str, SourceConfig]:
        """The tables that are known, each with the source that has it."""
        return {table: source for source in self.sources for table in source.table_names}

    def with_tables(self, find: Callable[[SourceConfig], Iterable[str]], *, only_split: bool = False) -> Config:
        """Return this config with the tables that ``find`` gives for sources that name none. ``ConfigError``.

        ``only_split``: for those alone of which each table becomes a source.
        """
        if self.names_tables:
            return self
        each = [
            [source]
            if source.names_tables or (only_split and not source.is_split)
            else source.having(sorted(find(source)))
            for source in self.sources
        ]
        found = self.model_copy(update={"sources": [source for sources in each for source in sources]})
        found._entries = list(range(len(found.sources)))
        for _, problem in (*found._source_problems(), *found._topic_problems(), *found._cache_problems()):
            raise ConfigError(f"with the tables that were found: {problem}")
        return found

    def _source_problems(self) -> Iterator[tuple[Location, str]]:
        names: set[str] = set()
        tables: dict[str, str] = {}
        for i, source in zip(self._entries, self.sources, strict=True):
            if source.name in names:
                yield ("sources", i, "name"), f"another source is called {source.name!r} already"
            names.add(source.name)
            for table in source.table_names:
                if (other := tables.setdefault(table, source.name)) != source.name:
                    yield (
                        ("sources", i, source.table_key),
                        f"the source {other!r} has the table {table!r} already, "
                        f"and both would go to the topic {self.topic(table)!r}",
                    )

    def _topic_problems(self) -> Iterator[tuple[Location, str]]:
        tables = list(dict.fromkeys(self.tables))
        several = len(tables) > 1 or not self.names_tables
        if several and "table" not in Template.parse(self.topics).columns:
            yield ("topics",), "has to contain {table}, since there are several tables"
            return
        # Kafka itself refuses two topics that differ only in dots and underscores.
        taken = {self.internal(kind).replace(".", "_"): self.internal(kind) for kind in INTERNAL}
        for topic in [*taken.values(), *map(self.topic, tables)]:
            if len(topic) > _TOPIC_LENGTH:
                yield (
                    ("name",),
                    f"the topic {topic!r} is longer than the {_TOPIC_LENGTH} characters Kafka allows",
                )
        for table in tables:
            topic = self.topic(table)
            other = taken.setdefault(topic.replace(".", "_"), topic)
            if not is_topic(topic):
                yield ("topics",), f"{topic!r} is not a topic name that Kafka allows"
            elif other != topic or topic in map(self.internal, INTERNAL):
                yield (
                    ("topics",),
                    f"the topic {topic!r} of the table {table!r} collides with the topic {other!r}",
                )

    def _cache_problems(self) -> Iterator[tuple[Location, str]]:
        if not self.names_tables:
            return  # asked again when their tables are known
        tables = list(self.tables)
        for table in self.cache.keys if self.cache else ():
            if table not in tables:
                nearest = difflib.get_close_matches(table, tables, n=1, cutoff=0.5)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(tables)}"
                yield ("cache", "keys", table), f"no source has the table {table!r}; {hint}"

    def topic(self, table: str) -> str:
        """Return the topic that the changes of ``table`` go to."""
        return Template.parse(self.topics).render({"name": self.name, "table": table})

    def internal(self, kind: Internal) -> str:
        """Return the name of one of the relay's own topics."""
        return f"{self.name}.{kind}"

    def client(self, role: str) -> dict[str, Any]:
        """Return what a Kafka client needs to connect, named ``<name>-<role>`` in the brokers' logs and quotas."""
        return {**self.kafka.client(), "client.id": f"{self.name}-{role}"}


def is_topic(name: str) -> bool:
    """Tell whether Kafka allows a topic of this name."""
    return re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None and name not in (".", "..")


def load(path: Path) -> Config:
    """Read and check the file at ``path``, without connecting to anything.

    Raises ``ConfigError`` with a line ``file:line:column: what is wrong`` for each thing that is.
    """
    document = yaml_file.read(path)
    if not isinstance(document.data, dict):
        what = "is empty" if document.data is None else "has to be a mapping of keys to values"
        raise ConfigError(f"{path}:1:1: the file {what}")
    try:
        return Config.model_validate(document.data, context={"file": path}, by_alias=True, by_name=False)
    except ValidationError as error:
        raise explain(document, error, Config) from None
