"""The records of gaps that wait for a person."""

from __future__ import annotations

from relay.lineage import CommittedRecords, StreamId
from relay.stream.gap_decisions import Decision, PendingGap, resolved

STREAM = StreamId("orders", "label")


def view_of(*gaps: PendingGap) -> CommittedRecords:
    view = CommittedRecords()
    for gap in gaps:
        view.apply(gap.key, gap.to_json())
    return view


def decided(name: str, decision: Decision | None) -> PendingGap:
    return PendingGap(STREAM, {"id": name, "found_at": 0.0}, decision)


def test_a_decision_to_repair_stays_until_a_snapshot_was_requested_for_it() -> None:
    """I9: nothing else holds it."""
    skip, repair = decided("s", Decision.SKIP), decided("r", Decision.RESNAPSHOT)
    view = view_of(skip, repair, decided("p", None))
    assert resolved(view, STREAM, {"s", "r"}, set()) == [skip.key]
    assert resolved(view, STREAM, {"s", "r"}, {"r"}) == [skip.key, repair.key]
    assert resolved(view, STREAM, set(), {"r"}) == []
