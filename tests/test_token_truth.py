"""``compare`` against the true versions of items in ``tests/lineages.py``: UNKNOWN is allowed, a wrong order never."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.token import Order, compare
from tests.examples import examples
from tests.lineages import ITEMS, Reading, World, pairs, read
from tests.token_orders import EQUAL, MIRROR, NEWER, OLDER, UNKNOWN


def wrong_orders(
    readings: list[Reading], *, timestamp_first: bool = False, positions_only: bool = False
) -> list[tuple[Reading, Reading, Order]]:
    """Return the pairs of changes of one item whose order ``compare`` gets wrong, with that order."""
    rule = partial(compare, timestamp_first=timestamp_first, positions_only=positions_only)
    false = []
    for a, b in pairs(readings):
        order = rule(a.token, b.token)
        assert rule(b.token, a.token) is MIRROR[order]
        allowed = {OLDER: a.version <= b.version, NEWER: a.version >= b.version, EQUAL: a.version == b.version}
        if not allowed.get(order, True):
            false.append((a, b, order))
    return false


@pytest.mark.parametrize("drop", [True, False], ids=["replays dropped", "replays kept"])
@pytest.mark.parametrize("parallel", [False, True], ids=["serial replicas", "parallel replicas"])
@pytest.mark.parametrize("replayed", [True, False], ids=["filtered replication", "journal"])
@pytest.mark.parametrize("flavour", ["MySQL56", "MariaDB"])
@settings(deadline=None, max_examples=examples(60))
@given(seed=st.integers(0, 2**32))
def test_no_order_contradicts_the_truth_on_replicated_shards(
    flavour: str, replayed: bool, parallel: bool, drop: bool, seed: int
) -> None:
    """I2, I5, I7: across splits, merges, failovers, wrong clocks, and replication back and further."""
    rng = Random(seed)
    world = World(rng, flavour, replayed=replayed, parallel=parallel)
    readings = read(world, rng, parallel=parallel, drop=drop)
    assert wrong_orders(readings) == []
    for item in ITEMS:
        assert max((r.version for r in readings if r.item == item), default=0) == world.version[item]


@pytest.mark.parametrize(("flavour", "seed"), [("MySQL56", 126), ("MySQL56", 130), ("MariaDB", 107)])
def test_no_order_contradicts_the_truth_where_replication_back_is_replicated_further(flavour: str, seed: int) -> None:
    """I5: in these lineages the timestamp of a newer change with an origin on a third shard is the older one."""
    for drop in (True, False):
        rng = Random(seed)
        assert (
            wrong_orders(read(World(rng, flavour, replayed=True, parallel=False), rng, parallel=False, drop=drop)) == []
        )


@pytest.mark.parametrize("flavour", ["MySQL56", "MariaDB"])
@pytest.mark.parametrize("rewound", [False, True], ids=["a second reader", "read again"])
@settings(deadline=None, max_examples=examples(15))
@given(seed=st.integers(0, 2**32), replayed=st.booleans(), parallel=st.booleans())
def test_positions_are_right_where_the_timestamps_of_two_readers_are_wrong(
    flavour: str, rewound: bool, seed: int, replayed: bool, parallel: bool
) -> None:
    """I5: the second reader has its own floors, or reads again above those of the first."""
    rng = Random(seed)
    world = World(rng, flavour, replayed=replayed, parallel=parallel)
    first = read(world, rng, parallel=parallel)
    least = max((reading.token.timestamp for reading in first), default=0) if rewound else 0
    assert wrong_orders(first + read(world, rng, parallel=parallel, least=least), positions_only=True) == []


@settings(deadline=None, max_examples=examples(150))
@given(seed=st.integers(0, 2**32))
def test_no_order_contradicts_the_truth_on_dynamodb_shards(seed: int) -> None:
    """I2, I5, I7: here timestamps first and positions first are both right, also between two readers."""
    rng = Random(seed)
    world = World(rng, "DynamoDB", replayed=False, parallel=False)
    readings = read(world, rng, parallel=False)
    assert wrong_orders(readings) == wrong_orders(readings, timestamp_first=True) == []
    assert wrong_orders(readings + read(world, rng, parallel=False)) == []


@pytest.mark.parametrize("flavour", ["MySQL56", "MariaDB"])
@settings(deadline=None, max_examples=examples(15))
@given(seed=st.integers(0, 2**32), parallel=st.booleans())
def test_changes_read_again_above_the_floor_never_make_a_newer_change_look_older(
    flavour: str, seed: int, parallel: bool
) -> None:
    """I7: after a reset to an earlier time a store may hold older values for a while, and then the right ones."""
    rng = Random(seed)
    world = World(rng, flavour, replayed=True, parallel=parallel)
    first = read(world, rng, parallel=parallel)
    again = read(world, rng, parallel=parallel, least=max((a.token.timestamp for a in first), default=0))
    for a in first:
        assert not any(compare(b.token, a.token) is OLDER for b in again if b.item == a.item and b.version > a.version)


def test_the_order_of_most_changes_is_known() -> None:
    """UNKNOWN for everything would be safe too, and useless."""
    for flavour in ("MySQL56", "MariaDB", "DynamoDB"):
        orders = Counter[tuple[Order, bool]]()
        for seed in range(30):
            rng = Random(seed)
            world = World(rng, flavour, replayed=flavour != "DynamoDB", parallel=False)
            for a, b in pairs(read(world, rng, parallel=False)):
                orders[compare(a.token, b.token), a.token.shard == b.token.shard] += 1
        assert orders[UNKNOWN, True] <= orders.total() / 1000
        assert 0 < orders[UNKNOWN, False] < orders.total() / 30


@pytest.mark.parametrize("flavour", ["MySQL56", "MariaDB", "DynamoDB"])
def test_the_lineages_catch_weaker_tokens_and_rules(flavour: str) -> None:
    """Without floors for timestamps, without origins, or with the timestamps of two readers, orders are wrong."""
    replayed = flavour != "DynamoDB"
    found = Counter[str]()
    for seed in range(20):
        rng = Random(seed)
        world = World(rng, flavour, replayed=replayed, parallel=False)
        found["clocks"] += len(wrong_orders(read(world, rng, parallel=False, clamp=False)))
        found["timestamp first"] += len(
            wrong_orders(read(world, rng, parallel=False, clamp=False), timestamp_first=True)
        )
        kept = read(world, rng, parallel=False, drop=False)
        found["origins"] += len(wrong_orders([replace(r, token=replace(r.token, origin=None)) for r in kept]))
        least = max((reading.token.timestamp for reading in kept), default=0)
        found["readers"] += len(wrong_orders(kept + read(world, rng, parallel=False, drop=False, least=least)))
    assert found["clocks"] > 0
    assert found["timestamp first"] > 0
    assert found["readers"] > 0
    assert (found["origins"] > 0) is replayed
