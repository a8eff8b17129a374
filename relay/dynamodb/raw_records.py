"""Makes GetRecords return images as JSON text, instead of letting botocore convert every value.

Conversion takes most of the time of reading a stream, and the relay would undo it: an image goes to Kafka as DynamoDB's
JSON. So the image is cut out of the answer unchanged.

This relies on botocore (botocore/endpoint.py): before a client parses an answer, it emits
``before-parse.<service>.<operation>``, and uses what a handler puts into ``customized_response_dict`` as the parsed
answer. Without it ``relay.dynamodb.records``, which accepts raw records only, would refuse every record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import orjson
from botocore.exceptions import BotoCoreError
from msgspec import Raw

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

_EVENT = "before-parse.dynamodb-streams.GetRecords"

CHECKSUM = "x-amz-crc32"
"""The header with the checksum of an answer's body."""


class UnreadableAnswer(BotoCoreError):
    """An answer with status 200 that is not an answer to GetRecords, for example from a proxy. Worth another try."""

    fmt = "the answer to GetRecords cannot be read; is a proxy in between? {reason}"


class RawData(msgspec.Struct, rename="pascal", gc=False):
    """The item's part of a stream record. Images are JSON without needless spaces or escapes, empty if absent.

    If only a tolerant parser could read the record, images and keys are what that parser returned.
    """

    sequence_number: str
    approximate_creation_date_time: float
    keys: dict[str, dict[str, str]]
    stream_view_type: str
    size_bytes: int = 0
    old_image: Raw = Raw()
    new_image: Raw = Raw()


class RawRecord(msgspec.Struct, rename="camel", gc=False):
    event_name: str
    dynamodb: RawData
    event_version: str | None = None
    user_identity: dict[str, Any] | None = None


class _Answer(msgspec.Struct, rename="pascal"):
    records: list[RawRecord]
    next_shard_iterator: str | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def keep_records_raw(client: DynamoDBStreamsClient) -> None:
    """Make ``client.get_records`` return each record as a ``RawRecord``, or raise ``UnreadableAnswer``."""
    client.meta.events.register(_EVENT, _replace_answer, unique_id="relay")


def _replace_answer(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != 200:
        return  # botocore reads error answers
    body = response_dict["body"]
    if not is_intact(body, response_dict["headers"].get(CHECKSUM)):  # I8
        raise UnreadableAnswer(reason=f"{len(body)} bytes do not have the checksum that DynamoDB has sent with them")
    customized_response_dict |= read_answer(body)
    # Leave only the headers to botocore.
    response_dict["body"] = b"{}"


def is_intact(body: bytes, checksum: str | None) -> bool:
    """Whether ``body`` has the CRC-32 in its header, if there is one. botocore compares it only for tables."""
    return checksum is None or checksum.strip() == str(crc32(body))


def read_answer(body: bytes) -> dict[str, Any]:
    """Return ``Records`` and, unless the shard has ended, ``NextShardIterator``. Raises ``UnreadableAnswer``."""
    try:
        answer = parse_answer(body)
    except (ValueError, RecursionError, TypeError):  # errors of msgspec, of orjson, and of orjson when it writes
        answer = _parse_tolerantly(body)
    following = {"NextShardIterator": answer.next_shard_iterator} if answer.next_shard_iterator is not None else {}
    return {"Records": answer.records, **following}


def parse_answer(body: bytes) -> _Answer:
    """Return the records and the next iterator. Raises ValueError if only a tolerant parser can read the answer."""
    answer = _decode(body)
    return answer if _is_canonical(body, answer) else _decode(orjson.dumps(orjson.loads(body)))


def _is_canonical(body: bytes, answer: _Answer) -> bool:
    """Whether orjson would write the images identically. One serializer wrote all, so one image shows its style."""
    if b"\\" in body:
        return False
    for record in answer.records:
        for image in (record.dynamodb.new_image, record.dynamodb.old_image):
            if len(bytes(image)) > 2:
                return orjson.dumps(orjson.loads(bytes(image))) == bytes(image)
    return True


def _parse_tolerantly(body: bytes) -> _Answer:
    """Read what only a tolerant parser accepts, such as half a surrogate pair. It is refused later, by name (I8)."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableAnswer(reason=str(error)) from error
    if not isinstance(answer, dict) or not isinstance(answer.get("Records"), list):
        raise UnreadableAnswer(reason=f"no list of records in {body[:200]!r}")
    try:
        return _Answer([_raw_record(record) for record in answer["Records"]], answer.get("NextShardIterator"))
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadableAnswer(reason=f"not a record: {error!r}") from error


def _raw_record(record: Mapping[str, Any]) -> RawRecord:
    data = record["dynamodb"]
    size = data.get("SizeBytes")
    item = RawData(
        data["SequenceNumber"],
        data.get("ApproximateCreationDateTime", math.nan),
        data.get("Keys") or {},
        data.get("StreamViewType", ""),
        size if isinstance(size, int) else 0,
        _image(data.get("OldImage")),
        _image(data.get("NewImage")),
    )
    return RawRecord(record.get("eventName", ""), item, record.get("eventVersion"), record.get("userIdentity"))


def _image(image: Any) -> Any:
    """Return an object as it is; for anything else in an image's place, return its text, which has a size, too."""
    if image is None:
        return Raw()
    return image if isinstance(image, dict) else Raw(json.dumps(image).encode())
