"""What a page changes in the checkpoint of its shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from relay.change import SchemaChange, StatementText
from relay.records import Gap, Plan, Shard, ShardCheckpoint, ShardState, StreamId
from relay.source import LastPage, Page, PageCounts
from relay.stream.shard_checkpoints import ShardCheckpoints
from relay.token import EventToken
from tests.stream.latest import latest_of

SHARD = Shard("-")
STREAM = StreamId("shop", "shop")
TOKEN = EventToken(1000, "shop/shop/-", "MariaDB/0-1-5")
AT = {"gtid": "MariaDB/0-1-5"}
PAGE = Page(SHARD, [], AT, None, None, begun=0.0)


def checkpoints(committed: ShardCheckpoint) -> ShardCheckpoints:
    plan = Plan("current", 900.0, {"-": {"gtid": "MariaDB/0-1-1"}}, {})
    found, _ = latest_of(STREAM, plan, lambda: 5000.0)
    found.open(SHARD, committed)
    return found


def gap(begin: Mapping[str, Any] | None) -> Gap:
    return Gap("shop", "shop", "-", "purged", begin, None, 0.0)


def test_an_empty_page_takes_nothing_back() -> None:
    """I4, I5: neither how far the shard was read, nor the timestamp below which no token may fall."""
    before = ShardCheckpoint(ShardState.READING, AT, TOKEN, progress=1000.0, reached=990.0, gap="g")
    after = checkpoints(before).covering(replace(PAGE, progress=940.0, reached=930.0))
    assert after is not None
    assert (after.token, after.progress, after.reached, after.gap) == (TOKEN, 1000.0, 990.0, "g")


@pytest.mark.parametrize(
    ("page", "quiet_at"),
    [
        (replace(PAGE, begun=4990.0), 4990.0),
        (replace(PAGE, begun=4990.0, pause=0.0), 4000.0),
        (replace(PAGE, begun=4990.0, counts=PageCounts(1)), 4000.0),
    ],
)
def test_an_empty_page_says_that_nothing_waits_unless_more_is_probably_there(page: Page, quiet_at: float) -> None:
    """So an idle shard of a source that does not know its head has no lag."""
    plan = Plan("current", 900.0, {"-": {}}, {})
    found, _ = latest_of(STREAM, plan, lambda: 5000.0, has_journals=False)
    found.open(SHARD, ShardCheckpoint(ShardState.READING, AT, TOKEN, quiet_at=4000.0))
    after = found.covering(page)
    assert after is not None
    assert after.quiet_at == quiet_at


def test_before_a_gap_the_position_of_its_begin_is_written_unless_it_says_less() -> None:
    """I4, I9: where a gap begins is part of its id, also after a restart."""
    begin = {"gtid": "MariaDB/0-1-7"}
    page = replace(PAGE, gap=gap(begin))
    between = checkpoints(ShardCheckpoint(ShardState.READING, AT, TOKEN))
    written = between.before_gap(page)
    assert written is not None
    assert (written.position, written.token) == (begin, TOKEN)
    assert between.before_gap(page) is None
    inside = {**AT, "transaction": "0-1-6", "rows_done": 3}
    assert checkpoints(ShardCheckpoint(ShardState.READING, inside, TOKEN)).before_gap(page) is None


def test_a_shard_that_is_gone_has_a_gap_from_its_newest_position() -> None:
    """I9: also if that is not committed yet."""
    found = checkpoints(ShardCheckpoint(ShardState.READING, {"gtid": "MariaDB/0-1-2"}, None))
    found.covering(replace(PAGE, end=LastPage()))
    last, lost = found.gone("-")
    assert (last.state, last.gap) == (ShardState.GONE, lost.id)
    assert (lost.reason, lost.begin) == ("shard lost", AT)


def test_a_shard_is_finished_by_its_last_page_only() -> None:
    """I1, I2: its children are read from then on, and it is not read again."""
    found = checkpoints(ShardCheckpoint(ShardState.PLANNED))
    states = [found.covering(replace(PAGE, end=end)) for end in (None, LastPage())]
    assert [each.state for each in states if each] == [ShardState.READING, ShardState.FINISHED]


def test_a_page_with_a_statement_has_a_checkpoint_although_nothing_else_is_in_it() -> None:
    """I3: without one, the statement would be published again after a restart."""
    committed = ShardCheckpoint(ShardState.READING, {"gtid": "MariaDB/0-1-4"}, None, updated_at=5000.0)
    made = SchemaChange("id", "ALTER", "shop", "shop", "ALTER TABLE t", StatementText.COMPLETE, (), TOKEN, "0-1-5", 0)
    assert checkpoints(committed).covering(PAGE) is None
    after = checkpoints(committed).covering(replace(PAGE, schema_changes=[made], token=TOKEN))
    assert after is not None
    assert (after.position, after.token) == (AT, TOKEN)


def test_a_page_with_a_gap_has_a_checkpoint_although_nothing_else_is_in_it() -> None:
    """I3, I9: it is what tells after a restart that the gap is published."""
    committed = ShardCheckpoint(ShardState.READING, AT, TOKEN, updated_at=5000.0)
    assert checkpoints(committed).covering(PAGE) is None
    lost = gap(AT)
    after = checkpoints(committed).covering(replace(PAGE, gap=lost))
    assert after is not None
    assert (after.gap, after.token) == (lost.id, TOKEN)
