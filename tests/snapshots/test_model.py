"""Every order of what may happen during a snapshot, in small scenarios: ``make model`` plays the large ones."""

from __future__ import annotations

import pytest

from tests.snapshots.model.explore import explore, walk
from tests.snapshots.model.scenarios import RANDOM, SMALL


@pytest.mark.parametrize("name", SMALL)
def test_in_every_order_copies_end_with_what_the_tables_have(name: str) -> None:
    """I1, I7, I9, I10: nothing is deleted that lives, gaps are repaired, requests fulfilled, and it comes to an end."""
    found = explore(SMALL[name])
    assert found.problem is None, found.trace
    assert found.states > 100


@pytest.mark.parametrize("name", RANDOM)
def test_in_a_long_random_order_copies_end_with_what_the_tables_have(name: str) -> None:
    for seed in range(25):
        found = walk(RANDOM[name], seed)
        assert found.problem is None, (seed, found.trace)
