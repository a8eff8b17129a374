"""The commit path: what is in a transaction, what happens after an abort, and when a gap is reported."""

from __future__ import annotations

import json
from dataclasses import replace

import orjson
import pytest

from relay.change import Operation, SchemaChange, StatementText
from relay.engine.repeated_aborts import RepeatedAborts
from relay.kafka.assignment import NotAMember
from relay.kafka.checkpoints import partition_of
from relay.kafka.publisher import Aborted, Fenced, TooSlow
from relay.records import ReshardJournal, Shard, ShardCheckpoint, ShardListing
from relay.source import LastPage, Page
from relay.stream.watermark_records import MARGIN
from relay.token import EventToken
from tests.clock import Clock
from tests.engine.publishing_bench import SETTINGS, STREAM, TABLE, Bench, gap, page, positions
from tests.stream.latest import latest_of


def test_a_page_and_its_checkpoint_are_committed_together_and_fenced_by_its_partition() -> None:
    """I3, I4"""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, page(1))
    bench.publishing.page(shard, page(2))
    assert bench.broker.transactions == []
    assert bench.owner.confirmed == []
    bench.publishing.commit()
    ((*records,),) = bench.broker.transactions
    assert bench.broker.on("shop.orders") == [b"change-1", b"change-2"]
    assert [topic for topic, _ in records].count("shop.checkpoints") == 1
    assert positions(bench) == [{"sequence": 2}]
    assert bench.broker.fenced_by == [[partition_of(shard.key)]]
    assert [each.position for each in bench.owner.confirmed] == [{"sequence": 1}, {"sequence": 2}]
    assert not bench.publishing.waits


def test_after_an_abort_the_pages_are_published_again_in_order_but_not_those_of_closed_shards() -> None:
    """I1, I2, I3"""
    bench = Bench()
    kept, lost = bench.shard("s"), bench.shard("t")
    for number, shard in ((1, kept), (2, lost), (3, kept)):
        bench.publishing.page(shard, page(number, shard="s" if shard is kept else "t"))
    bench.broker.fails.append(Aborted("a rebalance"))
    with pytest.raises(Aborted):
        bench.publishing.commit()
    assert bench.owner.confirmed == []
    lost.closed = True
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    assert bench.broker.on("shop.orders") == [b"change-1", b"change-3"]
    assert positions(bench) == [{"sequence": 3}]
    assert [each.position for each in bench.owner.confirmed] == [{"sequence": 1}, {"sequence": 3}]


def test_pages_that_were_too_many_for_one_transaction_are_published_again_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I10: on a way that has become slow they would be aborted for ever."""
    for bound in ("SMALLEST_TRANSACTION", "LARGEST_TRANSACTION"):
        monkeypatch.setattr(f"relay.kafka.transaction.{bound}", 2)
    bench = Bench()
    shard = bench.shard()
    for number in range(1, 6):
        bench.publishing.page(shard, page(number))
    bench.broker.fails.append(TooSlow("not in time"))
    with pytest.raises(Aborted):
        bench.publishing.commit()
    bench.publishing.again(TooSlow("not in time"))
    bench.publishing.commit()
    assert [len(transaction) for transaction in bench.broker.transactions] == [3, 3, 2]
    assert bench.broker.on("shop.orders") == [b"change-%d" % number for number in range(1, 6)]
    assert positions(bench) == [{"sequence": 2}, {"sequence": 4}, {"sequence": 5}]
    assert [each.position for each in bench.owner.confirmed] == [{"sequence": number} for number in range(1, 6)]


def test_between_attempts_that_are_too_slow_the_group_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, I10: it would expel this worker, which would never notice."""
    for bound in ("SMALLEST_TRANSACTION", "LARGEST_TRANSACTION"):
        monkeypatch.setattr(f"relay.kafka.transaction.{bound}", 1)
    bench = Bench()
    shard = bench.shard()
    for number in range(1, 4):
        bench.publishing.page(shard, page(number))
    bench.broker.fails += [TooSlow("not in time"), TooSlow("not in time"), Aborted("not in time")]
    for _ in range(2):
        with pytest.raises(Aborted):
            bench.publishing.commit()
        bench.publishing.again(Aborted("not in time"))
    bench.publishing.commit()
    assert bench.broker.on("shop.orders") == [b"change-%d" % number for number in range(1, 4)]
    assert positions(bench) == [{"sequence": number} for number in range(1, 4)]


def test_a_page_that_is_committed_before_others_says_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, I4: once they have been sent, the shard's newest checkpoint is that of the last one."""
    for bound in ("SMALLEST_TRANSACTION", "LARGEST_TRANSACTION"):
        monkeypatch.setattr(f"relay.kafka.transaction.{bound}", 1)
    bench = Bench()
    checkpoints, _ = latest_of(STREAM, None, Clock(), has_journals=False)
    checkpoints.open(Shard("s"), None)
    monkeypatch.setattr(bench.owner, "checkpoint", lambda shard, page: checkpoints.covering(page))
    shard = bench.shard()
    for number in range(1, 4):
        bench.publishing.page(shard, replace(page(number), progress=100.0 + number))
    bench.broker.fails.append(Aborted("a rebalance"))
    with pytest.raises(Aborted):
        bench.publishing.commit()
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    covered = [ShardCheckpoint.from_json(value) for value in bench.broker.on("shop.checkpoints") if value]
    assert [(each.position, each.progress) for each in covered] == [({"sequence": n}, 100.0 + n) for n in (1, 2, 3)]


def test_the_watermark_of_a_pruned_shard_is_removed_with_its_checkpoint() -> None:
    """I11: the topics are compacted, and keep the last record of each key for ever."""
    bench = Bench()
    bench.publishing.forget(STREAM.shard_key("pruned"))
    bench.publishing.commit()
    assert sorted(bench.broker.transactions[0]) == [("shop.checkpoints", None), ("shop.watermarks", None)]


def test_a_fenced_worker_drops_its_pages_and_continues_under_another_name() -> None:
    """I3: only Kafka knows whether they were committed."""
    bench = Bench()
    bench.publishing.page(bench.shard(), page(1))
    bench.broker.fails.append(Fenced("another producer"))
    with pytest.raises(Fenced):
        bench.publishing.commit()
    bench.publishing.start_over(under_a_new_name=True)
    assert (bench.producers.name, bench.broker.opened) == ("shop-other", 2)
    assert not bench.publishing.waits
    bench.publishing.commit()
    assert bench.broker.transactions == []


def test_between_repeated_aborts_it_pauses_with_no_open_transaction() -> None:
    """I3: a transaction that stays open meanwhile would run into its timeout, and fence the worker."""
    bench = Bench()
    open_meanwhile: list[bool] = []
    bench.publishing._aborts = RepeatedAborts(
        SETTINGS, list, bench.liveness, sleep=lambda _: open_meanwhile.append(bench.publishing.transaction.open)
    )
    bench.publishing.page(bench.shard(), page(1))
    for _ in range(3):
        bench.broker.fails.append(Aborted("a topic is gone"))
        with pytest.raises(Aborted):
            bench.publishing.commit()
        bench.publishing.again(Aborted("a rebalance"))
    assert open_meanwhile == [False, False]
    bench.publishing.commit()
    bench.publishing.again(Aborted("a rebalance"))
    assert open_meanwhile == [False, False]


def test_an_abort_that_is_fenced_is_paced_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: or a relay whose topic is gone would start over again and again, and never say why."""
    bench = Bench()
    pauses: list[float] = []
    bench.publishing._aborts = RepeatedAborts(SETTINGS, list, bench.liveness, sleep=pauses.append)

    def fenced() -> None:
        raise Fenced("another producer")

    monkeypatch.setattr(bench.publishing.transaction, "abort", fenced)
    for _ in range(3):
        with pytest.raises(Fenced):
            bench.publishing.again(Aborted("a rebalance"))
    assert pauses == [0.05, 0.1]


def test_a_worker_that_is_expelled_while_it_publishes_again_keeps_its_pages_in_order() -> None:
    """I1, I2: before a gap it commits, which only a member may."""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, page(1))
    bench.broker.fails += [Aborted("a rebalance"), NotAMember("shop.relay")]
    with pytest.raises(Aborted):
        bench.publishing.page(shard, page(5, gap=gap()))
    with pytest.raises(NotAMember):
        bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    assert bench.broker.on("shop.orders") == [b"change-1", b"change-5"]
    assert len(bench.broker.on("shop.gaps")) == 1
    assert [each.position for each in bench.owner.confirmed] == [{"sequence": 1}, {"sequence": 5}]


def test_a_truncation_goes_to_every_partition() -> None:
    """I7: each holds rows of the table."""
    bench = Bench()
    truncated = page(1)
    truncated.changes[0].operation, truncated.changes[0].key = Operation.TRUNCATE, None
    bench.publishing.page(bench.shard(), truncated)
    bench.publishing.commit()
    assert bench.broker.on("shop.orders") == [b"everywhere"]


def test_changes_and_marks_go_to_as_many_partitions_as_the_plan_says() -> None:
    """I2: the topic may have more, and the config may say another number."""
    bench = Bench()
    writer = bench.publishing.writers["orders", "orders"]
    bench.publishing.page(bench.shard(), page(1))
    assert writer.partitions == 6
    bench.partitions["shop.orders"] = 24
    bench.publishing.page(bench.shard(), page(2))
    assert writer.partitions == 24
    bench.partitions["shop.orders"] = 48
    bench.publishing.everywhere(page(3).changes[0], 0)
    assert writer.partitions == 48


def test_tables_whose_key_has_changed_put_their_shard_aside_before_anything_of_the_page_is_sent() -> None:
    """I2, I12: their changes would go to other partitions. What came before them is committed, and that is visible."""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, page(1))
    bench.owner.refuses_tables = True
    bench.publishing.page(shard, replace(page(2), tables=(TABLE,)))
    assert bench.owner.aside == ["its key has changed"]
    assert bench.waited_for == [{partition_of(shard.key)}]  # I3: it will be opened again where it was left
    bench.publishing.commit()
    assert bench.broker.on("shop.orders") == [b"change-1"]
    assert [each.position for each in bench.owner.confirmed] == [{"sequence": 1}]


def test_a_journal_that_cannot_be_followed_puts_its_shard_aside_before_anything_of_the_page_is_sent() -> None:
    """I12: other shards, and other sources, are published."""
    bench = Bench()
    shard, other = bench.shard("s"), bench.shard("t")
    bench.publishing.page(shard, page(1))
    bench.owner.refuses_journal = True
    bench.publishing.page(shard, replace(page(2), end=LastPage(ReshardJournal("1", ("s",), {}))))
    assert bench.owner.aside == ["it merges shards that are not read"]
    bench.publishing.page(other, page(3, shard="t"))
    bench.publishing.commit()
    assert bench.broker.on("shop.orders") == [b"change-1", b"change-3"]
    assert [each.position for each in bench.owner.confirmed] == [{"sequence": 1}, {"sequence": 3}]


def test_no_page_passes_an_earlier_one_that_is_refused_when_it_is_published_again() -> None:
    """I1: its checkpoint would cover both."""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, replace(page(1), tables=(TABLE,)))
    bench.publishing.page(shard, page(2))
    bench.broker.fails.append(Aborted("a rebalance"))
    with pytest.raises(Aborted):
        bench.publishing.commit()
    bench.owner.refuses_tables = True
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    assert bench.owner.aside == ["its key has changed"]
    assert bench.broker.on("shop.orders") == []
    assert positions(bench) == []


def test_a_page_that_is_refused_while_the_commit_before_it_is_aborted_is_met_again() -> None:
    """I1: the next page of its shard may have been read, and must not be published in its place."""
    bench = Bench()
    shard = bench.shard()
    bench.publishing.page(shard, page(1))
    bench.owner.refuses_tables = True
    bench.broker.fails.append(Aborted("a rebalance"))
    with pytest.raises(Aborted):
        bench.publishing.page(shard, replace(page(2), tables=(TABLE,)))
    assert bench.owner.aside == []
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    assert bench.owner.aside == ["its key has changed"]
    assert bench.broker.on("shop.orders") == [b"change-1"]


def test_what_was_committed_earlier_is_waited_for_with_what_is_committed_now() -> None:
    """I3: a segment that is read on from an older checkpoint publishes rows twice."""
    bench = Bench()
    bench.publishing.commit_and_see()
    assert bench.waited_for == []
    bench.publishing.commit_and_watch({7})
    key = STREAM.shard_key("s")
    bench.publishing.record(key, b"{}")
    bench.publishing.commit_and_watch({7})
    assert bench.waited_for == [{7}, {7, partition_of(key)}]


def test_statements_are_committed_with_the_checkpoint_after_them_and_again_after_an_abort() -> None:
    """I3"""
    bench = Bench()
    token = EventToken(1, "shop/d/-", "MariaDB/0-1-2")
    made = SchemaChange("id", "ALTER", "shop", "d", "ALTER TABLE t", StatementText.COMPLETE, (), token, "0-1-2", 5)
    shard = bench.shard()
    bench.publishing.page(shard, Page(Shard("s"), [], {"sequence": 2}, token, 1.0, 0.0, schema_changes=[made]))
    bench.broker.fails.append(Aborted("a rebalance"))
    with pytest.raises(Aborted):
        bench.publishing.commit()
    assert bench.broker.on("shop.ddl") == []
    bench.publishing.again(Aborted("a rebalance"))
    bench.publishing.commit()
    ((*records,),) = bench.broker.transactions
    assert [topic for topic, _ in records] == ["shop.ddl", "shop.checkpoints"]
    assert positions(bench) == [{"sequence": 2}]
    (value,) = bench.broker.on("shop.ddl")
    assert json.loads(value or b"")["statement"] == "ALTER TABLE t"


def test_a_listing_that_is_too_large_for_a_record_is_not_written() -> None:
    """I10: each worker lists by itself then. The broker would refuse it for ever."""
    bench = Bench()
    bench.publishing.tell(STREAM.listing_key, ShardListing(1.0, 0.5, tuple(Shard(f"{n:040}") for n in range(20_000))))
    small = ShardListing(1.0, 0.5, tuple(Shard(f"{n:040}") for n in range(10_000)))
    bench.publishing.tell(STREAM.listing_key, small)
    bench.publishing.commit()
    assert bench.broker.on("shop.checkpoints") == [small.to_json()]
    bench.publishing.settings = replace(SETTINGS, limits={"shop.checkpoints": len(small.to_json())})
    bench.publishing.tell(STREAM.listing_key, small)
    bench.publishing.commit()
    assert bench.broker.on("shop.checkpoints") == [small.to_json()]


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_watermark_whose_transaction_was_aborted_is_published_again(is_fenced: bool) -> None:
    """I10: that of a stream that has ended never grows, and readers would wait for it for ever."""
    bench = Bench()
    publishing, clock = bench.publishing, Clock(1000.0)
    publishing._watermarks.clock = clock
    bench.group.owned = {partition_of(orjson.dumps(["v1", STREAM.source, STREAM.label]))}

    def published(watermark: float) -> list[float]:
        clock.now += 1.0
        publishing.watermarks(lambda: [(STREAM, watermark)])
        publishing.commit()
        return [orjson.loads(value or b"")["watermark"] + MARGIN for value in bench.broker.on(SETTINGS.watermarks)]

    assert published(20.0) == [20.0]
    bench.broker.fails.append(Fenced("another producer") if is_fenced else Aborted("a rebalance"))
    with pytest.raises((Aborted, Fenced)):
        published(30.0)
    if is_fenced:
        publishing.start_over(under_a_new_name=False)
    else:
        publishing.again(Aborted("a rebalance"))
    assert published(10.0) == [20.0]
    assert published(30.0) == [20.0, 30.0]
    assert published(30.0) == [20.0, 30.0]
