"""A shard that is listed after its children were begun: what it has is a gap."""

from __future__ import annotations

import pytest

from relay.dynamodb.source import DynamoDBSource
from relay.records import Plan
from relay.stream.open_shards import LateShard, start_of_late
from tests.dynamodb.endpoint import ScriptedStream, full
from tests.dynamodb.opened_source import reader
from tests.reads import read_page

SINCE = 1_700_000_000.0


def late(source: DynamoDBSource, start: dict[str, object]) -> LateShard:
    plan = Plan("latest", SINCE, {full("c"): start}, {})
    reading = reader(source, start=start_of_late(plan, [full("c")]) or plan.start_of(reader(source).shard))
    return LateShard(reading, source.stream, clock=source.clock)


def test_the_changes_of_a_late_shard_are_a_gap_and_its_end(source: DynamoDBSource, stream: ScriptedStream) -> None:
    """I2, I9: they would come after those of its children."""
    stream.shard("s")
    stream.pages("s", 0, 1)
    reading = late(source, {"type": "trim_horizon"})
    first = read_page(reading)
    assert (first.gap, first.finished) == (None, False)
    page = read_page(reading)
    assert page.gap is not None
    assert (page.gap.reason, page.gap.shard) == ("shard lost", full("s"))
    assert (list(page.changes), page.token, page.position, page.finished) == ([], None, None, True)


@pytest.mark.parametrize("older", [0, 2])
def test_a_late_shard_without_changes_from_after_the_start_ends_without_a_gap(
    source: DynamoDBSource, stream: ScriptedStream, older: int
) -> None:
    """As one whose records were trimmed, which a listing may show for the last time."""
    stream.shard("s")
    for version in range(older):
        stream.put("s", "k", version, created=int(SINCE) - 3600)
    stream.close("s")
    page = read_page(late(source, {"since": SINCE}))
    assert (page.gap, list(page.changes), page.finished) == (None, [], True)
