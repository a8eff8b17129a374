"""The config of the SQL sources: Vitess, and MySQL or MariaDB. Its keys are a contract with users."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from relay.config.addresses import RemoteAddress
from relay.config.aws import IamConfig
from relay.config.errors import did_you_mean, invalid, refuse
from relay.config.model import TextForm, like
from relay.config.per_table import PerTableConfig, Traits
from relay.config.protection import IN_KEY, in_key
from relay.config.tls import Tls
from relay.config.value_types import (
    Keys,
    Seconds,
    StartAtGtids,
    StartOfBinlogs,
    StartOfVStream,
    parse_binlog_start,
    parse_vstream_start,
)
from relay.config.yaml_file import Location
from relay.keyrange import KeyRange, shards_covering

_WITH_DATABASE = TextForm(r".+\..+", "{} must be a table with its database, such as _vt.vreplication")


def _twice(names: Sequence[str], *place: str) -> Iterator[tuple[Location, str]]:
    for number, each in enumerate(names):
        if each in names[:number]:
            yield (*place, number), "is listed twice"


class _SQLConfig(PerTableConfig):
    """The keys that Vitess and MySQL share."""

    table_key: ClassVar[str] = "tables"

    keyrange: Annotated[
        str, AfterValidator(lambda text: str(KeyRange.parse(text))), like("(?:[0-9A-Fa-f]{2})*-(?:[0-9A-Fa-f]{2})*|0")
    ] = "-"
    """The key range to read. It must cover complete shards."""

    tables: list[str] | None = Field(default=None, min_length=1)
    """The tables to read. Default: all, including those created later."""

    user: str | None = None
    """The user to log in as."""

    password: str | None = None
    """The password, preferably as `${ENV}`."""

    tls: Tls | None = None
    """Encrypt the connection. `ca`, `cert` and `key` are files; an empty mapping trusts the system's authorities."""

    snapshot_rows_per_second: int | None = Field(default=None, ge=10)
    """The most rows per second that a snapshot reads from each table of each shard; it reads up to four tables in turn.
    Default: no limit."""

    on_alter: Literal["warn", "resnapshot"] = "warn"
    """What to do after a statement that may have changed rows of a table without logging them, such as an ALTER TABLE
    that converts a column or adds one with a default: warn, or read the table again."""

    key: Keys = "hash"
    """The Kafka key. `hash`: the sharding columns, or the primary key if they are not known. `item`: the full primary
    key as JSON. For tables without a primary key, list the columns that serve as one: `[a, b]`, or `{table: [a, b]}`.
    """

    # The tables found in the database, if `tables` is not set.
    _found_tables: list[str] = PrivateAttr(default_factory=list)

    @field_validator("tables")
    @classmethod
    def _once(cls, value: list[str] | None) -> list[str] | None:
        refuse(_twice(value or []))
        return value

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        of_tables = self.key if isinstance(self.key, dict) else {}
        refuse(_twice(self.key, "key") if isinstance(self.key, list) else ())
        refuse(problem for table, columns in of_tables.items() for problem in _twice(columns, "key", table))
        for table in of_tables.keys() - set(self.tables) if self.tables else ():
            hint = did_you_mean(table, self.tables or (), "they are ")
            raise invalid((("key", table), f"is not in `tables`; {hint}"))
        return self

    @model_validator(mode="after")
    def _check_per_table(self) -> Self:
        problems = self._unknown_tables(self.tables) if self.tables else []
        for table, rules in self.protect.items():
            if (column := in_key(self.key_columns(table), rules)) is not None:
                problems.append((("protect", table, column), IN_KEY))
        refuse(problems)
        return self

    @property
    def start_problem(self) -> str:
        if not isinstance(self.start, StartAtGtids):
            return ""
        try:
            wanted = shards_covering(KeyRange.parse(self.keyrange), self.start.positions)
        except ValueError as error:
            return f"`start`: {error}"
        others = sorted(self.start.positions.keys() - set(wanted))
        return f"`start`: key range {self.keyrange} has no part of {', '.join(others)}" if others else ""

    def split(self) -> list[Self]:
        return [self]

    def for_tables(self, tables: Iterable[str]) -> list[Self]:
        """Return this source with the tables found in the database."""
        found = self.model_copy()
        found._found_tables = list(tables)
        return [found]

    @property
    def names_tables(self) -> bool:
        return self.tables is not None or bool(self._found_tables)

    @property
    def table_names(self) -> list[str]:
        """The tables to read, as far as they are known."""
        return list(self.tables or self._found_tables)

    def protects(self, table: str, column: str) -> bool:
        return column.lower() in map(str.lower, self.rules(table))

    @property
    def named_tables(self) -> list[str]:
        """The tables that the entry names. They exist when their reading begins."""
        return list(dict.fromkeys([*(self.tables or ()), *self.where]))

    def key_columns(self, table: str) -> tuple[str, ...]:
        """The columns configured to serve as the primary key of ``table``; empty if none are."""
        if isinstance(self.key, dict):
            return tuple(self.key.get(table, ()))
        return tuple(self.key) if isinstance(self.key, list) else ()


class VitessConfig(_SQLConfig):
    """A Vitess keyspace, read through the VStream of a vtgate."""

    traits: ClassVar[Traits] = Traits(has_complete_streams=False)

    parse_start = staticmethod(parse_vstream_start)

    type: Literal["vitess"]
    """A Vitess keyspace, read from a vtgate."""

    vtgate: RemoteAddress
    """The gRPC address of vtgate, such as `127.0.0.1:15991`."""

    keyspace: str = Field(min_length=1)
    """The keyspace to read."""

    start: StartOfVStream = "current"
    """Where to start on the first run: `current`; `copy`, which also reads all rows while the changes flow; an ISO time
    (UTC unless it has an offset), or a relative time such as `-30s`, as far as the binlogs of the tablets go back;
    or `{vgtid: [{shard: "-80", gtid: MySQL56/...}, ...]}`."""

    tablet_type: Literal["primary", "replica", "rdonly"] = "replica"
    """The type of tablets to read from."""

    cells: list[str] | None = Field(default=None, min_length=1)
    """The cells whose tablets to read from. Default: the cells that vtgate prefers."""

    silence: Seconds = Field(default="30s", validate_default=True)
    """How long a stream may be silent, heartbeats included, before the relay reopens it."""

    @property
    def database(self) -> str:
        return self.keyspace


class MySQLConfig(_SQLConfig):
    """A database on MySQL or MariaDB servers, read from their binlogs."""

    parse_start = staticmethod(parse_binlog_start)

    type: Literal["mysql"]
    """A database on MySQL or MariaDB servers."""

    shards: dict[str, Annotated[list[RemoteAddress], Field(json_schema_extra={"minItems": 1})]] = Field(min_length=1)
    """The servers of each shard, in the order in which to try them: `{"-": ["db1:3306", "db1-replica:3306"]}`. During a
    reshard, list the old shards first, then the new ones."""

    iam: IamConfig | None = None
    """Log in to RDS or Aurora with AWS tokens instead of a password, a new one for each connection. Requires `tls`.
    Servers must have the names that AWS gave them, because a token is valid for one name."""

    database: str = Field(min_length=1)
    """The database to read. It has the same name on every server."""

    start: StartOfBinlogs = "current"
    """Where to start on the first run: `current`, an ISO time (UTC unless it has an offset), a relative time
    such as `-30s`, or `{gtid: {"-80": "MariaDB/0-1-5"}}`."""

    max_lag: Seconds = Field(default="60s", validate_default=True)
    """How far a replica may lag before the relay reads another server of its shard."""

    snapshot: Literal["none", "initial"] = "none"
    """`initial` also reads the complete tables once, alongside the binlog, and publishes every row as READ."""

    reshard_checkpoint_table: Annotated[str, _WITH_DATABASE] = "_vt.vreplication"
    """The table in which the replication of a reshard records its position in each transaction that it applies."""

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
        refuse(problems)
        return value

    @model_validator(mode="after")
    def _check_iam(self) -> Self:
        if self.iam is None:
            return self
        if self.password is not None:
            raise invalid((("password",), "conflicts with `iam`, which logs in with tokens: remove one of the two"))
        if self.user is None:
            raise invalid((("iam",), "needs the `user` to log in as"))
        if self.tls is None:
            raise invalid((("iam",), "needs `tls`, such as {ca: bundle.pem}: tokens would be sent in clear text"))
        return self

    @property
    def late_by(self) -> float | None:
        return None if all(len(servers) == 1 for servers in self.shards.values()) else self.max_lag
