"""GetRecords answered with the records as DynamoDB's JSON, instead of botocore's walk over every value.

The walk is most of the time it takes to read a stream, and the relay would undo its work: binary stays base64
text, times stay numbers. All else is botocore's: signing, retries, timeouts, errors, and every other call.

It relies on one thing of botocore: before a client parses an answer, it emits ``before-parse.<service>.<operation>``
with the answer, and takes as parsed what a handler puts into ``customized_response_dict`` (botocore/endpoint.py).
Were that to end, every record would be refused by ``relay.dynamodb.records``, which takes raw records only.
"""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Any

import orjson
from botocore.exceptions import BotoCoreError

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

_EVENT = "before-parse.dynamodb-streams.GetRecords"


class UnreadableAnswer(BotoCoreError):
    """An answer of status 200 that is no answer to GetRecords, as a proxy may give: worth another try."""

    fmt = "GetRecords gave an answer that cannot be read: {reason}"


def keep_records_raw(client: DynamoDBStreamsClient) -> None:
    """Let ``client.get_records`` give ``Records`` as they come, from now on.

    It then raises ``UnreadableAnswer``, too.
    """
    client.meta.events.register(_EVENT, _take_records, unique_id="relay")


def _take_records(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != 200:
        return  # errors are botocore's to read
    body = response_dict["body"]
    answer = _parsed(body)
    if not isinstance(answer, dict) or not isinstance(answer.get("Records"), list):
        raise UnreadableAnswer(reason=f"no list of records in {body[:200]!r}")
    customized_response_dict["Records"] = answer["Records"]
    if answer.get("NextShardIterator") is not None:
        customized_response_dict["NextShardIterator"] = answer["NextShardIterator"]
    # Nothing is left for botocore but the headers.
    response_dict["body"] = b"{}"


def _parsed(body: bytes) -> Any:
    # A full page is 50,000 new objects and more, without cycles: collecting garbage while they are made walks
    # them over and over, and takes longer than the parsing. No other thread runs while orjson parses.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(body)
    except ValueError:
        pass
    finally:
        if collecting:
            gc.enable()
    # What only the tolerant parser takes, such as half a surrogate pair, is refused later, with its place (I8).
    try:
        return json.loads(body)
    except ValueError as error:
        raise UnreadableAnswer(reason=str(error)) from error
