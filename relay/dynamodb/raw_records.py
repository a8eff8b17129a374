"""GetRecords answered with records whose images stay text, instead of botocore's walk over every value.

The walk is most of the time it takes to read a stream, and the relay would undo its work: an image goes to Kafka
as DynamoDB's JSON. So it is cut out of the answer as it stands. All else is botocore's: signing, retries, timeouts,
errors, and every other call.

It relies on one thing of botocore: before a client parses an answer, it emits ``before-parse.<service>.<operation>``
with the answer, and takes as parsed what a handler puts into ``customized_response_dict`` (botocore/endpoint.py).
Were that to end, every record would be refused by ``relay.dynamodb.records``, which takes raw records only.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from botocore.exceptions import BotoCoreError
from msgspec import Raw

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

_EVENT = "before-parse.dynamodb-streams.GetRecords"


class UnreadableAnswer(BotoCoreError):
    """An answer of status 200 that is no answer to GetRecords, as a proxy may give: worth another try."""

    fmt = "GetRecords gave an answer that cannot be read: {reason}"


class RawData(msgspec.Struct, rename="pascal", gc=False):
    """What a stream record says of the item. Images are JSON without needless spaces or escapes, empty if absent.

    Of a record that only a tolerant parser takes, images and keys are what that parser gave.
    """

    sequence_number: str
    approximate_creation_date_time: float
    keys: dict[str, dict[str, str]]
    stream_view_type: str
    size_bytes: int = 0
    old_image: Raw = Raw()
    new_image: Raw = Raw()

    @property
    def image_bytes(self) -> int:
        return len(self.old_image) + len(self.new_image)


class RawRecord(msgspec.Struct, rename="camel", gc=False):
    """A stream record."""

    event_name: str
    dynamodb: RawData
    event_version: str | None = None
    user_identity: dict[str, Any] | None = None


class _Answer(msgspec.Struct, rename="pascal"):
    records: list[RawRecord]
    next_shard_iterator: str | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def keep_records_raw(client: DynamoDBStreamsClient) -> None:
    """Let ``client.get_records`` give ``Records`` as a list of ``RawRecord``, from now on.

    It then raises ``UnreadableAnswer``, too.
    """
    client.meta.events.register(_EVENT, _take_records, unique_id="relay")


def _take_records(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != 200:
        return  # errors are botocore's to read
    try:
        answer = _fast(response_dict["body"])
    except ValueError:  # msgspec's and orjson's own errors are of that kind
        answer = _tolerant(response_dict["body"])
    customized_response_dict["Records"] = answer.records
    if answer.next_shard_iterator is not None:
        customized_response_dict["NextShardIterator"] = answer.next_shard_iterator
    # Nothing is left for botocore but the headers.
    response_dict["body"] = b"{}"


def _fast(body: bytes) -> _Answer:
    answer = _decode(body)
    return answer if _is_canonical(body, answer) else _decode(_canonical(body))


def _is_canonical(body: bytes, answer: _Answer) -> bool:
    """Whether the images in ``body`` are what orjson would write: no escapes, and no spaces between values.

    One serialiser wrote all of an answer, so one image shows how it writes.
    """
    if b"\\" in body:
        return False
    for record in answer.records:
        for image in (record.dynamodb.new_image, record.dynamodb.old_image):
            if len(bytes(image)) > 2:
                return orjson.dumps(orjson.loads(bytes(image))) == bytes(image)
    return True


def _canonical(body: bytes) -> bytes:
    # Many new objects without cycles: collecting garbage while they are made takes longer than the parsing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return orjson.dumps(orjson.loads(body))
    finally:
        if collecting:
            gc.enable()


def _tolerant(body: bytes) -> _Answer:
    """Read what only a tolerant parser takes, such as half a surrogate pair: refused later, with its place (I8)."""
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise UnreadableAnswer(reason=str(error)) from error
    if not isinstance(answer, dict) or not isinstance(answer.get("Records"), list):
        raise UnreadableAnswer(reason=f"no list of records in {body[:200]!r}")
    try:
        return _Answer([_of(record) for record in answer["Records"]], answer.get("NextShardIterator"))
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableAnswer(reason=f"not a record: {error!r}") from error


def _of(record: Mapping[str, Any]) -> RawRecord:
    data = record["dynamodb"]
    return RawRecord(
        event_name=record.get("eventName", ""),
        dynamodb=RawData(
            sequence_number=data["SequenceNumber"],
            approximate_creation_date_time=data.get("ApproximateCreationDateTime", math.nan),
            keys=data.get("Keys") or {},
            stream_view_type=data.get("StreamViewType", ""),
            size_bytes=data.get("SizeBytes") or 0,
            old_image=data.get("OldImage", Raw()),
            new_image=data.get("NewImage", Raw()),
        ),
        event_version=record.get("eventVersion"),
        user_identity=record.get("userIdentity"),
    )
