"""Which shard of a keyspace has the rows of a sharding key, and what is refused before anything is connected to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.keyrange import shard_range
from relay.keyspace import KeyspaceQueries
from relay.vitess.vindex import COMPUTED, NoKeyspaceId, UncomputableVindex, keyspace_id

BOUNDS = st.sets(st.binary(min_size=1, max_size=2).filter(lambda bound: bound.rstrip(b"\0") != b""), max_size=12)


def unreachable(address: str) -> Any:
    raise AssertionError(f"{address} was connected to")


def keyspace(shards: list[str], vindex: str | None, **servers: list[str]) -> KeyspaceQueries:
    listed = {name: servers.get(name, ["db:3306"]) for name in shards}
    return KeyspaceQueries("legacy/shop", listed, vindex, connect=unreachable, watch=unreachable)


def named(bounds: set[bytes]) -> list[str]:
    """Return the names of the shards between bounds."""
    ordered = [b"", *sorted({bound.rstrip(b"\0") for bound in bounds}), b""]
    return [f"{start.hex()}-{end.hex()}" for start, end in pairwise(ordered)]


@given(BOUNDS, st.sampled_from(["hash", "xxhash", "numeric", "reverse_bits"]), st.integers(0, 2**64 - 1), st.randoms())
def test_a_key_is_read_in_the_only_shard_whose_range_has_its_keyspace_id(
    bounds: set[bytes], vindex: str, number: int, chance: Any
) -> None:
    names = named(bounds)
    shuffled = chance.sample(names, len(names))
    holding = [name for name in names if shard_range(name).contains(keyspace_id(vindex, number))]
    queries = keyspace(shuffled, vindex)
    assert [queries.shard_of(number)] == holding
    assert list(queries.shards) == names


@given(st.binary(max_size=4))
def test_keyspace_ids_are_padded_with_zero_bytes_as_bounds_are(value: bytes) -> None:
    queries = keyspace(["-80", "80-8001", "8001-"], "binary")
    assert shard_range(queries.shard_of(value)).contains(value)


def test_text_and_numbers_of_cache_keys_lead_to_the_shard_of_the_row() -> None:
    queries = keyspace(["-80", "80-"], "hash")
    assert [queries.shard_of(key) for key in ("7", b"7", 7)] == [queries.shard_of(7)] * 3


def test_a_keyspace_of_one_shard_needs_no_vindex() -> None:
    assert keyspace(["-"], None).shard_of() == "-"
    assert keyspace(["0"], None).shard_of("anything") == "0"


def test_a_value_without_a_keyspace_id_has_no_shard() -> None:
    with pytest.raises(NoKeyspaceId, match="vindex hash has no keyspace id for 'ann'"):
        keyspace(["-80", "80-"], "hash").shard_of("ann")


@pytest.mark.parametrize(
    ("vindex", "reason"),
    [
        ("lookup_hash_unique", "vindex lookup_hash_unique looks up keyspace ids in a table"),
        ("consistent_lookup", "vindex consistent_lookup looks up keyspace ids in a table"),
        ("region_json", "vindex region_json depends on several columns or on VSchema parameters"),
        ("hsah", r"vindex 'hsah' is unknown.*known vindexes: binary, "),
    ],
)
def test_a_vindex_that_cannot_be_computed_is_refused_by_name_at_once(vindex: str, reason: str) -> None:
    assert vindex not in COMPUTED
    with pytest.raises(UncomputableVindex, match=reason):
        keyspace(["-80", "80-"], vindex)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: keyspace(["-80", "40-"], "hash"), "shards -80 and 40- overlap"),
        (lambda: keyspace(["-80"], "hash"), "no shard holds 80-"),
        (lambda: keyspace(["-80", "80-"], None), "has 2 shards: name its vindex"),
        (lambda: keyspace(["-80", "80-"], "hash", **{"80-": []}), "no servers are listed for 80-"),
        (
            lambda: KeyspaceQueries("shop", {"-": ["db:3306"]}, None, connect=unreachable, watch=unreachable),
            "'shop' must be <source>/<keyspace>",
        ),
    ],
)
def test_a_keyspace_that_does_not_hold_together_is_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()
