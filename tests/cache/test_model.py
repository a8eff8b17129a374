"""Every interleaving of small scenarios. ``make model`` plays the large ones, ``make quick`` leaves out the longest."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.cache.broken import GUARDS
from tests.cache.model.explore import explore
from tests.cache.model.scenarios import CAUGHT_IN, SMALL, TOO_LONG
from tests.examples import is_quick

LONGEST = (
    "a dropped value that forgets what it replaced",
    "a fill over nothing that asks for no floor",
    "a filler with a shorter tombstone_ttl",
    "a value that goes before the tombstone it replaced",
    "a writer with a shorter tombstone_ttl",
    "an expired value that discards an invalidation and then goes",
    "floors that ignore evictions",
    "floors that ignore expired tombstones",
    "replicas, and a full store",
    "replicas, and an entry is evicted",
    "replicas, and time passes",
    "replicas, then the primary",
)
"""Scenarios that take longer than all others together."""


def played(names: Iterable[str]) -> list[str]:
    return [name for name in names if not (is_quick() and name in LONGEST)]


@pytest.mark.parametrize("name", played(SMALL))
def test_no_interleaving_serves_a_value_older_than_an_applied_invalidation(name: str) -> None:
    """I6, exhaustively: two writers, two fillers, an invalidator, and what a scenario adds."""
    found = explore(SMALL[name])
    assert found.problem is None, found.trace
    assert found.executions > found.states > 1000


@pytest.mark.parametrize("name", played(CAUGHT_IN))
def test_the_model_shows_the_shortest_way_to_a_stale_value_without_a_guard(name: str) -> None:
    """It shows that the model can fail, and that a trace leads where it says."""
    guard = GUARDS[name]
    with guard.missing():
        found = explore(CAUGHT_IN[name], around=guard.store)
    assert found.problem is not None
    assert 10 < len(found.trace) < 50


def test_the_model_notices_each_missing_guard_but_one() -> None:
    assert CAUGHT_IN.keys() | {TOO_LONG} == GUARDS.keys()
    assert len(CAUGHT_IN) >= 20
