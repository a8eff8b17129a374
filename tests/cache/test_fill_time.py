"""How long a reader waits for another's load, from the loads seen so far."""

from __future__ import annotations

import random

import pytest

from relay.cache.reads import CountedReads


def test_before_any_load_is_known_it_is_the_bound() -> None:
    assert CountedReads().usual_fill_time(5.0) == 5.0


@pytest.mark.parametrize("typical", [0.001, 0.05, 1.0])
def test_it_is_longer_than_nearly_all_loads_and_not_much_longer_than_them(typical: float) -> None:
    rng, times = random.Random(1), CountedReads()
    waits = []
    for _ in range(2000):
        took = rng.uniform(0.5, 1.5) * typical
        waits.append((took, times.usual_fill_time(5.0)))
        times.count_fill_time(took)
    late = [took for took, wait in waits[20:] if took > wait]
    assert len(late) < 20
    assert max(wait for _, wait in waits[20:]) < 4 * typical


def test_it_follows_loads_that_become_slower_and_is_never_above_the_bound() -> None:
    times = CountedReads()
    for _ in range(50):
        times.count_fill_time(0.01)
    assert times.usual_fill_time(5.0) < 0.05
    times.count_fill_time(1.0)
    assert 0.5 < times.usual_fill_time(5.0) < 2.0
    for _ in range(50):
        times.count_fill_time(10.0)
    assert times.usual_fill_time(5.0) == 5.0
