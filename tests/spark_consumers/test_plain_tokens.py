"""Tokens that SQL compares have the order that ``compare`` gives them (I5)."""

from __future__ import annotations

from hypothesis import example, given

from relay.token import EventToken, Order, OriginToken, compare
from tests.spark_consumers.drawn_tokens import UUIDS, plain_parts, tokens


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
