"""The tablets of a shard: opens their streams, and asks them and vtgate questions beside a stream."""

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from relay import gtid
from relay.errors import RelayError, Unavailable
from relay.gtid import GtidError, GtidSet
from relay.mysql_dialect.catalog import quoted, quoted_text
from relay.mysql_dialect.charsets import collation_of, is_utf8
from relay.mysql_dialect.printed import members
from relay.types.sql import Form, defined
from relay.vitess.call import Call
from relay.vitess.client import SHARDS, Vtgate
from relay.vitess.position import VitessShard
from relay.vitess.proto import vtgate_pb2 as pb

log = logging.getLogger(__name__)

TIMES_ASKED = 8  # how often a question is asked on which tablets may disagree: another one may answer each time
_KEYS = (
    "select table_name, constraint_name, referenced_table_name, delete_rule, update_rule"
    " from information_schema.referential_constraints where constraint_schema = database()"
)
_UNLOGGED = ("CASCADE", "SET NULL", "SET DEFAULT")

# Key column types for which vtgate's comparison with a text agrees with the order in which the database sorts them.
_SORTED = (*(Form.INTEGER, Form.DECIMAL, Form.DOUBLE, Form.BIT), *(Form.TIME, Form.TIMESTAMP, Form.BYTES, Form.PADDED))
_SORTED_CHARSETS = frozenset(("ascii", "latin1", "utf8", "utf8mb3", "utf8mb4"))


@dataclass(frozen=True, slots=True)
class KeyOrder:
    digest: str  # of what the order in which a table is copied depends on
    resumes: bool  # whether vtgate finds all rows after a key


@dataclass(frozen=True, slots=True)
class Tablets:
    """The tablets of ``shard`` to read. ``kind``: PRIMARY, REPLICA or RDONLY. ``cells``: see `VStreamSettings`."""

    vtgate: Vtgate
    shard: VitessShard
    kind: str
    cells: str = ""

    def at(self, position: str, after: Sequence[pb.TableLastPK] = ()) -> pb.ShardGtid:
        """Return the start of a stream of the shard. ``after``: the last keys that were copied, by table."""
        return pb.ShardGtid(keyspace=self.shard.keyspace, shard=self.shard.name, gtid=position, table_p_ks=after)

    def stream(
        self, starts: Sequence[pb.ShardGtid], tables: Sequence[str], heartbeat: int = 0, copy: Sequence[str] = ()
    ) -> Call:
        """Open one stream, as `Vtgate.vstream` does, of ``tables`` by their names or by patterns that begin with /."""
        rules = {each: "" if each.startswith("/") else select_all(each) for each in tables}
        return self.vtgate.vstream(
            starts, rules, tablet_type=self.kind, cells=self.cells, copy=copy, heartbeat=heartbeat
        )

    def execute(self, sql: str, timeout: float = 10.0, kind: str = "") -> list[dict[str, str | None]]:
        """Run one statement, as `Vtgate.execute` does. ``kind``: another kind of tablet to ask."""
        target = f"{self.shard.keyspace}:{self.shard.name}@{(kind or self.kind).lower()}"
        return self.vtgate.execute(sql, target, timeout)

    def is_serving(self) -> bool:
        """Whether the shard holds rows of its keyspace, and no reshard has ended it. Raises ``Unavailable``."""
        return f"{self.shard.keyspace}/{self.shard.name}" in self.vtgate.listed(SHARDS, timeout=3)

    def explain_silence(self) -> str:
        """Return what vtgate knows about the shard, to explain a silent stream. Takes up to six seconds."""
        try:
            serves = self.is_serving()
            tablets = [
                row
                for row in self.vtgate.execute("show vitess_tablets", timeout=3)
                if row.get("Keyspace") == self.shard.keyspace and row.get("Shard") == self.shard.name
            ]
        except RelayError as error:
            return str(error)
        if not tablets:
            return "vtgate knows no tablet of the shard" + ("" if serves else ", and does not serve the shard")
        serving = [row for row in tablets if row.get("TabletType") == self.kind and row.get("State") == "SERVING"]
        if not serving:
            found = sorted(f"{row.get('Alias')} {row.get('TabletType')} {row.get('State')}" for row in tablets)
            return (
                f"no {self.kind} tablet of the shard is serving ({', '.join(found)}): start one, or set another "
                "`tablet_type`"
            )
        return f"{len(serving)} {self.kind} tablets of the shard are serving: check their logs and vtgate's"

    def purged_set(self, flavour: str) -> GtidSet | None:
        """Return the executed set whose binlogs a tablet has purged, or None if vtgate does not say."""
        statement = "select @@global.gtid_purged"
        try:
            if flavour != "MySQL56":
                if not (first := _value(self.execute("show binary logs", 3))):
                    return None
                statement = f"select binlog_gtid_pos('{quoted_text(first)}', 4)"
            purged = _value(self.execute(statement, 3))
            return None if purged is None else gtid.parse(f"{flavour}/{purged}")
        except (RelayError, GtidError):
            return None

    def started_at(self, flavour: str) -> int:
        """Return when a tablet's server was started, by its clock. ``flavour``: GTID flavour. Raises ``RelayError``."""
        schema = "performance_schema" if flavour == "MySQL56" else "information_schema"
        statement = (
            "select cast(unix_timestamp() - variable_value as signed) from "
            f"{schema}.global_status where variable_name = 'Uptime'"
        )
        found = _value(self.execute(statement, 3))
        try:
            return int(found or "")
        except ValueError:
            raise RelayError(f"vtgate answers {statement!r} with {found!r}, which is not a number") from None

    def row_images(self) -> set[str]:
        """Return the values of binlog_row_image in the databases that answer. Replicas log rows by their own."""
        found = set()
        for kind in {"primary", self.kind.lower()}:
            with suppress(RelayError):
                value = _value(self.execute("select @@global.binlog_row_image", 3, kind))
                if value is not None and value.isidentifier():
                    found.add(value.upper())
        return found

    def row_counts(self) -> Mapping[str, int]:
        """Return an estimate of the number of rows in each table. Raises ``Unavailable``."""
        statement = "select table_name, table_rows from information_schema.tables where table_schema = database()"
        try:
            rows = [list(row.values()) for row in self.execute(statement)]
        except RelayError as error:
            name = f"{self.shard.keyspace}/{self.shard.name}"
            raise Unavailable(f"cannot count the rows of shard {name}: {error}") from error
        return {str(name): int(count or 0) for name, count in rows}

    def key_order(self, table: str) -> KeyOrder:
        """Return the order of a primary key, by its columns, their types and collations. Raises ``Unavailable``."""
        statement = (
            "select s.column_name, c.column_type, c.collation_name from information_schema.statistics s"
            " join information_schema.columns c on c.table_schema = s.table_schema and c.table_name = s.table_name"
            " and c.column_name = s.column_name where s.table_schema = database() and s.index_name = 'PRIMARY'"
            f" and s.table_name = '{quoted_text(table)}' order by s.seq_in_index"
        )
        try:
            found = [list(row.values()) for row in self.execute(statement)]
        except RelayError as error:
            raise Unavailable(f"cannot look up the primary key of table {table}: {error}") from error
        digest = hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()
        # Without a key, vtgate takes all columns for the key, and nothing is larger than NULL.
        return KeyOrder(digest, bool(found) and all(_compares_as_sorted(kind or "", by or "") for _, kind, by in found))


def collations(vtgate: Vtgate, keyspace: str, tablet_type: str, table: str) -> Mapping[str, int]:
    """Return, by column, the id of a collation of its current character set, if that is not UTF-8.

    Raises ``Unavailable``, and ``RelayError`` for a character set that cannot be carried.
    """
    statement = (
        "select column_name, character_set_name from information_schema.columns"
        f" where table_schema = '{quoted_text(keyspace)}' and table_name = '{quoted_text(table)}'"
        " and character_set_name is not null"
    )
    try:
        found = [list(row.values()) for row in vtgate.execute(statement, f"{keyspace}@{tablet_type.lower()}")]
    except RelayError as error:
        raise Unavailable(f"cannot look up the character sets of table {table}: {error}") from error
    try:
        return {str(column): collation_of(str(of)) for column, of in found if not is_utf8(str(of))}
    except ValueError as error:
        raise RelayError(f"table {table}: {error}") from None


def select_all(table: str) -> str:
    """Return a SELECT of all rows of ``table``: vtgate v23 refuses a filter rule without one ("Query was empty")."""
    return f"select * from {quoted(table)}"


def _compares_as_sorted(column_type: str, collation: str) -> bool:
    """Whether vtgate compares a column of a key with the text of another value in the order of the table.

    ENUM and SET are sorted by the numbers of their members, and compared with a text by their own texts. UUID, INET4,
    INET6 and texts in some character sets are compared with a text as bytes.
    """
    try:
        found = defined(column_type)
    except ValueError:
        return False
    if found.type.form is Form.TEXT:
        return collation.partition("_")[0] in _SORTED_CHARSETS
    if found.type.form is not Form.ENUM:
        return found.type.form in _SORTED
    names = members(found.inside)
    # Some collations order other characters differently.
    return all(one.isascii() and one.isalnum() for one in names) and all(
        one < other and one.lower() < other.lower() for one, other in pairwise(names)
    )


def _value(rows: list[dict[str, str | None]]) -> str | None:
    return next(iter(rows[0].values()), None) if rows else None


def warn_of_cascades(source: str, tablets: Tablets, tables: Collection[str]) -> None:
    """Log a warning for each foreign key that changes rows of ``tables`` without logging it, if a tablet says so."""
    try:
        found = [[str(value) for value in row.values()] for row in tablets.execute(_KEYS)]
    except RelayError as error:
        log.warning("source %s: cannot find out whether foreign keys change rows without logging it: %s", source, error)
        return
    for table, key, referenced, on_delete, on_update in found:
        rules = (("ON DELETE", on_delete), ("ON UPDATE", on_update))
        actions = [f"{event} {rule}" for event, rule in rules if rule in _UNLOGGED]
        if table in tables and actions:
            log.warning(
                "source %s: changes by the foreign key %s to %s are not relayed: when rows of %s change, InnoDB runs "
                "%s without logging it. Make these changes in the application, or let vtgate make them with "
                "`foreignKeyMode: managed` in the VSchema",
                source,
                key,
                table,
                referenced,
                " and ".join(actions),
            )
