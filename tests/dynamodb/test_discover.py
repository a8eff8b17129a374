"""Tables found by their tags, at a scripted endpoint: DynamoDB Local has no tags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.config import DynamoDBConfig
from relay.dynamodb.kind import tagged
from relay.errors import Unavailable
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream


class Region(ScriptedStream):
    """Tables with tags, listed two at a time, tags one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, dict[str, str]] = {}
        self.without_stream: set[str] = set()

    def _ListTables(self, request: dict[str, Any]) -> dict[str, Any]:
        rest = [name for name in sorted(self.tags) if name > request.get("ExclusiveStartTableName", "")]
        more = {"LastEvaluatedTableName": rest[1]} if len(rest) > 2 else {}
        return {"TableNames": rest[:2], **more}

    def _DescribeTable(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TableName"]
        return {
            "Table": {
                "TableName": name,
                "TableArn": f"arn:aws:dynamodb:us-east-1:000000000000:table/{name}",
                "StreamSpecification": {"StreamEnabled": name not in self.without_stream},
            }
        }

    def _ListTagsOfResource(self, request: dict[str, Any]) -> dict[str, Any]:
        tags = sorted(self.tags[request["ResourceArn"].rpartition("/")[2]].items())
        at = int(request.get("NextToken", 0))
        more = {"NextToken": str(at + 1)} if at + 1 < len(tags) else {}
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags[at : at + 1]], **more}


@pytest.fixture
def region() -> Iterator[Region]:
    with Region() as region:
        yield region


@pytest.fixture
def source(region: ScriptedStream) -> DynamoDBConfig:
    tags = {"relay": "yes", "env": "prod"}
    return DynamoDBConfig(name="all", type="dynamodb", region="us-east-1", endpoint_url=region.url, tags=tags)


def test_tables_with_all_of_the_tags_are_found_across_pages(source: DynamoDBConfig, region: Region) -> None:
    region.tags = {
        "first": {"relay": "yes", "env": "prod", "other": "x"},
        "half": {"relay": "yes"},
        "neither": {},
        "other-value": {"relay": "yes", "env": "test"},
        "second": {"env": "prod", "relay": "yes"},
    }
    assert tagged(source) == ["first", "second"]


@pytest.mark.parametrize("call", ["DescribeTable", "ListTagsOfResource"])
def test_a_table_that_is_deleted_meanwhile_is_passed_over(source: DynamoDBConfig, region: Region, call: str) -> None:
    def refuse(operation: str) -> None:
        if operation == call and "deleted" in str(region.requests[-1]):
            raise Refused("ResourceNotFoundException")

    region.tags = {"deleted": {"relay": "yes"}, "first": dict(source.tags or {})}
    region.before = refuse
    assert tagged(source) == ["first"]


def test_a_tagged_table_without_a_stream_is_named(source: DynamoDBConfig, region: Region) -> None:
    region.tags = {"first": dict(source.tags or {}), "second": dict(source.tags or {})}
    region.without_stream = {"second"}
    with pytest.raises(Unavailable, match="have no stream: second"):
        tagged(source)


def test_an_error_names_tags_that_no_table_has(source: DynamoDBConfig, region: Region) -> None:
    region.tags = {"first": {"relay": "yes"}}
    with pytest.raises(Unavailable, match="env=prod, relay=yes"):
        tagged(source)


def test_an_error_names_the_call_that_is_not_allowed(source: DynamoDBConfig, region: Region) -> None:
    def refuse(operation: str) -> None:
        raise Refused("AccessDeniedException")

    region.before = refuse
    with pytest.raises(Unavailable, match="ListTables"):
        tagged(source)
