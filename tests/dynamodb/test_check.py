"""What ``relay check`` says about a table of DynamoDB and its stream."""

from __future__ import annotations

import pytest

from relay.config import DynamoDBConfig
from relay.config.value_types import StartAtToken
from relay.dynamodb.kind import check_columns, check_start, check_table
from tests.dynamodb.described import described


@pytest.mark.parametrize(("arn", "code"), [("arn:stream", 0), ("arn:other", 2)])
def test_the_token_in_start_must_belong_to_the_stream(arn: str, code: int) -> None:
    token = StartAtToken("token.json", {"stream_arn": arn, "active": [], "shards": []})
    source = DynamoDBConfig(name="orders", type="dynamodb", table="orders", start=token)
    (found,) = check_start(source, described("KEYS_ONLY"))
    assert found.exit_code == code
    assert check_start(source.model_copy(update={"start": "latest"}), described("KEYS_ONLY")) == []


def test_declared_columns_are_compared_with_the_table() -> None:
    def declaring(**columns: str) -> DynamoDBConfig:
        return DynamoDBConfig(name="orders", type="dynamodb", table="orders", columns=columns or None)

    def findings(source: DynamoDBConfig, view_type: str = "NEW_IMAGE") -> list[tuple[bool, int, str]]:
        found = check_columns(source, described(view_type), set())
        assert {finding.check for finding in found} <= {"columns of orders"}
        return [(each.ok, each.exit_code, each.detail) for each in found]

    assert findings(declaring()) == []
    assert findings(declaring(order_id="string", n="int")) == [(True, 0, "2 declared, matching table orders")]
    (key, images) = findings(declaring(n="int"), "KEYS_ONLY")
    assert (key[:2], images[:2]) == ((False, 3), (False, 3))
    assert "`order_id` (S)" in key[2]
    assert "KEYS_ONLY" in images[2]


@pytest.mark.parametrize(
    ("view_type", "ok"), [("KEYS_ONLY", False), ("NEW_IMAGE", True), ("OLD_IMAGE", False), ("NEW_AND_OLD_IMAGES", True)]
)
def test_a_copy_needs_a_stream_with_new_images(view_type: str, ok: bool) -> None:
    source = DynamoDBConfig(name="orders", type="dynamodb", table="orders")
    (found,) = check_table(source, described(view_type)).for_copy
    assert found.ok is ok
    assert ok or "NEW_AND_OLD_IMAGES" in found.detail
