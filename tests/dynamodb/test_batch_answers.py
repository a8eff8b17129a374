"""Answers to BatchGetItem are the items that an unmodified client returns, and the user's own calls stay its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.parsers import ResponseParserError
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.dynamodb.batch import batch_get_item
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream
from tests.dynamodb.items import TYPED, with_base64
from tests.examples import examples

ASKED: Any = {"orders": {"Keys": [{"id": {"S": "1"}}]}}

ITEMS = st.lists(
    st.dictionaries(
        st.text(min_size=1) | st.sampled_from(["B", "BS", "a", "null"]),
        TYPED | st.sampled_from([{"S": "B"}, {"S": '"B"'}, {"S": "\\u0042"}, {"S": "null"}]),
        min_size=1,
        max_size=4,
    ),
    max_size=3,
)


class Answering(ScriptedStream):
    returned: Any = None

    def _BatchGetItem(self, request: dict[str, Any]) -> dict[str, Any]:
        if isinstance(self.returned, Refused):
            raise self.returned
        return self.returned  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Answering, Any, Any]]:
    """An endpoint, the client of a user of ``batch_load``, and one of which the relay knows nothing."""
    with Answering() as endpoint:
        ours, stock = (
            boto3.client(
                "dynamodb",
                endpoint_url=endpoint.url,
                region_name="us-east-1",
                config=Config(retries={"total_max_attempts": 1}),
            )
            for _ in range(2)
        )
        yield endpoint, ours, stock
        ours.close()
        stock.close()


@given(responses=ITEMS, left=ITEMS)
@settings(deadline=None, max_examples=examples(60))
def test_items_are_those_of_an_unmodified_client(
    served: tuple[Answering, Any, Any], responses: list[Any], left: list[Any]
) -> None:
    endpoint, ours, stock = served
    endpoint.returned = {"Responses": {"orders": with_base64(responses)}}
    if left:
        endpoint.returned["UnprocessedKeys"] = {"orders": {"Keys": with_base64(left), "ConsistentRead": True}}
    expected = stock.batch_get_item(RequestItems=ASKED)
    found = batch_get_item(ours, ASKED)
    assert found["Responses"] == expected["Responses"]
    assert found.get("UnprocessedKeys") == expected.get("UnprocessedKeys")


def test_plain_items_are_not_converted_by_botocore(served: tuple[Answering, Any, Any]) -> None:
    """What is faster about it: botocore is handed no value of them."""
    endpoint, ours, _ = served
    endpoint.returned = {"Responses": {"orders": [{"id": {"S": "1"}, "tags": {"SS": ["Bob", "a\n"]}}]}}
    parsed: list[bytes] = []
    ours.meta.events.register_last(
        "before-parse.dynamodb.BatchGetItem", lambda response_dict, **_: parsed.append(response_dict["body"])
    )
    assert batch_get_item(ours, ASKED)["Responses"] == endpoint.returned["Responses"]
    assert parsed == [b"{}"]


def test_calls_of_the_clients_own_user_are_answered_as_before(served: tuple[Answering, Any, Any]) -> None:
    endpoint, ours, stock = served
    endpoint.returned = {
        "Responses": {"orders": [{"id": {"S": "1"}}]},
        "UnprocessedKeys": {},
        "ConsumedCapacity": [{"TableName": "orders", "CapacityUnits": 0.5}],
    }
    assert batch_get_item(ours, ASKED)["Responses"] == endpoint.returned["Responses"]
    answers = [client.batch_get_item(RequestItems=ASKED) for client in (ours, stock)]
    for each in answers:
        del each["ResponseMetadata"]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("answer", [[], {"Responses": None}, {"Responses": {"orders": None}}])
def test_an_answer_that_is_none_is_read_by_botocore(served: tuple[Answering, Any, Any], answer: Any) -> None:
    endpoint, ours, stock = served
    endpoint.returned = answer
    results = []
    for call in (lambda: batch_get_item(ours, ASKED), lambda: stock.batch_get_item(RequestItems=ASKED)):
        try:
            results.append({name: each for name, each in call().items() if name != "ResponseMetadata"})
        except (ResponseParserError, AttributeError, TypeError) as error:
            results.append({"raised": type(error)})
    assert results[0] == results[1]


def test_a_refusal_is_botocores_error(served: tuple[Answering, Any, Any]) -> None:
    endpoint, ours, _ = served
    endpoint.returned = Refused("ResourceNotFoundException")
    with pytest.raises(ours.exceptions.ResourceNotFoundException):
        batch_get_item(ours, ASKED)
