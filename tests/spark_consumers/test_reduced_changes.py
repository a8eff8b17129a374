"""The cache keys of typed rows: a value has one text whether its column is declared or not (I6)."""

from __future__ import annotations

from typing import Any

import pytest

from relay.cache.keys import text
from spark_consumers.reduced_changes import attributes


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
