"""The configuration: every key, what it may hold, and what has to fit together.

The keys are a contract with users. Add one here with a docstring, which is also its text in
``relay check --schema``, and take it out of the list of later keys in ``relay.config_errors``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from relay import config_file
from relay.avro.rows import REST
from relay.config_errors import explain, later, refuse
from relay.config_fields import Address, Name, Part, Seconds, Start, StartAtToken, redacted, since, url
from relay.config_file import Location
from relay.config_kafka import Kafka, SchemaRegistry
from relay.dynamodb.columns import declared
from relay.errors import ConfigError
from relay.template import Template

__all__ = [
    "INTERNAL",
    "Cache",
    "Config",
    "Copy",
    "DynamoDBSource",
    "Internal",
    "Kafka",
    "Log",
    "SchemaRegistry",
    "load",
    "redacted",
]

_STREAM_ARN = re.compile(r"arn:[\w-]+:dynamodb:([\w-]+):\d*:table/([A-Za-z0-9._-]+)/stream/([\w.:-]+)")
_TOPIC_LENGTH = 249

Internal = Literal["checkpoints", "schemas", "gaps", "dead_letters", "watermarks"]
INTERNAL: tuple[Internal, ...] = ("checkpoints", "schemas", "gaps", "dead_letters", "watermarks")


class DynamoDBSource(Part):
    has_snapshots: ClassVar[bool] = True

    name: Name
    """What this source is called in tokens, metrics and commands."""

    type: Literal["dynamodb"]

    table: str | None = None
    """The table whose stream is read. Or give `stream_arn`."""

    tables: list[str] | None = Field(default=None, min_length=1)
    """Several tables in place of one. Each becomes a source of its own, called `<name>.<table>`."""

    tags: dict[str, str] | None = Field(default=None, min_length=1)
    """All tables of the region that carry these tags, in place of `tables`. They are looked for at each start."""

    stream_arn: str | None = None
    """One stream, by its ARN, in place of `table`."""

    region: str | None = None
    """The region of the table. Without it: that of `stream_arn`, or what the AWS settings around say."""

    endpoint_url: Annotated[str, url("http", "https")] | None = None
    """Where DynamoDB answers, when it is not AWS."""

    start: Start = "trim_horizon"
    """Where to begin on the first run: `trim_horizon`, `latest`, an ISO time (UTC unless it says otherwise),
    a time ago such as `-30s`, or `{token: path.json}`: where a token of the stream says."""

    snapshot: Literal["none", "initial"] = "none"
    """`initial` reads the whole table once, beside the stream, and publishes every item as READ."""

    key: Literal["hash", "item"] = "hash"
    """The Kafka key: the hash key alone, or the full primary key."""

    on_gap: Literal["fail", "skip", "resnapshot"] = "fail"
    """What to do when changes were lost before they could be read: stop, go on, or go on and read the table again."""

    on_unencodable: Literal["fail", "dead_letter"] = "fail"
    """What to do with a change that cannot be carried exactly, such as text that is not Unicode: stop, or publish it
    without its images and keep it whole among the dead letters."""

    tombstones: bool = False
    """Follow each DELETE with a null value, so that a compacted topic forgets the item. Needs `key: item`."""

    columns: dict[str, str] | None = Field(default=None, min_length=1)
    """Types of attributes, key columns included, for typed rows in place of JSON. What is in none of them is
    carried beside them, in `rest`. Types: string, bytes, boolean, int, long, double, decimal(p,s), timestamp
    (seconds since the epoch), set (of strings), json (anything)."""

    @model_validator(mode="before")
    @classmethod
    def _known_type(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") in ("vitess", "mysql"):
            raise later(f"`type: {data['type']}`", at=("type",))
        return data

    @field_validator("table", "tables")
    @classmethod
    def _table(cls, value: str | list[str] | None) -> str | list[str] | None:
        for name in [value] if isinstance(value, str) else value or ():
            if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", name):
                raise refuse(f"{name!r} is not a table name: 3 to 255 letters, digits, dots, dashes, underscores")
        return value

    @field_validator("stream_arn")
    @classmethod
    def _arn(cls, value: str | None) -> str | None:
        if value is not None and not _STREAM_ARN.fullmatch(value):
            raise refuse("is not the ARN of a stream: arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/LABEL")
        return value

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        problems: list[tuple[Location, str]] = []
        kinds: dict[str, str] = {}
        for name, kind in (value or {}).items():
            try:
                kinds[name] = declared(kind)
            except ValueError as error:
                problems.append(((name,), f"the type {error}"))
            if name == REST:
                problems.append(((name,), "cannot be declared: it is where the attributes without a column are"))
        if problems:
            raise refuse(*problems)
        return kinds or None

    @model_validator(mode="after")
    def _one_table(self) -> Self:
        if [self.table, self.tables, self.tags, self.stream_arn].count(None) != 3:
            raise refuse("a source needs either `table` or `stream_arn`, or, for several tables, `tables` or `tags`")
        if self.tombstones and self.key != "item":
            # I1: compaction would take a null for the end of every item of the hash key.
            raise refuse((("tombstones",), "needs `key: item`: the null would stand for all items of a hash key"))
        if self.columns and (self.tables or self.tags):
            raise refuse((("columns",), "are those of one table: give it a source of its own"))
        if isinstance(self.start, StartAtToken) and self.stream_arn != self.start.stream_arn and self.table is None:
            # Of a table the stream is looked up when it is read.
            raise refuse((("start",), f"the token is of the stream {self.start.stream_arn} alone"))
        arn = _STREAM_ARN.fullmatch(self.stream_arn or "")
        # An embedded DynamoDB writes a region of its own into its ARNs.
        if arn and self.region and self.endpoint_url is None and arn[1] != self.region:
            raise refuse((("region",), f"is {self.region}, but the stream is in {arn[1]}"))
        return self

    def of_tables(self, tables: Iterable[str]) -> list[DynamoDBSource]:
        """Return a source for each of ``tables``, set up as this one, called after it and the table."""
        return [
            self.model_copy(update={"name": f"{self.name}.{table}", "table": table, "tables": None, "tags": None})
            for table in tables
        ]

    @property
    def table_name(self) -> str:
        """The table, also where only the ARN of its stream is configured."""
        arn = _STREAM_ARN.fullmatch(self.stream_arn or "")
        return arn[2] if arn else str(self.table)

    @property
    def region_name(self) -> str | None:
        """The region to ask. None leaves it to the AWS settings around."""
        arn = _STREAM_ARN.fullmatch(self.stream_arn or "")
        return self.region or (arn[1] if arn else None)

    def start_since(self, now: float) -> float | None:
        """Return the epoch seconds from which changes are wanted, None where a time does not say it."""
        return None if isinstance(self.start, StartAtToken) else since(self.start, now)


class Cache(Part):
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


class Log(Part):
    path: Annotated[str, Field(min_length=1)]
    """Where the change log is kept, such as `file:///var/lib/relay/log`."""


class Copy(Part):
    url: Annotated[str, url("delta", unbuilt=("postgresql", "postgres"))]
    """Where the copy is kept, such as `delta:///var/lib/relay/copy`."""

    tombstone_retention: Seconds = 30 * 86400.0
    """How long the copy remembers a deleted row. Changes older than this, applied again, may bring it back."""


class Config(Part):
    """The whole file. The checks across keys are here, so that a config built in Python meets them too."""

    name: Name
    """What this relay is called: its internal topics and consumer groups begin with it."""

    kafka: Kafka

    schema_registry: SchemaRegistry | None = None
    """Where the Avro schemas go. Without it: into the topic `<name>.schemas`."""

    topics: str = "{name}.{table}"
    """The topic of a table's changes."""

    sources: list[DynamoDBSource] = Field(min_length=1)
    # Of each source, the number of its entry in the file.
    _entries: list[int] = PrivateAttr(default_factory=list)

    cache: Cache | None = None
    """The cache that `relay consume cache` keeps honest."""

    log: Log | None = None
    """The change log that `relay consume log` appends to."""

    copy_: Copy | None = Field(default=None, alias="copy")
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
        each = [source.of_tables(source.tables) if source.tables else [source] for source in self.sources]
        self._entries = [number for number, sources in enumerate(each) for _ in sources]
        # Frozen for all others: from here on every source has one table, but for those whose tags say which.
        object.__setattr__(self, "sources", [source for sources in each for source in sources])
        if problems := [*self._source_problems(), *self._topic_problems(), *self._cache_problems()]:
            raise refuse(*problems)
        return self

    def with_tables(self, find: Callable[[DynamoDBSource], Iterable[str]]) -> Config:
        """Return this config with the tables that ``find`` gives for the tags of a source. ``ConfigError``."""
        if not any(source.tags for source in self.sources):
            return self
        each = [source.of_tables(sorted(find(source))) if source.tags else [source] for source in self.sources]
        found = self.model_copy(update={"sources": [source for sources in each for source in sources]})
        found._entries = list(range(len(found.sources)))
        for _, problem in (*found._source_problems(), *found._topic_problems(), *found._cache_problems()):
            raise ConfigError(f"with the tables that carry the tags: {problem}")
        return found

    def _source_problems(self) -> Iterator[tuple[Location, str]]:
        names: set[str] = set()
        tables: dict[str, str] = {}
        for i, source in zip(self._entries, self.sources, strict=True):
            if source.name in names:
                yield ("sources", i, "name"), f"another source is called {source.name!r} already"
            elif source.tags:
                pass  # its tables are not known yet
            elif source.table_name in tables:
                yield (
                    ("sources", i, "stream_arn" if source.stream_arn else "table"),
                    f"the source {tables[source.table_name]!r} has the table {source.table_name!r} already, "
                    f"and both would go to the topic {self.topic(source.table_name)!r}",
                )
            names.add(source.name)
            if not source.tags:
                tables.setdefault(source.table_name, source.name)

    def _topic_problems(self) -> Iterator[tuple[Location, str]]:
        tables = list(dict.fromkeys(source.table_name for source in self.sources if not source.tags))
        several = len(tables) > 1 or any(source.tags for source in self.sources)
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
            if not re.fullmatch(r"[A-Za-z0-9._-]+", topic) or topic in (".", ".."):
                yield ("topics",), f"{topic!r} is not a topic name that Kafka allows"
            elif other != topic or topic in map(self.internal, INTERNAL):
                yield (
                    ("topics",),
                    f"the topic {topic!r} of the table {table!r} collides with the topic {other!r}",
                )

    def _cache_problems(self) -> Iterator[tuple[Location, str]]:
        if any(source.tags for source in self.sources):
            return  # asked again when their tables are known
        tables = [source.table_name for source in self.sources]
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


def load(path: Path) -> Config:
    """Read and check the file at ``path``, without connecting to anything.

    Raises ``ConfigError`` with a line ``file:line:column: what is wrong`` for each thing that is.
    """
    document = config_file.read(path)
    if not isinstance(document.data, dict):
        what = "is empty" if document.data is None else "has to be a mapping of keys to values"
        raise ConfigError(f"{path}:1:1: the file {what}")
    try:
        return Config.model_validate(document.data, context={"file": path}, by_alias=True, by_name=False)
    except ValidationError as error:
        raise explain(document, error, Config) from None
