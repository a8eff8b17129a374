"""The snapshots that a copy has seen: from the middle, abandoned, and replayed (I7)."""

from __future__ import annotations

from spark_consumers.sinks.tombstones import SeenSnapshots


def test_the_end_of_a_snapshot_only_counts_after_its_begin() -> None:
    """A copy that started in the middle of a snapshot lacks the rows that were read before."""
    seen = SeenSnapshots()
    assert not seen.has_begun(0, "a")
    seen.begin("orders", 0, "b", 1)
    assert not seen.has_begun(1, "b")
    assert seen.has_begun(0, "b")
    seen.end(0, 200)
    assert not seen.has_begun(0, "b")


def test_a_page_of_an_abandoned_snapshot_restores_nothing() -> None:
    seen = SeenSnapshots()
    seen.begin("orders", 0, "abandoned", 1)
    assert seen.accepts(0, 100)
    seen.begin("orders", 0, "next", 2)
    assert seen.accepts(0, 100)  # the end of the next snapshot sweeps what it restores
    assert not seen.has_begun(0, "abandoned")
    seen.end(0, 200)
    assert not seen.accepts(0, 199)
    assert seen.accepts(0, 200)
    assert seen.accepts(1, 100)


def test_the_end_of_an_earlier_snapshot_lets_no_page_in_from_before_a_later_one() -> None:
    """I7: both are replayed, or a driver is behind."""
    seen = SeenSnapshots()
    seen.begin("orders", 0, "later", 1)
    seen.end(0, 200)
    seen.begin("orders", 0, "earlier", 2)
    seen.end(0, 100)
    assert not seen.accepts(0, 199)
    assert seen.accepts(0, 200)


def test_seen_snapshots_are_stored_as_json() -> None:
    seen = SeenSnapshots()
    seen.begin("orders", 3, "a", 7)
    seen.begin("orders", 4, "b", 8)
    seen.end(4, 50)
    assert SeenSnapshots.from_json(seen.to_json()) == seen
    stored = '{"begun": {"3": 7, "4": 8}, "ended": {"4": 50}, "moved": {}, "running": {"3": "a"}, "topic": "orders"}'
    assert seen.to_json() == stored


def test_a_driver_that_is_behind_does_not_begin_an_earlier_snapshot_in_place_of_a_later_one() -> None:
    """The end of the later one would count for nobody. One that is replayed as a whole begins and ends again."""
    seen = SeenSnapshots()
    seen.begin("orders", 0, "later", 9)
    seen.begin("orders", 0, "earlier", 5)
    assert seen.has_begun(0, "later")
    seen.end(0, 200)
    seen.begin("orders", 0, "earlier", 5)
    assert seen.running == {}
    seen.begin("orders", 0, "later", 9)
    assert seen.has_begun(0, "later")


def test_a_snapshot_of_a_topic_that_was_replaced_does_not_run_any_more() -> None:
    """It would keep the tombstones for ever, in the partitions that the new topic lacks."""
    seen = SeenSnapshots()
    for partition in range(3):
        seen.begin("orders", partition, "a", 100)
    seen.end(0, 100)
    for partition in range(2):
        seen.begin("orders2", partition, "b", 1)
    assert seen.running == {"0": "b", "1": "b"}
    assert seen.accepts(0, 99)
    assert not seen.is_last(0, 200, "01")
    seen.end(0, 200)
    assert seen.is_last(1, 200, "01")


def test_a_snapshot_has_ended_once_every_partition_has_ended_it_or_a_later_one() -> None:
    """I9: one that lags behind has not begun it, so nothing runs there; or it was met in the middle there."""
    seen = SeenSnapshots()
    for partition, as_of, is_last in (0, 100, False), (1, 100, False), (2, 100, True), (0, 200, False), (1, 150, False):
        seen.begin("orders", partition, f"s{as_of}", as_of)
        assert seen.is_last(partition, as_of, "012") is is_last
        seen.end(partition, as_of)
        seen = SeenSnapshots.from_json(seen.to_json())
    seen.begin("orders", 2, "s150", 150)
    assert seen.is_last(2, 150, "012")
    assert not seen.is_last(2, 150, "0123")  # one that was added
