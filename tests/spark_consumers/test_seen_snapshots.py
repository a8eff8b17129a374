"""What a copy remembers of snapshots: begun in the middle, given up, met again (I7)."""

from __future__ import annotations

from spark_consumers.seen_snapshots import SeenSnapshots


def test_the_end_of_a_snapshot_counts_only_where_its_begin_was_seen() -> None:
    """A copy that was begun in the middle of a snapshot did not get the rows read before."""
    seen = SeenSnapshots()
    assert not seen.has_begun(0, "a")
    seen.begin(0, "b")
    assert not seen.has_begun(1, "b")
    assert seen.has_begun(0, "b")
    seen.end(0, 200)
    assert not seen.has_begun(0, "b")


def test_a_page_of_a_snapshot_that_was_given_up_brings_nothing_back() -> None:
    seen = SeenSnapshots()
    seen.begin(0, "given-up")
    assert seen.accepts(0, 100)
    seen.begin(0, "next")
    assert seen.accepts(0, 100)  # whatever it brings, the end of the next sweeps
    assert not seen.has_begun(0, "given-up")
    seen.end(0, 200)
    assert not seen.accepts(0, 199)
    assert seen.accepts(0, 200)
    assert seen.accepts(1, 100)


def test_it_is_remembered_as_text() -> None:
    seen = SeenSnapshots()
    seen.begin(3, "a")
    seen.begin(4, "b")
    seen.end(4, 50)
    assert SeenSnapshots.from_json(seen.to_json()) == seen
    assert seen.to_json() == '{"ended": {"4": 50}, "running": {"3": "a"}}'
