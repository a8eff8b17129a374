"""What is published of losses."""

from __future__ import annotations

from types import SimpleNamespace

from relay.engine.publishing import Publishing
from relay.lineage import Checkpoint, Gap, ShardState, StreamId


def test_a_loss_is_told_once_however_often_it_is_found_before_anything_is_read_after_it() -> None:
    """I9, I10: under `fail` nobody could accept it a second time, and the relay would never start again."""
    stream = StreamId("orders", "label")
    gap, later = (
        Gap("orders", "label", "s", "trimmed", {"type": "at_time", "seconds": at}, None, 0.0) for at in (1, 2)
    )
    publishing = object.__new__(Publishing)
    committed = {stream: {"s": Checkpoint(ShardState.READING, gap=gap.id), "t": Checkpoint(ShardState.READING)}}
    publishing._view = SimpleNamespace(checkpoints=committed)  # type: ignore[assignment]
    assert publishing._was_told(stream, gap)
    assert not publishing._was_told(stream, later)
    assert not publishing._was_told(StreamId("orders", "other"), gap)
