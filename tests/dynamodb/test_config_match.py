"""Tables that are, and are not, as the config of their source says."""

from __future__ import annotations

from typing import Any

import pytest

from relay.config import DynamoDBConfig
from relay.dynamodb.config_match import mismatches, verify
from relay.dynamodb.describe import Description
from relay.errors import Unavailable
from relay.table import KeyColumn

LABEL = "2026-11-21T06:00:00.000"


def source(**others: Any) -> DynamoDBConfig:
    return DynamoDBConfig(name="shop", type="dynamodb", table="orders", region="us-east-1", **others)


def found(view_type: str = "NEW_AND_OLD_IMAGES", **attributes: str) -> Description:
    """A table with the key (order_id S, line N), an index over email, and ``attributes``."""
    key = (KeyColumn("order_id", "S"), KeyColumn("line", "N"))
    types = {"order_id": "S", "line": "N", "email": "S", **attributes}
    return Description("orders", "arn:table", "arn:stream", LABEL, view_type, key, types)


DECLARED = {"order_id": "string", "line": "long", "total": "decimal(38,10)"}


@pytest.mark.parametrize("view_type", ["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE"])
@pytest.mark.parametrize("line", ["int", "long", "double", "timestamp", "decimal(38,0)", "json"])
def test_a_table_fits_columns_that_hold_its_key_whatever_indexes_it_has(view_type: str, line: str) -> None:
    assert (
        mismatches(found(view_type, status="S", created="N"), DECLARED | {"line": line, "created": "timestamp"}) == []
    )


@pytest.mark.parametrize(
    ("table", "columns", "said"),
    [
        (found(), {"order_id": "string"},
         ["key column `line` (N) of table orders is not declared: add `line: decimal(38,0)` to `columns`"]),
        (found(), {"id": "string", "line": "int"},
         ["key column `order_id` (S) of table orders is not declared: add `order_id: string` to `columns`"]),
        (found(), DECLARED | {"order_id": "bytes"},
         ["`order_id` is declared as bytes, for attributes of type B, but as a key column of table orders it has "
          "type S: declare it as string, for example"]),
        (found(), DECLARED | {"line": "string", "email": "set"},
         ["`line` is declared as string, for attributes of type S, but as a key column of table orders it has "
          "type N: declare it as decimal(38,0), for example",
          "`email` is declared as set, for attributes of type SS, but as the key of an index of table orders it has "
          "type S: declare it as string, for example"]),
        (found("KEYS_ONLY"), DECLARED,
         ["a KEYS_ONLY stream has no images, so `columns` would stay empty: remove `columns`, or set the "
          "StreamViewType of table orders to NEW_AND_OLD_IMAGES"]),
    ],
)  # fmt: skip
def test_a_mismatch_is_reported_with_both_types(table: Description, columns: dict[str, str], said: list[str]) -> None:
    assert mismatches(table, columns) == said
    with pytest.raises(Unavailable) as raised:
        verify(table, source(columns=columns))
    assert str(raised.value) == "\n".join(f"source shop: {problem}" for problem in said)


def test_a_key_column_whose_name_cannot_be_declared_is_not_a_mismatch() -> None:
    rest = Description("t", "arn", "arn:stream", LABEL, "NEW_IMAGE", (KeyColumn("rest", "B"),), {"rest": "B"})
    assert mismatches(rest, {"a": "string"}) == []


def test_without_columns_every_table_matches() -> None:
    verify(found("KEYS_ONLY"), source())
