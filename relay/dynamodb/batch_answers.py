"""Read the answers to BatchGetItem at once, instead of having botocore convert every value of every item.

The conversion takes longer than everything else in loading an item, and except for binary it returns what JSON says.
So an answer without binary is parsed as JSON, and any other is left to botocore, as are signing, retries, timeouts and
errors. The client is its user's, whose own calls are not touched.

This relies on one behaviour of botocore, as ``relay.dynamodb.raw_records`` does: it emits
``before-parse.<service>.<operation>`` with an answer, and uses what a handler puts into ``customized_response_dict``.
Without it botocore would parse the answers, to the same items.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

_EVENT = "before-parse.dynamodb.BatchGetItem"
_MEMBERS = {"Responses", "UnprocessedKeys"}
_is_own: ContextVar[bool] = ContextVar("relay_batch_get_item", default=False)


def batch_get_item(client: DynamoDBClient, items: Mapping[str, Any]) -> Mapping[str, Any]:
    """Call BatchGetItem; return the ``Responses`` and ``UnprocessedKeys``. Raises botocore's errors."""
    client.meta.events.register(_EVENT, _replace_answer, unique_id="relay")  # again is nothing
    token = _is_own.set(True)
    try:
        return client.batch_get_item(RequestItems=items)
    finally:
        _is_own.reset(token)


def _replace_answer(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    body = response_dict["body"]
    # Types of binary are "B" and "BS", unless an escape writes them in another way.
    if not _is_own.get() or response_dict["status_code"] != 200 or b'"B"' in body or b'"BS"' in body or b"\\u" in body:
        return
    try:
        answer = orjson.loads(body)
    except ValueError:
        return
    # What else there may be, such as null for a member that is absent, botocore knows how to read.
    if isinstance(answer, dict) and answer.keys() <= _MEMBERS and b"null" not in body:
        customized_response_dict.update(answer)
        response_dict["body"] = b"{}"  # leave only the headers to botocore
