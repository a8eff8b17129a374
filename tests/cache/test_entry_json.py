from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.cache.entry import UNPLACED, UNREADABLE, Entry, State, decode, encode, invalidated
from relay.token import EventToken, OriginToken
from tests.cache.entries import LEFT, RIGHT, G, by_shard, dynamo, mysql, value

_TOKENS = st.builds(
    EventToken,
    st.integers(0, 2**40),
    st.text(min_size=1, max_size=20),
    st.text(max_size=20),
    st.none() | st.builds(OriginToken, st.integers(0, 2**40), st.text(max_size=9), st.text(max_size=9)),
)
_ENTRIES = st.builds(
    Entry,
    st.sampled_from(list(State)),
    st.text(max_size=20),
    st.lists(_TOKENS, max_size=4).flatmap(
        lambda tokens: st.sampled_from([by_shard(*tokens), {**by_shard(*tokens), UNPLACED: None}])
    ),
    st.floats(0, 1e12),
    st.lists(_TOKENS, max_size=2).map(lambda tokens: by_shard(*tokens)),
)


@given(_ENTRIES)
def test_a_decoded_entry_equals_the_encoded_one(entry: Entry) -> None:
    assert decode(encode(entry, "nonce")) == entry


def test_the_json_does_not_change() -> None:
    entry = Entry(State.LEASE, G, {UNPLACED: None, **by_shard(dynamo(5))}, 1.5)
    assert encode(entry, "abc") == (
        b'{"n":"abc","s":"lease","g":"generation","t":{"":null,"orders/stream/1":{"timestamp":100,'
        b'"shard":"orders/stream/1","position":"DynamoDB/5","origin":null}},"u":1.5}'
    )


def test_two_writes_of_one_entry_differ() -> None:
    """Else a compare-and-set could mistake a later, equal entry for the one that was read."""
    assert encode(value(), "1") != encode(value(), "2")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
_DAMAGED = st.fixed_dictionaries(
    {"s": _JSON | st.just("value"), "g": _JSON, "t": _JSON | st.dictionaries(st.just(LEFT), _JSON)},
    optional={"u": _JSON, "n": _JSON},
).map(orjson.dumps)


@given(st.binary(max_size=40) | _JSON.map(orjson.dumps) | _DAMAGED)
def test_no_bytes_can_stop_a_reader_or_an_invalidator(meta: bytes) -> None:
    """Bytes that are not an entry are not served, and any invalidation replaces them."""
    entry = decode(meta)
    if entry is UNREADABLE:
        assert not entry.serves("", 0.0)
        assert invalidated(entry, dynamo(1), "") is not None
    else:
        assert decode(encode(entry, "n")) == entry


@pytest.mark.parametrize("damage", [{"timestamp": "1"}, {"position": 5}, {"shard": RIGHT}, {"origin": 3}])
def test_a_damaged_token_makes_the_entry_unreadable(damage: dict[str, object]) -> None:
    fields = orjson.loads(encode(value(mysql(5, LEFT)), "n"))
    fields["t"][LEFT] |= damage
    assert decode(orjson.dumps(fields)) is UNREADABLE
