"""Where the transactions of a reshard's target were made, in both flavours."""

from __future__ import annotations

from contextlib import closing

import pytest

from relay.errors import RelayError
from relay.gtid import GtidSet, parse
from relay.mysql.binlog.events import COMMIT, BinlogEvent, Rows, Statement, TransactionBegin
from relay.mysql.errors import NotCarried
from relay.mysql.origins import CheckpointTable, Parent, ReplicatedEvents, last_added
from relay.mysql.relayed_tables import Layouts
from relay.mysql.source import MySQLSource
from relay.mysql_dialect.tables import lay_out
from relay.table import Column
from tests.mysql.encoder import event, gtid, query
from tests.mysql.scripted import Scripted
from tests.mysql.scripted_binlogs import GTID, HEAD, QUERY, connected_to, read_commits
from tests.mysql.scripted_binlogs import A as SERVER
from tests.mysql.shards import config

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
TARGET = "5e11fa47-71ca-11e1-9e33-c80aa9429562"

CHECKPOINTS = CheckpointTable.named("_vt.vreplication")
VREPLICATION = CHECKPOINTS.layout(
    [Column(name, "string") for name in ("id", "source", "pos", "transaction_timestamp")], ["id"]
)
TABLE = lay_out("shop", "t", [Column("id", "int")], ["id"])
FINISHED = f"MySQL56/{A}:1-100"


def source(shard: str) -> str:
    return f'keyspace:"orders" shard:"{shard}" filter:{{rules:{{match:"/.*"}}}}'


class Stream:
    """Returns given transactions, after the set that it is opened at."""

    def __init__(self, *transactions: list[BinlogEvent]) -> None:
        self.transactions = transactions
        self.opened: list[GtidSet] = []
        self._left: list[list[BinlogEvent]] = []

    def __call__(self, start: GtidSet) -> Stream:
        self.opened.append(start)
        self._left = [each for each in self.transactions if not start.contains(parse(_begin(each).position))]
        return self

    def read(self, timeout: float) -> list[BinlogEvent]:
        # Events come as they come: not a transaction at a time.
        if not self._left:
            return []
        if len(self._left[0]) > 1:
            return [self._left[0][0], *self._rest()]
        return self._left.pop(0)

    def _rest(self) -> list[BinlogEvent]:
        first = self._left.pop(0)
        return first[1:]

    def close(self) -> None:
        self._left = []


def _begin(transaction: list[BinlogEvent]) -> TransactionBegin:
    begin = transaction[0]
    assert isinstance(begin, TransactionBegin)
    return begin


def replicated(number: int, position: str, before: str, shard: str = "-", size: int = 10) -> list[BinlogEvent]:
    """A transaction of the target that applies one of a parent."""
    row = ["1", source(shard), position, "1700000000"]
    was = ["1", source(shard), before, "1699999999"]
    return [
        TransactionBegin(f"{TARGET}:{number}", f"MySQL56/{TARGET}:1-{number}", 1_800_000_000, None),
        Rows(TABLE, [(None, (number,))], size),
        Rows(VREPLICATION, [(was, row)], 100),
        COMMIT,
    ]


def read(stream: Stream, start: str = f"MySQL56/{TARGET}:1") -> list[BinlogEvent]:
    parents = {"-": Parent("shop/orders/-", parse(FINISHED)), "80-": Parent("shop/orders/80-", parse(f"{B}:1-5"))}
    layouts = Layouts(config("shop", {"-": ["one:3306"]}, tables=["t"]))
    events = ReplicatedEvents(parents, CHECKPOINTS, parse(start), stream, layouts)
    told: list[BinlogEvent] = []
    for _ in range(2 * len(stream.transactions) + 2):
        told += events.read(0.0)
    return told


def origins(told: list[BinlogEvent]) -> list[tuple[str, str] | None]:
    return [
        (each.origin.gtid, each.origin.token.position) if isinstance(each, TransactionBegin) and each.origin else None
        for each in told
        if isinstance(each, TransactionBegin)
    ]


def rewritten(number: int, last: int, deletes: bool) -> list[BinlogEvent]:
    """As ``replicated``, but its row is replaced instead of updated; transactions of an old server come before."""
    row, was = (["1", source("-"), f"MySQL56/{A}:1-{at},{B}:1-1000", "1700000000"] for at in (last, last - 1))
    begin, rows, _, commit = replicated(number, f"MySQL56/{A}:1-{last}", f"MySQL56/{A}:1-{last - 1}")
    gone: list[BinlogEvent] = [Rows(VREPLICATION, [(was, None)], 100)] if deletes else []
    return [begin, rows, *gone, Rows(VREPLICATION, [(None, row)], 100), commit]


@pytest.mark.parametrize(
    ("deletes", "names"), [(True, [f"{A}:102", f"{A}:103"]), (False, [f"{TARGET}:2", f"{TARGET}:3"])]
)
def test_transactions_that_replace_their_row_have_names_of_their_own(deletes: bool, names: list[str]) -> None:
    """I1: with one name, later changes of a key would be duplicates of the first one."""
    told = read(Stream(*(rewritten(number, 100 + number, deletes) for number in (2, 3))))
    assert [each[0] for each in origins(told) if each] == names


@pytest.mark.parametrize("held", [1 << 20, 5])
def test_transactions_that_the_parent_published_are_dropped_and_others_have_its_names(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: also a transaction that is too big to hold."""
    monkeypatch.setattr("relay.mysql.origins.HELD", held)
    stream = Stream(
        replicated(2, f"MySQL56/{A}:1-99", f"MySQL56/{A}:1-98"),
        replicated(3, f"MySQL56/{A}:1-100", f"MySQL56/{A}:1-99"),
        replicated(4, f"MySQL56/{A}:1-101", f"MySQL56/{A}:1-100"),
        replicated(5, f"MySQL56/{A}:1-103,{B}:7", f"MySQL56/{A}:1-103"),
    )
    told = read(stream)
    rows = [each.changes[0][1] for each in told if isinstance(each, Rows)]
    assert rows == [(4,), (5,)]
    assert origins(told) == [None, None, (f"{A}:101", f"MySQL56/{A}:1-101"), (f"{B}:7", f"MySQL56/{A}:1-103,{B}:7")]
    begins = [each for each in told if isinstance(each, TransactionBegin) and each.origin]
    assert [each.timestamp for each in begins] == [1_700_000_000, 1_700_000_000]
    assert [each.origin.token.shard for each in begins if each.origin] == ["shop/orders/-"] * 2
    assert sum(each is COMMIT for each in told) == 4
    assert len(stream.opened) == (1 if held > 100 else 5)


def test_a_name_is_the_same_after_a_restart() -> None:
    """I3: it does not depend on what was read before."""
    stream = Stream(
        *(replicated(2 + n, f"MySQL56/{A}:1-{101 + 3 * n}", f"MySQL56/{A}:1-{98 + 3 * n}") for n in range(1, 5))
    )
    whole = origins(read(stream))
    for start in range(2, 6):
        assert origins(read(stream, f"MySQL56/{TARGET}:1-{start}")) == whole[max(0, start - 2) :]


def test_transactions_made_on_the_target_have_no_origin() -> None:
    own: list[BinlogEvent] = [
        TransactionBegin(f"{TARGET}:2", f"MySQL56/{TARGET}:1-2", 1, None),
        Rows(TABLE, [(None, (1,))], 9),
        COMMIT,
    ]
    told = read(Stream(own))
    assert told == own
    foreign = replicated(2, f"MySQL56/{A}:1-500", "", shard="40-80")
    assert origins(read(Stream(foreign))) == [None]


def test_a_transaction_that_was_replicated_without_a_checkpoint_is_refused() -> None:
    """I1, I3: it is not known whether its parent published it."""
    begun = TransactionBegin(f"{A}:101", f"MySQL56/{A}:101,{TARGET}:1", 1, None)
    with pytest.raises(RelayError, match=rf"{A}:101 was replicated .* _vt.vreplication, .*reshard_checkpoint_table"):
        read(Stream([begun, Rows(TABLE, [(None, (1,))], 9), COMMIT]))


def stated(gtid: str, sql: str) -> list[BinlogEvent]:
    return [TransactionBegin(gtid, f"MySQL56/{gtid},{TARGET}:1", 1, None), Statement(sql, "shop", 1, 0), COMMIT]


def test_a_truncate_that_the_parent_published_is_not_published_again() -> None:
    """I3: it would remove later rows from the copies."""
    told = read(Stream(stated(f"{A}:100", "TRUNCATE t"), stated(f"{A}:99", "DROP TABLE t")))
    assert [type(each) for each in told] == [TransactionBegin, Statement, type(COMMIT)] * 2
    assert not any(each.is_published for each in told if isinstance(each, Statement))


def test_a_truncate_that_was_replicated_without_a_checkpoint_is_refused() -> None:
    """I1, I3."""
    with pytest.raises(RelayError, match=rf"{A}:101 was replicated .* _vt.vreplication, .*reshard_checkpoint_table"):
        read(Stream(stated(f"{A}:101", "TRUNCATE t")))


def test_statements_that_empty_nothing_or_were_made_on_the_target_are_returned() -> None:
    for transaction in (
        stated(f"{A}:99", "ALTER TABLE u ADD COLUMN c INT"),
        stated(f"{A}:101", "DROP TABLE u"),
        stated(f"{TARGET}:2", "TRUNCATE t"),
    ):
        assert read(Stream(transaction)) == transaction


def test_the_layouts_of_checkpoint_tables() -> None:
    names = ("id", "source", "pos", "state", "transaction_timestamp")
    row = CHECKPOINTS.read(names, (1, source("80-").encode(), b"MariaDB/0-1-7", "Running", 5))
    assert row is not None
    assert (row.shard, str(row.position), row.timestamp, row.state) == ("80-", "0-1-7", 5, "Running")
    plain = CheckpointTable.named("meta.progress").read(("SHARD", "Position"), ("-80", f"{A}:1-5"))
    assert plain is not None
    assert (plain.shard, str(plain.position), plain.timestamp) == ("-80", f"{A}:1-5", 0)
    assert CHECKPOINTS.read(names, (1, source("80-"), None, "Init", 0)) is None
    assert CHECKPOINTS.read(names, (1, None, "MariaDB/0-1-7", "Running", 0)) is None
    with pytest.raises(RelayError, match=r"meta.progress has the columns a, b"):
        CheckpointTable.named("meta.progress").read(("a", "b"), (1, 2))
    with pytest.raises(RelayError, match=r"position of shard 80- is not a GTID set"):
        CHECKPOINTS.read(names, (1, source("80-"), "nonsense", "Running", 0))


def test_the_last_of_the_transactions_between_two_positions() -> None:
    assert last_added(parse(f"{A}:1-9"), parse(f"{A}:1-5")) == f"{A}:9"
    assert last_added(parse("MariaDB/0-1-9,1-1-3"), parse("MariaDB/0-1-9,1-1-2")) == "1-1-3"
    assert last_added(parse("MariaDB/0-1-9"), None) == "0-1-9"


@pytest.mark.parametrize(("table", "is_refused"), [("bare", False), ("t", True), ("moved", True)])
def test_only_statements_about_relayed_tables_and_checkpoints_stop_a_target(table: str, is_refused: bool) -> None:
    """I3, I12: the table `bare` is left out."""
    source = MySQLSource(config("shop", {"-": ["db1:3306"]}, reshard_checkpoint_table="shop.moved"))
    source.layouts.skipped.skip("bare", "has no primary key", lacks_key=True)
    statement = query(f"ALTER TABLE {table} DROP PARTITION p".encode())
    script = Scripted([*HEAD, event(GTID, gtid(SERVER, 10)), event(QUERY, statement)], executed=f"{SERVER}:1-10")
    with connected_to(script) as server, closing(source._open_replicated({})(server, parse(f"{SERVER}:1-9"))) as stream:
        if is_refused:
            with pytest.raises(NotCarried, match=f"removes or replaces rows of shop.{table}"):
                read_commits(stream, 1)
        else:
            read_commits(stream, 1)
