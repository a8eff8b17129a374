"""What ends ``--until-caught-up``: what was there at the start has been read, and nothing less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.engine.caught_up import CaughtUp
from relay.lineage import Checkpoint, Shard, ShardState
from relay.source import Page

STARTED = 1000.0
PARENT, CHILD = Shard("p"), Shard("c", ("p",))
PAGE = Page(PARENT, [], None, None, None, begun=STARTED + 1)
READING = Checkpoint(ShardState.READING)


def noted(*pages: Page, has_heads: bool) -> CaughtUp:
    caught_up = CaughtUp(STARTED, has_heads=has_heads)
    for page in pages:
        caught_up.note(page)
    return caught_up


@pytest.mark.parametrize("has_heads", [False, True])
def test_empty_pages_count_only_where_nothing_else_tells_of_the_head(has_heads: bool) -> None:
    """A stream gives empty pages also while its server is still looking for the place."""
    caught_up = noted(*[PAGE] * 5, has_heads=has_heads)
    assert caught_up.has(PARENT, READING, STARTED) is not has_heads


def test_a_head_that_was_reached_counts_from_the_start_on_wherever_it_was_reached() -> None:
    before, after = replace(PAGE, reached=STARTED - 1), replace(PAGE, reached=STARTED + 1)
    assert not noted(before, has_heads=True).has(PARENT, READING, STARTED)
    assert noted(after, has_heads=True).has(PARENT, READING, STARTED)
    elsewhere = Checkpoint(ShardState.READING, reached=STARTED + 1)
    assert noted(has_heads=True).has(PARENT, elsewhere, STARTED)


def test_a_shard_that_followed_another_before_the_start_has_to_reach_its_own_head() -> None:
    """I1 for whoever waits for the command: a reshard while the relay was down leaves all of the target to read."""
    ended = replace(PAGE, reached=STARTED + 1, finished=True)
    assert not noted(ended, has_heads=True).has(CHILD, READING, STARTED)
    assert noted(ended, has_heads=False).has(CHILD, READING, STARTED)
