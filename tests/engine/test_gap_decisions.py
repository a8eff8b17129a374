"""The records of gaps that wait for a person."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from relay.engine.gap_decisions import Decision, PendingGap, records_of, resolved
from relay.lineage import Checkpoint, StreamId

STREAM = StreamId("orders", "label")


def view_of(*gaps: PendingGap) -> Any:
    records = {gap.id: Checkpoint.from_json(gap.to_json()) for gap in gaps}
    return SimpleNamespace(checkpoints={records_of(STREAM): records})


def decided(name: str, decision: Decision | None) -> PendingGap:
    return PendingGap(STREAM, {"id": name, "found_at": 0.0}, decision)


def test_a_decision_to_repair_stays_until_a_snapshot_was_requested_for_it() -> None:
    """I9: nothing else holds it."""
    skip, repair = decided("s", Decision.SKIP), decided("r", Decision.RESNAPSHOT)
    view = view_of(skip, repair, decided("p", None))
    assert resolved(view, STREAM, {"s", "r"}, set()) == [skip.key]
    assert resolved(view, STREAM, {"s", "r"}, {"r"}) == [skip.key, repair.key]
    assert resolved(view, STREAM, set(), {"r"}) == []
