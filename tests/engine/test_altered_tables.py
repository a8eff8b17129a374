"""What is noted of tables whose rows a statement may have changed without a change: when, where and until when."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import pytest

from relay.change import AlteredTable, SchemaChange, StatementText
from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Aborted, Fenced
from relay.reading.reader_pool import OpenShard
from relay.records import Shard, SnapshotRequest
from relay.source import Page
from relay.token import EventToken
from tests.engine.publishing_bench import Bench, page

UNSEEN = {"t": "may have different values now", "u": "has the rows of t now"}


def statement(
    number: int,
    kind: str = "ALTER",
    *tables: AlteredTable,
    unseen: Collection[str] = (),
    reread: Sequence[str] = (),
    sql: str = "ALTER TABLE t",
    shard: str = "s",
) -> Page:
    """Return a page of ``shard`` with one statement, the transaction ``number``."""
    token = EventToken(1000 + number, f"shop/d/{shard}", f"MariaDB/0-1-{number}")
    said = (
        "shop",
        "d",
        f"{sql} /* top-secret */",
        StatementText.COMPLETE,
        tables,
        token,
        f"0-1-{number}",
        number * 1_000_000,
    )
    noted = {table: UNSEEN.get(table, "has other rows now") for table in unseen}
    made = SchemaChange(f"{number:032}", kind, *said, noted, tuple(reread), sql)
    return Page(Shard(shard), [], {"sequence": number}, token, 1.0, 0.0, schema_changes=[made])


def of(table: str, to: str | None = None) -> AlteredTable:
    return AlteredTable(table, None, None, None, None, to)


def noted(bench: Bench) -> list[tuple[str, int]]:
    """Return the tables that the view shows as altered, and by which statement."""
    bench.show()
    return [(each.tables[0], each.after - 1000) for each in bench.records.altered_of("shop")]


def abort(bench: Bench) -> None:
    bench.broker.fails.append(Aborted("a rebalance"))
    with pytest.raises(Aborted):
        bench.publishing.commit()


def test_snapshots_are_requested_in_the_transaction_of_the_statement_that_needs_them_and_once() -> None:
    """I3, I7: by whoever reads the shard, so that nobody who lost it requests them once more."""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, page(1))
    bench.publishing.page(shard, statement(2, unseen=UNSEEN, reread=[*UNSEEN]))
    abort(bench)
    assert bench.broker.transactions == []
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    assert bench.broker.fenced_by == [[partition_of(shard.key)]]
    *requests, checkpoint = bench.broker.on("shop.checkpoints")
    found = [SnapshotRequest.from_json(value or b"") for value in requests]
    assert [(each.source, each.tables, each.after) for each in found] == [
        ("shop", ("t",), 1002),
        ("shop", ("u",), 1002),
    ]
    assert len({each.key for each in found}) == 2
    assert {partition_of(each.key) for each in found} == {partition_of(shard.key)}
    assert {each.gap for each in found} == {None}
    assert json.loads(checkpoint or b"")["position"] == {"sequence": 2}
    gaps = [json.loads(value or b"") for value in bench.broker.on("shop.gaps")]
    assert [(each["table"], each["statement"]) for each in gaps] == [("t", "ALTER TABLE t"), ("u", "ALTER TABLE t")]


def test_each_shard_notes_a_statement_after_which_nobody_reads_the_table_again_and_the_gap_is_one() -> None:
    """I3, I9, I11: with its position, and in two records of each partition at most."""
    bench = Bench()

    def write(number: int, shard: str, sql: str) -> list[bytes | None]:
        """Return the records of the checkpoints that come with a statement, except the checkpoint of its shard."""
        bench.publishing.page(bench.shard(shard), statement(number, unseen=["t"], sql=sql, shard=shard))
        bench.publishing.commit()
        records = [value for topic, value in bench.broker.transactions[-1] if topic == "shop.checkpoints"]
        request = SnapshotRequest.from_json(records[0] or b"")
        assert partition_of(request.key) == partition_of(bench.shard(shard).key)
        assert (request.after, request.tables) == (1000 + number, ("t",))
        bench.show()
        return records[1:-1]

    assert [write(n, shard, "ALTER TABLE t MODIFY v INT") for n, shard in ((1, "-80"), (2, "80-"))] == [[], []]
    first, second = [json.loads(value or b"") for value in bench.broker.on("shop.gaps")]
    assert first["id"] == second["id"]
    assert (first["from"], first["found_at"], second["found_at"]) == ({"gtid": "0-1-1"}, 1002.0, 1003.0)
    assert [write(n, "80-", f"ALTER TABLE t MODIFY v DECIMAL(9,{n})") for n in (3, 4)] == [[], [None]]
    assert len({json.loads(value or b"")["id"] for value in bench.broker.on("shop.gaps")}) == 3
    assert bench.records.requests_of("shop") == []


@pytest.mark.parametrize("is_shown", [False, True])
def test_the_first_and_the_last_statement_about_a_table_stay_noted_after_aborts(is_shown: bool) -> None:
    """I11, I12: what an aborted transaction wrote or removed does not count, nor does a statement that comes again."""
    bench = Bench()
    shard = bench.shard()
    for number in range(1, 5):
        bench.publishing.page(shard, statement(number, unseen=["t"]))
        abort(bench)
        bench.publishing.again(Aborted("a rebalance"))
        bench.publishing.commit()
        if is_shown:
            assert noted(bench) == [("t", each) for each in sorted({1, number})]
    assert noted(bench) == [("t", 1), ("t", 4)]
    for number in (1, 4):  # as after `relay reset`
        bench.publishing.page(shard, statement(number, unseen=["t"]))
        bench.publishing.commit()
    assert noted(bench) == [("t", 1), ("t", 4)]


def test_after_its_snapshot_the_next_statement_about_a_table_is_its_first() -> None:
    """I12"""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, statement(1, unseen=["t"]))
    bench.publishing.commit()
    bench.show()
    (done,) = bench.records.altered_of("shop")
    bench.records.apply(done.key, None)
    for number in (2, 3, 4):
        bench.publishing.page(shard, statement(number, unseen=["t"]))
        bench.publishing.commit()
    assert noted(bench) == [("t", 2), ("t", 4)]


def noted_once(is_shown: bool) -> tuple[Bench, OpenShard]:
    """Return a bench whose first statement about ``t`` is noted, and its shard. ``is_shown``: in the view, too."""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, statement(1, unseen=["t"]))
    bench.publishing.commit()
    if is_shown:
        bench.show()
    return bench, shard


@pytest.mark.parametrize("is_shown", [False, True])
def test_of_several_statements_in_one_transaction_the_first_and_the_last_stay_noted(is_shown: bool) -> None:
    """I11: beside those of the transactions before, whether the view shows these or not."""
    bench, shard = noted_once(is_shown)
    for number in (2, 3, 4):
        bench.publishing.page(shard, statement(number, unseen=["t"]))
    bench.publishing.commit()
    assert noted(bench) == [("t", 1), ("t", 4)]


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_table_that_is_dropped_and_made_again_in_one_transaction_has_a_first_statement_of_its_own(
    is_shown: bool,
) -> None:
    """I12: the first says since when copies differ."""
    bench, shard = noted_once(is_shown)
    bench.publishing.page(shard, statement(2, "DROP", of("t")))
    for number in (3, 4, 5):
        bench.publishing.page(shard, statement(number, unseen=["t"]))
    bench.publishing.commit()
    assert noted(bench) == [("t", 3), ("t", 5)]


def test_a_fenced_worker_counts_on_no_statement_that_it_had_not_committed() -> None:
    """I12: another worker may have noted it, and a snapshot removed that, before the shard came back."""
    bench = Bench()
    bench.publishing.page(bench.shard(), statement(1, unseen=["t"]))
    bench.broker.fails.append(Fenced("another producer"))
    with pytest.raises(Fenced):
        bench.publishing.commit()
    bench.publishing.start_over(under_a_new_name=True)
    for number in (2, 3, 4):
        bench.publishing.page(bench.shard(), statement(number, unseen=["t"]))
        bench.publishing.commit()
    assert noted(bench) == [("t", 2), ("t", 4)]


def test_what_a_statement_did_to_a_table_is_forgotten_when_the_table_is_dropped_or_renamed() -> None:
    """I10: nobody could read it again, and the page would show it for ever."""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, statement(1, "ALTER", of("ghost"), unseen=["ghost"]))
    bench.publishing.page(shard, statement(2, "RENAME", of("t", "old"), of("ghost", "t"), unseen=["old", "t"]))
    bench.publishing.page(shard, statement(3, "DROP", of("old")))
    bench.publishing.commit()
    bench.publishing.page(shard, statement(4, "TRUNCATE", of("t")))  # the view does not show the last commit yet
    bench.publishing.page(shard, statement(5, "ALTER", of("u"), unseen=["u"]))
    abort(bench)
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    assert noted(bench) == [("u", 5)]
    bench.publishing.page(shard, statement(6, "ALTER", of("t"), unseen=["t"]))
    bench.publishing.commit()
    assert noted(bench) == [("u", 5), ("t", 6)]


def test_the_swap_of_an_online_schema_change_keeps_what_an_earlier_statement_did() -> None:
    """I12: since then copies differ."""
    bench = Bench()
    bench.publishing.page(bench.shard(), statement(1, "ALTER", of("t"), unseen=["t"]))
    swap = (of("t", "_t_del"), of("_t_gho", "t"))
    bench.publishing.page(bench.shard(), statement(2, "RENAME", *swap, unseen=["t"]))
    bench.publishing.commit()
    assert noted(bench) == [("t", 1), ("t", 2)]
