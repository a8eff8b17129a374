"""Tokens that SQL compares have the order that ``compare`` gives them (I5)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from relay.token import EventToken, Order, OriginToken, compare
from spark_consumers.plain_tokens import plain_parts

UUIDS = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "9e11fa47-71ca-11e1-9e33-c80aa9429562")
SHARDS = ("", "s/k/-80", 's/k/"\\,', 's/k/","position":"DynamoDB/', "t/k/80-")

numbers = st.integers(0, 30) | st.integers(0, 10**45) | st.integers(2**63 - 4, 2**63 + 2)
runs = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 8)), min_size=1, max_size=3).map(
    lambda pairs: ":".join(f"{first}-{first + more}" if more else str(first) for first, more in pairs)
)
positions = st.one_of(
    numbers.map("DynamoDB/{}".format),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), numbers), min_size=1, max_size=3).map(
        lambda gtids: "MariaDB/" + ",".join(f"{domain}-{server}-{number}" for domain, server, number in sorted(gtids))
    ),
    st.lists(st.tuples(st.sampled_from(UUIDS), runs), min_size=1, max_size=2).map(
        lambda servers: "MySQL56/" + ",".join(f"{server}:{run}" for server, run in servers)
    ),
    st.sampled_from(
        ["DynamoDB/007", "DynamoDB/x", "MariaDB/0-1", "MySQL56/", "", f"MySQL56/{UUIDS[0]}:1-9223372036854775807"]
    ),
)
origins = st.none() | st.just(OriginToken(5, "s/k/-", "MariaDB/0-1-1"))
tokens = st.builds(EventToken, st.integers(0, 3), st.sampled_from(SHARDS), positions, origins)


@given(tokens, tokens)
@example(EventToken(1, "s/k/-", "DynamoDB/9"), EventToken(1, "s/k/-", "DynamoDB/10"))
@example(EventToken(2, "s/k/-", "MariaDB/0-1-9,1-1-4"), EventToken(1, "s/k/-", "MariaDB/0-1-9,1-1-30"))
def test_of_two_tokens_with_one_stem_the_one_with_the_larger_number_is_newer(a: EventToken, b: EventToken) -> None:
    one, other = plain_parts(a.to_json()), plain_parts(b.to_json())
    if one is None or other is None or one[0] != other[0]:
        return
    expected = Order.EQUAL if one[1] == other[1] else Order.OLDER if one[1] < other[1] else Order.NEWER
    assert compare(a, b) is expected


def test_the_tokens_of_each_source_are_plain() -> None:
    shard = '"shard":"s/k/-80","position":"'
    for position, stem, number in (
        ("DynamoDB/4900000000000000000001", "DynamoDB/", 4900000000000000000001),
        ("MariaDB/0-1-57", "MariaDB/0-1-", 57),
        ("MariaDB/0-1-57,1-2-8", "MariaDB/0-1-57,1-2-", 8),
        (f"MySQL56/{UUIDS[0]}:1-3:5-9", f"MySQL56/{UUIDS[0]}:1-3:5-", 9),
        (f"MySQL56/{UUIDS[0]}:1-3,{UUIDS[1]}:1-9", f"MySQL56/{UUIDS[0]}:1-3,{UUIDS[1]}:1-", 9),
    ):
        assert plain_parts(EventToken(1, "s/k/-80", position).to_json()) == (shard + stem, number)


def test_tokens_that_no_number_orders_are_not_plain() -> None:
    for token in (
        EventToken(0, "s/k/-", "DynamoDB/5"),
        EventToken(1, "", "DynamoDB/5"),
        EventToken(1, "s/k/-", f"MySQL56/{UUIDS[0]}:1-3:5"),
        EventToken(1, "s/k/-", f"MySQL56/{UUIDS[0]}:5"),
        EventToken(1, "s/k/-", "MariaDB/0-1-9223372036854775807"),
        EventToken(1, "s/k/-", "DynamoDB/5", OriginToken(1, "s/k/-80", "DynamoDB/4")),
    ):
        assert plain_parts(token.to_json()) is None
