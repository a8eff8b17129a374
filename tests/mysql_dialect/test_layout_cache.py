"""Layouts of tables: each is made once, and only those who need the one being made wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from relay.errors import Unavailable
from relay.mysql_dialect.catalog import Definition
from relay.mysql_dialect.layout_cache import LayoutCache, LostKey, SkippedTables
from relay.mysql_dialect.tables import Table, Unfit, lay_out, with_details
from relay.table import Column

NONE = SkippedTables("s", "shop", ())
COLUMNS = (Column("id", "int"),)
WAIT = 120.0


class SlowMaker:
    """Lays out tables. A table of ``blocked`` takes until its event is set."""

    def __init__(self, *blocked: str) -> None:
        self.release = {table: threading.Event() for table in blocked}
        self.asked: list[str] = []
        self.started = threading.Semaphore(0)
        self.failures: list[Exception] = []

    def __call__(self, table: str, columns: tuple[Column, ...], primary: tuple[str, ...]) -> Table | None:
        self.asked.append(table)
        self.started.release()
        if table in self.release:
            assert self.release[table].wait(WAIT)
        if self.failures:
            raise self.failures.pop()
        return lay_out("s", table, columns, primary)

    def wait_until_asked(self) -> None:
        assert self.started.acquire(timeout=WAIT)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def ask(pool: ThreadPoolExecutor, layouts: LayoutCache, table: str) -> Future[Table | None]:
    return pool.submit(layouts, table, COLUMNS, ("id",))


def test_a_layout_is_the_same_object_for_all(pool: ThreadPoolExecutor) -> None:
    make = SlowMaker()
    layouts = LayoutCache(make, NONE)
    first = layouts("orders", COLUMNS, ["id"])
    assert first is not None
    assert all(ask(pool, layouts, "orders").result(WAIT) is first for _ in range(3))
    other = layouts("orders", (*COLUMNS, Column("v", "string")), ["id"])
    assert other is not first
    assert make.asked == ["orders", "orders"]


def test_other_tables_do_not_wait_for_the_one_being_made(pool: ThreadPoolExecutor) -> None:
    make = SlowMaker("slow")
    layouts = LayoutCache(make, NONE)
    known = layouts("known", COLUMNS, ["id"])
    waiting = ask(pool, layouts, "slow")
    make.wait_until_asked()
    try:
        assert ask(pool, layouts, "known").result(WAIT) is known
        assert ask(pool, layouts, "new").result(WAIT) is not None
        assert not waiting.done()
    finally:
        make.release["slow"].set()
    assert waiting.result(WAIT) is not None


def test_whoever_needs_the_layout_being_made_waits_for_it_and_shares_it(pool: ThreadPoolExecutor) -> None:
    make = SlowMaker("slow")
    layouts = LayoutCache(make, NONE)
    first = ask(pool, layouts, "slow")
    make.wait_until_asked()
    threading.Timer(0.2, make.release["slow"].set).start()
    assert layouts("slow", COLUMNS, ["id"]) is first.result(WAIT)
    assert make.asked == ["slow"]


def test_a_failure_reaches_all_who_wait_for_it_and_is_not_kept(pool: ThreadPoolExecutor) -> None:
    make = SlowMaker("slow")
    make.failures.append(Unavailable("vtgate does not answer"))
    layouts = LayoutCache(make, NONE)
    first = ask(pool, layouts, "slow")
    make.wait_until_asked()
    # Nothing tells that the one below waits; it has to by then, or the failure is over and the layout is made again.
    threading.Timer(2.0, make.release["slow"].set).start()
    with pytest.raises(Unavailable, match="vtgate does not answer"):
        layouts("slow", COLUMNS, ["id"])
    assert isinstance(first.exception(WAIT), Unavailable)
    assert layouts("slow", COLUMNS, ["id"]) is not None
    assert make.asked == ["slow", "slow"]


def test_the_wait_for_a_layout_is_bounded(pool: ThreadPoolExecutor) -> None:
    make = SlowMaker("slow")
    layouts = LayoutCache(make, NONE, patience=0.05)
    waiting = ask(pool, layouts, "slow")
    make.wait_until_asked()
    try:
        with pytest.raises(Unavailable, match="the layout of table slow"):
            layouts("slow", COLUMNS, ["id"])
    finally:
        make.release["slow"].set()
    assert waiting.result(WAIT) is not None


def test_old_layouts_are_forgotten() -> None:
    """I11: a table may be altered again and again."""
    make = SlowMaker()
    layouts = LayoutCache(make, NONE)
    for number in range(10_001):
        layouts("t", (Column("id", "int"), Column(f"c{number}", "int")), ["id"])
    layouts("t", (Column("id", "int"), Column("c10000", "int")), ["id"])
    assert len(make.asked) == 10_001
    layouts("t", (Column("id", "int"), Column("c0", "int")), ["id"])
    assert len(make.asked) == 10_002


def test_a_table_with_a_type_that_is_not_known_is_left_out_unless_it_is_named_or_was_relayed() -> None:
    """I12, I1: as of a later server."""
    there = {
        "known": Definition([Column("id", "int")], ["id"], {}),
        "later": Definition([Column("id", "int")], ["id"], {}, "cannot be relayed with its column v: frobnicate"),
        "bare": Definition([Column("id", "int")], [], {}),
    }
    skipped = SkippedTables("s", "shop", ())
    layouts = LayoutCache(SlowMaker(), skipped)
    assert list(layouts.of_tables(there)) == ["known"]
    assert list(skipped.reasons) == ["later", "bare"]
    assert "frobnicate" in skipped.reasons["later"]
    skipped.keep(["later"])
    assert list(skipped.reasons) == ["bare"]
    with pytest.raises(Unfit, match="source s: the table later cannot be relayed with its column v: frobnicate"):
        layouts.of_tables(there)
    with pytest.raises(Unfit, match=r"the table later .*; source s: the table bare has no primary key"):
        LayoutCache(SlowMaker(), SkippedTables("s", "shop", ["later", "bare"])).of_tables(there)


def test_a_table_that_has_lost_its_key_stays_left_out_whatever_else_is_relayed_and_says_so_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I12, I1: also one that was never relayed, which another shard may relay; none that the config names."""
    skipped = SkippedTables("s", "shop", ())
    layouts = LayoutCache(SlowMaker(), skipped)
    for _ in range(2):
        with pytest.raises(LostKey):
            layouts("bare", COLUMNS, ())
    assert list(layouts.of_tables({"orders": Definition(COLUMNS, [], {})})) == []  # as of a start
    skipped.keep(["orders"])
    for table in ("new", "newer"):
        with pytest.raises(LostKey, match="source s: the table orders is left out until") as lost:
            layouts("orders", COLUMNS, ())
        assert lost.value.table == "orders"
        skipped.keep([table])
        skipped.take_back("orders")  # rows from before, when it is read again
        assert set(skipped.reasons) == {"bare", "orders"}
    assert "from here on" not in caplog.text
    skipped.take_back("orders", has_gap=True)
    skipped.take_back("bare")
    assert not skipped.reasons
    with pytest.raises(LostKey):
        layouts("orders", COLUMNS, ())
    skipped.forget("orders")
    assert not skipped.reasons
    assert caplog.text.count("are relayed from here on") == 2
    with pytest.raises(Unfit, match="has no primary key"):
        LayoutCache(SlowMaker(), SkippedTables("s", "shop", ["orders"]))("orders", COLUMNS, ())


def test_a_table_that_a_snapshot_finds_with_a_key_in_every_shard_is_not_left_out_any_more() -> None:
    """I12: no row of it may come for a long time. One that the snapshot does not read may lack changes."""
    skipped = SkippedTables("s", "shop", ())
    skipped.keep(["orders", "carts"])
    for table in ("orders", "carts", "bare"):
        assert skipped.skip(table, "has no primary key", lacks_key=True)
    assert skipped.skip("later", "cannot be read")
    assert skipped.measured({"orders", "carts", "later"}, ["orders"]) == []
    assert set(skipped.reasons) == {"carts", "bare", "later"}
    assert skipped.measured({"orders", "carts", "later"}, None) == ["bare", "later"]
    assert set(skipped.reasons) == {"bare", "later"}


def test_another_detail_is_another_layout_where_the_envelope_says_it() -> None:
    """I8: Kafka Connect cuts a number to the 16 bits that its schema says."""

    def make(table: str, columns: tuple[Column, ...], primary: tuple[str, ...]) -> Table:
        return with_details(lay_out("s", table, columns, primary))

    small, large = ([Column("id", "int", detail=detail)] for detail in ("smallint", "int"))
    layouts = LayoutCache(make, NONE, detailed=True)
    found = layouts("t", small, ("id",)), layouts("t", large, ("id",)), layouts("t", list(small), ("id",))
    assert [each and each.schema.details for each in found] == [
        (("id", "smallint"),), (("id", "int"),), (("id", "smallint"),)
    ]  # fmt: skip
    assert found[0] is found[2]
    plain = LayoutCache(make, NONE)
    assert plain("t", small, ("id",)) is plain("t", large, ("id",))
