"""Questions to vtgate beside a stream: how far the shard has got, and why its stream may be silent."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from relay import gtid
from relay.errors import RelayError, Unavailable
from relay.gtid import GtidError, GtidSet
from relay.mysql_dialect.charsets import collation_of, is_utf8
from relay.mysql_dialect.members import members
from relay.types.sql import Form, defined
from relay.vitess.call import Call
from relay.vitess.client import CURRENT, Vtgate, events_of
from relay.vitess.failures import BrokenStream
from relay.vitess.http2 import CallEnded
from relay.vitess.proto import vtgate_pb2 as pb

# The types of key columns that vtgate compares with a text as a database sorts them.
_SORTED = (*(Form.INTEGER, Form.DECIMAL, Form.DOUBLE, Form.BIT), *(Form.TIME, Form.TIMESTAMP, Form.BYTES, Form.PADDED))
_SORTED_CHARSETS = frozenset(("ascii", "latin1", "utf8", "utf8mb3", "utf8mb4"))


class Head:
    """Asks for the head of a shard: the position that a stream at `current` starts with.

    ``ask`` opens such a stream, and ``poll`` closes it once it has the answer. ``table``: the only one in the stream.
    ``patience``: seconds after which a question without an answer may be repeated. ``clock``: seconds since the epoch.
    """

    def __init__(
        self,
        vtgate: Vtgate,
        keyspace: str,
        shard: str,
        table: str,
        *,
        tablet_type: str,
        cells: str,
        patience: float = 30.0,
        clock: Callable[[], float],
    ) -> None:
        self._vtgate = vtgate
        self._patience = patience
        self._at = pb.ShardGtid(keyspace=keyspace, shard=shard, gtid=CURRENT)
        # One table, so that few rows come until the stream is closed.
        self._rules = {table: select_all(table)}
        self._tablet_type = tablet_type
        self._cells = cells
        self._clock = clock
        self._stream: Call | None = None
        # When the open question was asked, by ``clock`` and by the monotonic clock.
        self._asked = 0.0
        self.asked_at = 0.0
        # Why the last question got no answer.
        self.failed: str | None = None

    @property
    def is_asking(self) -> bool:
        return self._stream is not None

    def ask(self) -> None:
        """Ask, unless a question younger than ``patience`` is open."""
        if self._stream is not None and time.monotonic() - self.asked_at > self._patience:
            self.close()
        if self._stream is None:
            self._asked = self._clock()
            self.asked_at = time.monotonic()
            self._stream = self._vtgate.vstream(
                [self._at], self._rules, tablet_type=self._tablet_type, cells=self._cells, heartbeat=0
            )

    def poll(self, timeout: float = 0.0) -> tuple[float, GtidSet] | None:
        """Return when the question was asked, by ``clock``, and the set executed then; None without an answer."""
        if self._stream is None:
            return None
        try:
            answers = self._stream.take(timeout)
        except CallEnded as ended:
            self.failed = str(ended)
            self.close()
            return None
        try:
            head = next(_positions(answers), None)
        except (BrokenStream, GtidError) as error:
            self.failed = f"vtgate sent what cannot be read: {error}"
            self.close()
            return None
        if head is None:
            return None
        self.failed = None
        self.close()
        return self._asked, head

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _positions(answers: Iterable[bytes]) -> Iterator[GtidSet]:
    """Yield the positions in the answers of a stream. Raises `BrokenStream` and ``GtidError``."""
    for answer in answers:
        for event in events_of(answer):
            for at in event.vgtid.shard_gtids:
                if at.gtid not in ("", CURRENT):
                    yield gtid.parse(at.gtid)


def select_all(table: str) -> str:
    """Return a select of every row of ``table``: vtgate v23 refuses a rule without one ("Query was empty")."""
    quoted = table.replace("`", "``")
    return f"select * from `{quoted}`"


def literal(text: str) -> str:
    """Return ``text`` as a literal of a statement."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def is_serving(vtgate: Vtgate, keyspace: str, shard: str) -> bool:
    """Whether a shard holds rows of its keyspace, and no reshard has ended it. Raises ``RelayError``."""
    return any(f"{keyspace}/{shard}" in row.values() for row in vtgate.execute("show vitess_shards", timeout=3))


def explain_silence(vtgate: Vtgate, keyspace: str, shard: str, tablet_type: str) -> str:
    """Return what vtgate knows about a shard whose stream is silent. Takes up to six seconds."""
    try:
        serves = is_serving(vtgate, keyspace, shard)
        tablets = [
            row
            for row in vtgate.execute("show vitess_tablets", timeout=3)
            if row.get("Keyspace") == keyspace and row.get("Shard") == shard
        ]
    except RelayError as error:
        return str(error)
    if not tablets:
        return "vtgate knows no tablet of the shard" + ("" if serves else ", and does not serve the shard")
    serving = [row for row in tablets if row.get("TabletType") == tablet_type and row.get("State") == "SERVING"]
    if not serving:
        found = ", ".join(sorted(f"{row.get('Alias')} {row.get('TabletType')} {row.get('State')}" for row in tablets))
        return f"no {tablet_type} tablet of the shard is serving ({found}): start one, or set another `tablet_type`"
    return f"{len(serving)} {tablet_type} tablets of the shard are serving: check their logs and that of vtgate"


def purged_set(vtgate: Vtgate, keyspace: str, shard: str, tablet_type: str, flavour: str) -> GtidSet | None:
    """Return the executed set whose binlogs a tablet of the shard has purged; None if vtgate does not tell."""
    target = f"{keyspace}:{shard}@{tablet_type.lower()}"
    try:
        if flavour == "MySQL56":
            return _first(vtgate.execute("select @@global.gtid_purged", target, timeout=3), flavour)
        logs = vtgate.execute("show binary logs", target, timeout=3)
        if not logs or not (first := next(iter(logs[0].values()))):
            return None
        return _first(vtgate.execute(f"select binlog_gtid_pos({literal(first)}, 4)", target, timeout=3), flavour)
    except (RelayError, GtidError):
        return None


def row_images(vtgate: Vtgate, keyspace: str, shard: str, tablet_type: str) -> set[str]:
    """Return the values of binlog_row_image in the databases of a shard. Databases that do not answer are left out.

    Each replica writes the rows of its primary again, by its own setting.
    """
    found = set()
    for kind in {"primary", tablet_type.lower()}:
        try:
            rows = vtgate.execute("select @@global.binlog_row_image", f"{keyspace}:{shard}@{kind}", timeout=3)
        except RelayError:
            continue
        value = _value(rows)
        if value is not None and value.isidentifier():
            found.add(value.upper())
    return found


def row_counts(vtgate: Vtgate, keyspace: str, shard: str, tablet_type: str) -> Mapping[str, int]:
    """Return about how many rows each table of a shard has. Raises ``Unavailable``."""
    statement = "select table_name, table_rows from information_schema.tables where table_schema = database()"
    try:
        found = vtgate.execute(statement, f"{keyspace}:{shard}@{tablet_type.lower()}")
    except RelayError as error:
        raise Unavailable(f"how many rows shard {keyspace}/{shard} has is not known: {error}") from error
    rows = (list(row.values()) for row in found)
    return {str(name): int(count or 0) for name, count in rows}


def collations(vtgate: Vtgate, keyspace: str, tablet_type: str, table: str) -> Mapping[str, int]:
    """Return, by column, the id of a collation of its character set now, of those that are not UTF-8.

    Raises ``Unavailable``, and ``RelayError`` for a character set that cannot be carried.
    """
    statement = (
        "select column_name, character_set_name from information_schema.columns"
        f" where table_schema = {literal(keyspace)} and table_name = {literal(table)}"
        " and character_set_name is not null"
    )
    try:
        found = [list(row.values()) for row in vtgate.execute(statement, f"{keyspace}@{tablet_type.lower()}")]
    except RelayError as error:
        raise Unavailable(f"the character sets of table {table} are not known: {error}") from error
    try:
        return {str(column): collation_of(str(of)) for column, of in found if not is_utf8(str(of))}
    except ValueError as error:
        raise RelayError(f"table {table}: {error}") from None


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order in which a table is copied.

    ``digest``: of what it depends on. ``resumes``: whether all rows after one are those whose keys vtgate finds larger.
    """

    digest: str
    resumes: bool


def key_order(vtgate: Vtgate, keyspace: str, shard: str, tablet_type: str, table: str) -> KeyOrder:
    """Return the order of a table's primary key: it depends on its columns, with their types and collations.

    Raises ``Unavailable``.
    """
    statement = (
        "select s.column_name, c.column_type, c.collation_name from information_schema.statistics s"
        " join information_schema.columns c on c.table_schema = s.table_schema and c.table_name = s.table_name"
        " and c.column_name = s.column_name where s.table_schema = database() and s.index_name = 'PRIMARY'"
        f" and s.table_name = {literal(table)} order by s.seq_in_index"
    )
    try:
        rows = vtgate.execute(statement, f"{keyspace}:{shard}@{tablet_type.lower()}")
    except RelayError as error:
        raise Unavailable(f"the primary key of table {table} is not known: {error}") from error
    found = [list(row.values()) for row in rows]
    digest = hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()
    # Without a key, vtgate takes all columns for one, and nothing is larger than NULL.
    return KeyOrder(digest, bool(found) and all(_compares_as_sorted(kind or "", by or "") for _, kind, by in found))


def _compares_as_sorted(column_type: str, collation: str) -> bool:
    """Whether a column of a key is larger than the text of another value if and only if it comes after it.

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
    # Other characters have another order in some collations.
    return all(one.isascii() and one.isalnum() for one in names) and all(
        one < other and one.lower() < other.lower() for one, other in pairwise(names)
    )


def _value(rows: list[dict[str, str | None]]) -> str | None:
    return next(iter(rows[0].values()), None) if rows else None


def _first(rows: list[dict[str, str | None]], flavour: str) -> GtidSet | None:
    value = _value(rows)
    return gtid.parse(f"{flavour}/{value}") if value is not None else None
