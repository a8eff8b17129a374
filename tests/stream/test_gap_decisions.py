"""The records of gaps that wait for a person."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.kafka.checkpoints import StopRequested
from relay.records import (
    CommittedRecords,
    CommittedStream,
    Decision,
    Gap,
    PendingGap,
    ShardCheckpoint,
    ShardState,
    StreamId,
)
from relay.stream import gap_decisions
from relay.stream.gap_decisions import decision_about, resolved

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


def test_a_gap_that_another_gap_of_its_ended_shard_has_replaced_is_removed() -> None:
    """I9: otherwise the shard would be lost again once its checkpoint is pruned. A decision to repair goes over."""
    waiting, skip, repair = decided("w", None), decided("s", Decision.SKIP), decided("r", Decision.RESNAPSHOT)
    never, reading = decided("n", Decision.RESNAPSHOT), decided("o", Decision.SKIP)
    committed = committed_of(waiting, skip, repair, never, reading)
    committed.checkpoints = {shard: ShardCheckpoint(ShardState.GONE, gap=f"{shard} lost") for shard in "wsr"}
    committed.checkpoints |= {"n": ShardCheckpoint(ShardState.FINISHED), "o": ShardCheckpoint(ShardState.READING)}
    published = {"w lost", "s lost", "r lost"}
    assert committed.decided_repairs == {"r lost"}
    assert resolved(committed, published, set()) == [waiting.key, skip.key, never.key]
    assert resolved(committed, published, {"r lost"}) == [waiting.key, skip.key, repair.key, never.key]


def unavailable(*_: object) -> None:
    raise Unavailable("partition 3 has no leader")


def stop() -> None:
    raise StopRequested


@pytest.mark.parametrize("fails", ["require_end", "write"])
def test_a_gap_that_cannot_be_recorded_yet_waits_for_its_decision_alone(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: the other shards go on while one partition has no leader."""
    written: list[str] = []

    def write(settings: Any, pending: PendingGap, check: Callable[[], None]) -> None:
        written.append(pending.id)
        if fails == "write":
            unavailable()

    monkeypatch.setattr(gap_decisions, "write", write)
    view: Any = SimpleNamespace(of=CommittedRecords().of, check_stop=lambda: None, require_end=lambda *_: None)
    if fails == "require_end":
        view.require_end = unavailable
    gap = decided("s", None).gap
    for _ in range(2):
        no_settings: Any = None
        assert decision_about(no_settings, view, gap, 1.0) is None
    assert written == ([gap.id] * 2 if fails == "write" else [])  # it asks again


def test_a_stop_ends_the_wait_for_the_record_of_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10"""
    monkeypatch.setattr(gap_decisions, "write_unfenced", lambda *arguments: arguments[-1]())
    view: Any = SimpleNamespace(of=CommittedRecords().of, check_stop=stop, require_end=lambda *_: None)
    no_settings: Any = None
    with pytest.raises(StopRequested):
        decision_about(no_settings, view, decided("s", None).gap, 1.0)
