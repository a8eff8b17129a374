"""What a worker does for the snapshots of its sources, beside their streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from relay.errors import RelayError
from relay.kafka.publisher import Aborted
from relay.records import ShardState, SnapshotRequest
from relay.snapshots.lifecycle import Snapshots
from relay.stream import discovery
from tests.engine.maintained import Maintained, NoRows
from tests.scripted_source import ScriptedSource


@pytest.fixture(autouse=True)
def lists_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_RELIST_SOON", 0.02)


@pytest.fixture
def source() -> ScriptedSource:
    return ScriptedSource("orders", shards=2)


def without_segments(source: ScriptedSource) -> tuple[Maintained, Snapshots]:
    """Return what reads the source, whose snapshots have nothing to read."""
    source.snapshots = NoRows()
    relay = Maintained(source)
    relay.serve_until(lambda: len(relay.checkpoints) == 2)
    assert relay.state.snapshots is not None
    return relay, relay.state.snapshots


def served_again(relay: Maintained) -> Callable[[Callable[[], object]], None]:
    """Return what serves ``relay`` until something is reached, while time passes."""

    def serve(reached: Callable[[], object]) -> None:
        def passed() -> object:
            relay.now += 10.0
            relay.state.look.soon()
            return reached()

        relay.serve_until(passed)

    return serve


def test_segments_that_were_stopped_wait_until_their_last_checkpoints_are_seen(source: ScriptedSource) -> None:
    """I3: also if the transaction is aborted in which they were stopped."""
    relay, snapshots = without_segments(source)
    snapshots.unseen = {7}
    relay.committed.fails = [Aborted("in which they were stopped")]
    relay.state.look.soon()
    relay.serve_until(lambda: not relay.committed.fails)
    assert (snapshots.unseen, relay.committed.seen) == ({7}, set())
    relay.serve_until(lambda: not snapshots.unseen)
    assert relay.committed.seen == {7}


def test_nothing_follows_from_the_record_of_a_snapshot_until_the_view_shows_it_and_nothing_waits_for_that(
    source: ScriptedSource,
) -> None:
    """I3: or it would be written and marked twice."""
    relay, snapshots = without_segments(source)
    relay.committed.shows = False
    request = SnapshotRequest.new("orders", (), relay.now)
    relay.view.apply(request.key, request.to_json())
    relay.serve_until(lambda: relay.committed.hidden)
    for _ in range(5):
        relay.now += 10.0
        relay.state.look.soon()
        relay.serve()
    assert relay.committed.hidden == [{snapshots.stream.snapshot_key}]
    assert snapshots.control is None
    assert not snapshots.is_settled()
    relay.committed.show()
    relay.serve_until(lambda: snapshots.control is not None)


def test_a_record_of_a_snapshot_that_was_aborted_is_written_again(source: ScriptedSource) -> None:
    """I1"""
    relay, snapshots = without_segments(source)
    request = SnapshotRequest.new("orders", (), relay.now)
    relay.view.apply(request.key, request.to_json())
    relay.committed.fails = [Aborted("in which it was requested")]
    relay.state.look.soon()
    relay.serve_until(lambda: not relay.committed.fails)
    assert snapshots.control is None
    relay.serve_until(lambda: snapshots.control is not None)


def test_a_snapshot_that_cannot_be_taken_is_set_aside_until_it_can_or_is_stopped(source: ScriptedSource) -> None:
    """I12: changes of the source, and of others, are published meanwhile."""
    relay, snapshots = without_segments(source)
    tables = cast(NoRows, source.snapshots)
    tables.problem = RelayError("the table has no primary key")
    request = SnapshotRequest.new("orders", (), relay.now)
    relay.view.apply(request.key, request.to_json())
    serve = served_again(relay)
    serve(lambda: relay.state.set_aside.refusals)
    [refusal] = relay.state.set_aside.refusals.values()
    assert "source orders: a snapshot cannot continue: the table has no primary key" in str(refusal.error)
    assert "`relay snapshot CONFIG orders --stop`" in str(refusal.error)
    assert relay.state._is_snapshot_stuck(relay.owned)  # `--until-caught-up` ends with the reason
    assert set(relay.state.shards.open) == set(relay.checkpoints)
    asked = tables.measured
    for _ in range(3):
        relay.now += 10.0
        relay.state.look.soon()
        relay.serve()
    assert tables.measured == asked

    relay.view.apply(request.key, request.changed(stopped=True, now=relay.now).to_json())
    relay.state.look.soon()
    relay.serve()
    assert not relay.state.set_aside.refusals
    assert snapshots.is_settled()
    relay.view.apply(request.key, request.changed(stopped=False, now=relay.now).to_json())
    serve(lambda: relay.state.set_aside.refusals)

    tables.problem = None
    aside = relay.state.set_aside
    aside.refusals = {key: replace(each, again_at=0.0) for key, each in aside.refusals.items()}

    def is_taken() -> bool:
        assert all(each.again_at == 0.0 for each in aside.refusals.values())  # not refused again
        return snapshots.control is not None and snapshots.control.state is ShardState.FINISHED

    serve(is_taken)
    assert not relay.state.set_aside.refusals
