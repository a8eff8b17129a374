"""The records of gaps that wait for a person."""

from __future__ import annotations

from relay.records import CommittedRecords, CommittedStream, Decision, Gap, PendingGap, StreamId
from relay.stream.gap_decisions import resolved

STREAM = StreamId("orders", "label")


def committed_of(*gaps: PendingGap) -> CommittedStream:
    view = CommittedRecords()
    for gap in gaps:
        view.apply(gap.key, gap.to_json())
    return view.of(STREAM)


def decided(shard: str, decision: Decision | None) -> PendingGap:
    return PendingGap(Gap(STREAM.source, STREAM.label, shard, "trimmed", None, None, 0.0), decision)


def test_a_decision_to_repair_stays_until_a_snapshot_was_requested_for_it() -> None:
    """I9: nothing else holds it."""
    skip, repair = decided("s", Decision.SKIP), decided("r", Decision.RESNAPSHOT)
    committed, published = committed_of(skip, repair, decided("p", None)), {skip.id, repair.id}
    assert resolved(committed, published, set()) == [skip.key]
    assert resolved(committed, published, {repair.id}) == [skip.key, repair.key]
    assert resolved(committed, set(), {repair.id}) == []
