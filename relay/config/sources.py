"""The sources of a config: what each kind of database needs to be told.

The keys are a contract with users: add one with a docstring, which is also its text in ``relay check --schema``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from relay.config.columns import declared
from relay.config.errors import refuse
from relay.config.fields import (
    Keys,
    Name,
    Part,
    RemoteAddress,
    Seconds,
    Start,
    StartAtGtids,
    StartAtToken,
    StartOfBinlogs,
    StartOfVStream,
    since,
    start_of_binlogs,
    start_of_vstream,
    url,
)
from relay.config.yaml_file import Location
from relay.keyrange import KeyRange
from relay.table import REST

_STREAM_ARN = re.compile(r"arn:[\w-]+:dynamodb:([\w-]+):\d*:table/([A-Za-z0-9._-]+)/stream/([\w.:-]+)")


class DynamoDBConfig(Part):
    has_snapshots: ClassVar[bool] = True
    is_split: ClassVar[bool] = True  # each of its tables is a source of its own

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

    def split(self) -> list[DynamoDBConfig]:
        """Return a source for each table, if several are named."""
        return self.having(self.tables) if self.tables else [self]

    def having(self, tables: Iterable[str]) -> list[DynamoDBConfig]:
        """Return a source for each of ``tables``, set up as this one, called after it and the table."""
        return [
            self.model_copy(update={"name": f"{self.name}.{table}", "table": table, "tables": None, "tags": None})
            for table in tables
        ]

    @property
    def names_tables(self) -> bool:
        return not self.tags

    @property
    def table_names(self) -> list[str]:
        """The tables that are known: one, once the config is read, unless tags say which."""
        return [] if self.tags else [self.table_name]

    @property
    def table_key(self) -> str:
        """The key that says which table it is."""
        return "stream_arn" if self.stream_arn else "table"

    @property
    def key_mode(self) -> Literal["hash", "item"]:
        return self.key

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

    @staticmethod
    def place(to: str) -> str | StartAtToken:
        """Read what ``relay reset --to`` says: a start, or ``token:PATH``. ValueError on anything else."""
        if to.startswith("token:"):
            return StartAtToken.read(to.removeprefix("token:"), Path())
        since(to, 0.0)
        return to


class _SQLConfig(Part):
    """What Vitess and MySQL have in common."""

    has_snapshots: ClassVar[bool] = False
    is_split: ClassVar[bool] = False

    name: Name
    """What this source is called in tokens, metrics and commands."""

    keyrange: str = "-"
    """The part of the key space that is read: it has to cover whole shards."""

    tables: list[str] | None = Field(default=None, min_length=1)
    """The tables to read. Without it: all there are, also those created later."""

    user: str | None = None
    """Whom to log in as."""

    password: str | None = None
    """Best as `${ENV}`."""

    tls: dict[str, str] | None = None
    """Encrypt the connection. `ca`, `cert`, `key`: files; an empty mapping trusts the system's authorities."""

    key: Keys = "hash"
    """The Kafka key: `hash`, the columns that choose the shard, else the primary key; `item`, the full primary key as
    JSON; or, for tables without a primary key, the columns that stand for one: `[a, b]`, or `{table: [a, b]}`."""

    on_gap: Literal["fail", "skip"] = "fail"
    """What to do when changes were lost before they could be read: stop, or go on."""

    on_unencodable: Literal["fail", "dead_letter"] = "fail"
    """What to do with a change that cannot be carried exactly: stop, or publish it without its images and keep it
    whole among the dead letters."""

    tombstones: bool = False
    """Follow each DELETE with a null value, so that a compacted topic forgets the row. Needs `key: item`."""

    _found: list[str] = PrivateAttr(default_factory=list)

    @field_validator("keyrange")
    @classmethod
    def _keyrange(cls, value: str) -> str:
        try:
            return str(KeyRange.parse(value))
        except ValueError as error:
            raise refuse(str(error)) from error

    @field_validator("tls")
    @classmethod
    def _tls(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        unknown = (value or {}).keys() - {"ca", "cert", "key"}
        if problems := [((key,), "is none of ca, cert, key") for key in unknown]:
            raise refuse(*problems)
        if value and ("cert" in value) != ("key" in value):
            raise refuse("`cert` and `key` belong together")
        return value

    @model_validator(mode="after")
    def _tombstones_need_items(self) -> Self:
        if self.tombstones and self.key != "item":
            # I1: compaction would take a null for the end of every row of the key.
            raise refuse((("tombstones",), "needs `key: item`: the null would stand for all rows of a hash key"))
        if isinstance(self.key, dict) and self.tables:
            for table in self.key.keys() - set(self.tables):
                raise refuse((("key", table), "is not among `tables`"))
        return self

    def split(self) -> list[Self]:
        return [self]

    def having(self, tables: Iterable[str]) -> list[Self]:
        """Return this source, knowing the tables that it has now."""
        found = self.model_copy()
        found._found = list(tables)
        return [found]

    @property
    def names_tables(self) -> bool:
        return self.tables is not None or bool(self._found)

    @property
    def table_names(self) -> list[str]:
        """The tables that are known."""
        return list(self.tables or self._found)

    @property
    def table_key(self) -> str:
        return "tables"

    @property
    def key_mode(self) -> Literal["hash", "item"]:
        return "item" if self.key == "item" else "hash"

    def key_columns(self, table: str) -> tuple[str, ...]:
        """The columns that stand for the primary key of ``table``; none if it has one of its own."""
        if isinstance(self.key, dict):
            return tuple(self.key.get(table, ()))
        return tuple(self.key) if isinstance(self.key, list) else ()


class VitessConfig(_SQLConfig):
    """A keyspace, read through the VStream of a vtgate."""

    type: Literal["vitess"]

    vtgate: RemoteAddress
    """Where vtgate answers gRPC, such as `127.0.0.1:15991`."""

    keyspace: str = Field(min_length=1)
    """The keyspace that is read."""

    start: StartOfVStream = "current"
    """Where to begin on the first run: `current`; `copy`, all rows and then what changes; or
    `{vgtid: [{shard: "-80", gtid: MySQL56/...}, ...]}`."""

    tablet_type: Literal["primary", "replica", "rdonly"] = "replica"
    """The tablets that are read from."""

    cells: list[str] | None = Field(default=None, min_length=1)
    """The cells whose tablets are read from. Without it: those that vtgate prefers."""

    silence: Seconds = 30.0
    """How long a stream may say nothing at all, not even that it lives, before it is opened anew."""

    @property
    def database(self) -> str:
        return self.keyspace

    @staticmethod
    def place(to: str) -> str | StartAtGtids:
        """Read what ``relay reset --to`` says: ``current``, ``copy`` or ``vgtid:JSON``. ValueError on anything else."""
        return start_of_vstream(to)


class MySQLConfig(_SQLConfig):
    """A database on servers of MySQL or MariaDB, read from their binlogs."""

    type: Literal["mysql"]

    shards: dict[str, list[RemoteAddress]] = Field(min_length=1)
    """Per shard its servers, in the order in which they are tried: `{"-": ["db1:3306", "db1-replica:3306"]}`. While
    a reshard is under way, both: first the shards before it, then those that follow."""

    database: str = Field(min_length=1)
    """The database that is read, called so on every server."""

    start: StartOfBinlogs = "current"
    """Where to begin on the first run: `current`, an ISO time (UTC unless it says otherwise), a time ago such as
    `-30s`, or `{gtid: {"-80": "MariaDB/0-1-5"}}`."""

    max_lag: Seconds = 60.0
    """How far a replica may be behind before another server of its shard is read."""

    reshard_checkpoint_table: str = "_vt.vreplication"
    """Where the replication of a reshard writes, within each transaction that it applies, how far it has come."""

    @field_validator("shards")
    @classmethod
    def _servers(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        problems: list[tuple[Location, str]] = []
        for shard, servers in value.items():
            try:
                KeyRange.parse(shard)
            except ValueError as error:
                if "-" in shard or len(value) > 1:
                    problems.append(((shard,), str(error)))
            if not servers:
                problems.append(((shard,), "needs a server, such as db1:3306"))
        if problems:
            raise refuse(*problems)
        return value

    @field_validator("reshard_checkpoint_table")
    @classmethod
    def _with_its_database(cls, value: str) -> str:
        database, _, table = value.rpartition(".")
        if not database or not table:
            raise refuse(f"{value!r} is no table with its database, such as _vt.vreplication")
        return value

    @staticmethod
    def place(to: str) -> str | StartAtGtids:
        """Read what ``relay reset --to`` says: ``current``, a time, or ``gtid:JSON``. ValueError on anything else."""
        return start_of_binlogs(to)

    def start_since(self, now: float) -> float | None:
        """Return the epoch seconds from which changes are wanted, None where a time does not say it."""
        return None if isinstance(self.start, StartAtGtids) or self.start == "current" else since(self.start, now)


SourceConfig = Annotated[DynamoDBConfig | VitessConfig | MySQLConfig, Field(discriminator="type")]
