"""Items of DynamoDB as Python values, against boto3's own reading."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, cast

import orjson
import pytest
from boto3.dynamodb.types import Binary, TypeDeserializer
from hypothesis import given
from hypothesis import strategies as st

import relay
from relay.dynamodb.values import image_json
from tests.dynamodb.items import TYPED


class Deserializer(TypeDeserializer):
    """Boto3's own refuses numbers that DynamoDB would."""

    def _deserialize_n(self, value: str) -> Decimal:
        return Decimal(value)


@given(st.dictionaries(st.text(), TYPED, max_size=4))
def test_an_item_has_the_values_of_boto3_whether_it_is_json_or_not(item: dict[str, Any]) -> None:
    """I8"""
    expected = {name: plain(Deserializer().deserialize(value)) for name, value in item.items()}
    assert relay.item_values(item) == relay.item_values(image_json(item)) == expected


def plain(value: Any) -> Any:
    """Return a value with bytes in place of boto3's ``Binary``."""
    if isinstance(value, Binary):
        return bytes(cast(Any, value))
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, list | set) else value


def test_a_number_is_as_exact_as_its_text() -> None:
    """I8"""
    text = "-1.2300" + "7" * 60 + "E-90"
    assert str(relay.item_values({"n": {"N": text}})["n"]) == str(Decimal(text))


@pytest.mark.parametrize(
    "value",
    [
        *({}, {"S": "a", "N": "1"}, {"X": "a"}, "a", 7, None, ["S"]),
        *({"N": "one"}, {"B": "?"}, {"L": 1}, {"L": [{}]}, {"M": [1]}, {"M": {"a": "b"}}, {"NS": ["x"]}, {"BS": [1.5]}),
    ],
)
def test_what_is_not_of_one_of_the_types_is_refused(value: Any) -> None:
    """I8"""
    with pytest.raises(ValueError, match="is not a value of one of DynamoDB's types"):
        relay.item_values({"name": value})


def test_text_that_is_not_an_item_is_refused() -> None:
    for text in ("", "{"):
        with pytest.raises(orjson.JSONDecodeError):
            relay.item_values(text)
    for text in ("[]", "null", '"a"'):
        with pytest.raises(ValueError, match="is not a value of one of DynamoDB's types"):
            relay.item_values(text)
