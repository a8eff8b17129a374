"""Everything an item can hold, through a real stream of every view type, with and without columns."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import boto3
import pytest

from relay.change import Change, Operation, Snapshot
from relay.config import DynamoDBConfig
from relay.dynamodb.source import DynamoDBSource
from relay.errors import Unavailable
from relay.records import Shard, SnapshotPart
from relay.source import Opening, Segment
from tests.dynamodb.items import carried, item_of, with_base64
from tests.reads import read_page

pytestmark = pytest.mark.services

NINES = "9.9999999999999999999999999999999999999E+125"
SMALLEST = "1E-130"
COLUMNS = {
    "id": "bytes",
    "n": "decimal(38,10)",
    "a-b": "string",
    "ab": "long",
    "1x": "set",
    "flag": "boolean",
    "ratio": "double",
    "expires": "timestamp",
    "deep": "json",
    "gone": "string",
}
KEY: dict[str, Any] = {"id": {"B": b"\x00\xff"}, "n": {"N": "-0.0000000001"}}


def deepest() -> dict[str, Any]:
    """As many levels as DynamoDB accepts."""
    value: dict[str, Any] = {"NS": [NINES, SMALLEST]}
    for _ in range(15):
        value = {"L": [{"M": {"a-b": value}}]}
    return value


FITTING: dict[str, Any] = KEY | {
    "a-b": {"S": "1"},
    "ab": {"N": "1"},
    "1x": {"SS": ["b", "a"]},
    "flag": {"BOOL": False},
    "ratio": {"N": "0.1"},
    "expires": {"N": "1700000000"},
    "deep": deepest(),
    "rest": {"S": ""},
    "über": {"BS": [b"\x01", b"\x00"]},
    "nines": {"N": NINES},
}
OTHER: dict[str, Any] = KEY | {
    "a-b": {"N": "1"},
    "ab": {"S": "1"},
    "1x": {"L": [{"S": "b"}, {"S": "a"}]},
    "flag": {"NULL": True},
    "ratio": {"N": SMALLEST},
    "expires": {"N": NINES},
    "deep": {"NULL": True},
    "gone": {"B": b""},
}
IN_REST = {"a-b", "ab", "1x", "flag", "expires", "gone"}


@pytest.fixture
def database(dynamodb: Any) -> Iterator[Any]:
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynamodb.endpoint_url)
    yield client
    client.close()


def create(database: Any, table: str, view_type: str) -> None:
    database.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "n", "KeyType": "RANGE"}],
        # An index that is not declared.
        AttributeDefinitions=[
            {"AttributeName": name, "AttributeType": kind} for name, kind in (("id", "B"), ("n", "N"), ("email", "S"))
        ],
        LocalSecondaryIndexes=[
            {
                "IndexName": "by_email",
                "KeySchema": [
                    {"AttributeName": "id", "KeyType": "HASH"},
                    {"AttributeName": "email", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": view_type},
    )


def opened(dynamodb: Any, table: str, columns: dict[str, str] | None) -> DynamoDBSource:
    config = DynamoDBConfig(
        name="s", type="dynamodb", table=table, region="us-east-1", endpoint_url=dynamodb.endpoint_url, columns=columns
    )
    source = DynamoDBSource(config)
    try:
        source.connect()
    except Unavailable:
        source.close()
        raise
    return source


def read(source: DynamoDBSource, count: int) -> list[Change]:
    (shard,) = source.shards()
    reader = source.open(Opening(shard, {"type": "trim_horizon"}, read_until=time.time()))
    changes: list[Change] = []
    while len(changes) < count:
        changes += read_page(reader).changes
    source.close()
    return changes


def worth(value: Any) -> Any:
    """Return a typed value with its numbers as numbers and its sets sorted."""
    if not isinstance(value, dict) or len(value) != 1:
        return {name: worth(part) for name, part in value.items()}
    ((tag, raw),) = value.items()
    if tag == "N":
        return tag, Decimal(raw)
    if tag == "NS":
        return tag, sorted(map(Decimal, raw))
    if tag in ("SS", "BS"):
        return tag, sorted(raw)
    if tag == "L":
        return tag, [worth(part) for part in raw]
    if tag == "M":
        return tag, {name: worth(part) for name, part in raw.items()}
    return tag, raw


@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["untyped", "typed"])
@pytest.mark.parametrize("view_type", ["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"])
def test_every_version_of_an_item_is_carried_completely(
    dynamodb: Any, database: Any, unique: str, view_type: str, columns: dict[str, str] | None
) -> None:
    """I8"""
    create(database, unique, view_type)
    if columns and view_type == "KEYS_ONLY":
        with pytest.raises(Unavailable, match="KEYS_ONLY stream has no images, so `columns` would stay empty"):
            opened(dynamodb, unique, columns)
        return
    source = opened(dynamodb, unique, columns)
    kinds = {column.name: column.type for column in source.table.row or ()}
    for written in (FITTING, OTHER):
        database.put_item(TableName=unique, Item=written)
    database.delete_item(TableName=unique, Key=KEY)
    changes = read(source, 3)
    has = {"NEW": "NEW" in view_type, "OLD": "OLD" in view_type}
    steps = [(Operation.INSERT, None, FITTING), (Operation.UPDATE, FITTING, OTHER), (Operation.DELETE, OTHER, None)]
    assert [change.operation for change in changes] == [operation for operation, _, _ in steps]
    for change, (_, old, new) in zip(changes, steps, strict=True):
        found = carried(change, source.table)
        assert found["images"] == view_type.removesuffix("_IMAGES").removesuffix("_IMAGE")
        assert found["key"] == {"id": b"\x00\xff", "n": "-0.0000000001"}
        for view, item in (("OLD", old), ("NEW", new)):
            image = found[view.lower()]
            if item is None or not has[view]:
                assert image is None
                continue
            back = item_of(image, kinds) if columns else json.loads(image)
            assert worth(back) == worth(with_base64(item))
            if columns and item is OTHER:
                assert set(json.loads(image["rest"])) == IN_REST


@pytest.mark.parametrize("columns", [None, COLUMNS], ids=["untyped", "typed"])
def test_rows_of_a_snapshot_equal_rows_of_changes(
    dynamodb: Any, database: Any, unique: str, columns: dict[str, str] | None
) -> None:
    """I8"""
    create(database, unique, "NEW_AND_OLD_IMAGES")
    second = OTHER | {"n": {"N": "2"}}
    for written in (FITTING, second):
        database.put_item(TableName=unique, Item=written)
    source = opened(dynamodb, unique, columns)
    kinds = {column.name: column.type for column in source.table.row or ()}
    page = read_page(source.snapshots.open(Segment(Shard("snapshot"), Snapshot("s-1", 1), 0, 1, part=SnapshotPart())))
    source.close()
    assert page.finished
    assert page.counts.size > 500
    rows = [carried(change, source.table)["new"] for change in page.changes]
    items = [worth(item_of(row, kinds) if columns else json.loads(row)) for row in rows]
    assert items == [worth(with_base64(item)) for item in (FITTING, second)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": "bytes", "total": "long"}, r"key column `n` \(N\) of table .* is not declared"),
        ({"id": "string", "n": "long"}, "`id` is declared as string, .* type S, but as a key column .* has type B"),
        (COLUMNS | {"email": "long"}, "`email` is declared as long, .* type N, but as the key of an index .* type S"),
    ],
)
def test_a_table_that_does_not_match_its_declared_columns_is_not_read(
    dynamodb: Any, database: Any, unique: str, columns: dict[str, str], said: str
) -> None:
    create(database, unique, "NEW_AND_OLD_IMAGES")
    with pytest.raises(Unavailable, match=said):
        opened(dynamodb, unique, columns)
