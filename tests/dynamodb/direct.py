"""A client of the scripted endpoint without HTTP between them, for tests that make thousands of calls."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream


class DirectClient:
    """The calls of boto3's client that reading a stream makes, with its answers and errors."""

    def __init__(self, scripted: ScriptedStream) -> None:
        self.scripted = scripted

    def describe_stream(self, **request: Any) -> dict[str, Any]:
        return self._call("DescribeStream", request)

    def get_shard_iterator(self, **request: Any) -> dict[str, Any]:
        return self._call("GetShardIterator", request)

    def get_records(self, **request: Any) -> dict[str, Any]:
        answer = self._call("GetRecords", request)
        return {**answer, "Records": [_dated(record) for record in answer["Records"]]}

    def _call(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.scripted.answer(operation, request)
        except Refused as refused:
            raise ClientError(
                {
                    "Error": {"Code": refused.kind, "Message": refused.kind},
                    "ResponseMetadata": {"HTTPStatusCode": refused.status},  # type: ignore[typeddict-item]
                },
                operation,
            ) from refused


def _dated(record: dict[str, Any]) -> dict[str, Any]:
    data = record["dynamodb"]
    created = datetime.fromtimestamp(data["ApproximateCreationDateTime"], UTC)
    return {**record, "dynamodb": {**data, "ApproximateCreationDateTime": created}}
