"""The cache keys of typed rows: a value has one text whether its column is declared or not (I6)."""

from __future__ import annotations

from typing import Any

import pytest

from relay.change import Operation
from relay.config import CacheConfig
from relay.token import EventToken
from spark_consumers.cache_keys import ReducedChange, Templates, attributes, invalidations, text


@pytest.mark.parametrize(
    ("kind", "printed", "attribute"),
    [
        ("string", "1.0", {"S": "1.0"}),
        ("bytes", "AP8=", {"B": "AP8="}),
        ("boolean", "true", {"BOOL": True}),
        ("boolean", "false", {"BOOL": False}),
        ("int", "-7", {"N": "-7"}),
        ("decimal(38,10)", "12.5000000000", {"N": "12.5"}),
        ("decimal(38,38)", "0E-38", {"N": "0"}),
        ("double", "1.0E23", {"N": "1E+23"}),
        ("double", "2.0E-3", {"N": "0.002"}),
        # Older Javas print more digits than a double needs.
        ("double", "2.0000000000000001E-3", {"N": "0.002"}),
        ("timestamp", "2023-11-14T22:13:20.500000Z", {"N": "1700000000.5"}),
        ("timestamp", "1969-12-31T23:59:59.999999Z", {"N": "-0.000001"}),
        ("json", '{"N":"1.50"}', {"N": "1.5"}),
    ],
)
def test_a_typed_value_has_the_text_of_the_attribute(kind: str, printed: str, attribute: dict[str, Any]) -> None:
    (typed,) = attributes({"a": printed}, {"a": kind}).values()
    assert text(typed) == text(attribute)


@pytest.mark.parametrize(("kind", "printed"), [("set", '["a"]'), ("json", '{"L":[]}'), ("json", '{"NS":["1"]}')])
def test_a_collection_cannot_be_part_of_a_key_whether_it_is_declared_or_not(kind: str, printed: str) -> None:
    """I6: then the namespace is invalidated."""
    (typed,) = attributes({"a": printed}, {"a": kind}).values()
    with pytest.raises(ValueError, match="cannot be part of a cache key"):
        text(typed)


def test_a_null_in_a_json_column_is_part_of_no_key() -> None:
    (typed,) = attributes({"a": '{"NULL":true}'}, {"a": "json"}).values()
    assert text(typed) is None


def test_a_stub_invalidates_its_key_and_the_namespace_where_a_template_needs_an_image() -> None:
    """I6: a change too large to publish carries only its key."""
    token = EventToken(1000, "orders/l/s", "DynamoDB/1")
    stub = ReducedChange(Operation.UPDATE, "orders", {"id": "o-1"}, None, None, token)
    url = "redis://127.0.0.1:6379/0"
    by_key = Templates(CacheConfig(url=url, namespace="shop", keys={"orders": ["order:{id}"]}))
    found = invalidations([stub], by_key)
    assert (found.pairs, found.bumps) == ([("order:o-1", token)], [])
    by_image = Templates(CacheConfig(url=url, namespace="shop", keys={"orders": ["order:{id}", "of:{customer}"]}))
    found = invalidations([stub], by_image)
    assert len(found.bumps) == 1


TOKEN = EventToken(1000, "orders/l/s", "DynamoDB/1")
BY_CUSTOMER = Templates(
    CacheConfig(url="redis://127.0.0.1:6379/0", namespace="shop", keys={"orders": ["order:{id}", "of:{customer}"]})
)


def test_a_truncated_table_invalidates_the_namespace() -> None:
    """I6: nobody knows which rows it had."""
    truncated = ReducedChange(Operation.TRUNCATE, "orders", None, None, None, TOKEN)
    found = invalidations([truncated], BY_CUSTOMER)
    assert (found.pairs, found.bumps) == ([], ["orders was truncated"])


def test_a_row_that_a_snapshot_has_read_invalidates_nothing() -> None:
    """I10: it changes nothing, and comes with one image only. A consumer that expects two would stop here."""
    row = ReducedChange(Operation.READ, "orders", {"id": "o-1"}, None, {"customer": "ada"}, None)
    found = invalidations([row], BY_CUSTOMER)
    assert (found.pairs, found.bumps) == ([], [])


def test_an_update_invalidates_the_keys_of_the_old_row_and_of_the_new() -> None:
    """I6: the row has left the entry of its old customer."""
    moved = ReducedChange(Operation.UPDATE, "orders", {"id": "o-1"}, {"customer": "ada"}, {"customer": "bob"}, TOKEN)
    found = invalidations([moved], BY_CUSTOMER)
    assert found.pairs == [("order:o-1", TOKEN), ("of:ada", TOKEN), ("of:bob", TOKEN)]
