"""Which cache keys a change invalidates, and when it invalidates the namespace."""

from __future__ import annotations

import enum
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from relay.cache.keys import CacheRules, ReducedChange, gap_bump, invalidations, key_text, row_keys
from relay.change import Operation
from relay.config import CacheConfig, Config
from relay.token import EventToken

TOKEN = EventToken(1000, "orders/l/s", "DynamoDB/1")
SOURCES: dict[str, dict[str, Any]] = {
    "dynamodb": {"table": "orders", "region": "us-east-1"},
    "mysql": {"shards": {"-": ["db:3306"]}, "database": "shop", "tables": ["orders"], "user": "u", "password": "p"},
    "vitess": {"vtgate": "vtgate:15991", "keyspace": "shop", "tables": ["orders"]},
}


def rules(*keys: str, kind: str = "dynamodb") -> CacheRules:
    raw = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "127.0.0.1:9"},
        "sources": [{"name": "orders", "type": kind, **SOURCES[kind]}],
        "cache": {"url": "redis://127.0.0.1:6379/0", "namespace": "shop", "keys": {"orders": [*keys]}},
    }
    config = Config.model_validate(raw, by_alias=True, by_name=False)
    assert isinstance(config.cache, CacheConfig)
    return CacheRules(config.cache, config.sources)


def changed(operation: Operation, old: Any = None, new: Any = None, **fields: Any) -> ReducedChange:
    token = None if operation is Operation.READ else TOKEN
    return ReducedChange(operation, "orders", "orders", {"id": "o-1"}, old, new, token, **fields)


def test_a_stub_invalidates_its_key_and_the_namespace_where_a_template_needs_an_image() -> None:
    """I6: a change too large to publish carries only its key."""
    stub = changed(Operation.UPDATE)
    found = invalidations([stub], rules("order:{id}"))
    assert (found.pairs, [*found.bumps]) == ([("order:o-1", TOKEN)], [])
    found = invalidations([stub], rules("order:{id}", "of:{customer}"))
    assert len(found.bumps) == 1


def test_a_truncated_table_invalidates_the_namespace() -> None:
    """I6: nobody knows which rows it had."""
    truncated = ReducedChange(Operation.TRUNCATE, "orders", "orders", None, None, None, TOKEN)
    found = invalidations([truncated], rules("order:{id}", "of:{customer}"))
    assert (found.pairs, [*found.bumps]) == ([], ["orders was truncated"])


@pytest.mark.parametrize("kind", ["dynamodb", "mysql"])
def test_a_row_that_a_snapshot_has_read_invalidates_nothing(kind: str) -> None:
    """I10: it changes nothing, and comes with one image only. A consumer that expects two would stop here."""
    row = changed(Operation.READ, new={"customer": "ada"})
    found = invalidations([row], rules("order:{id}", "of:{customer}", kind=kind))
    assert (found.pairs, [*found.bumps]) == ([], [])


def test_a_row_that_vitess_has_copied_invalidates_its_keys_whatever_their_tokens() -> None:
    """I6: the stream has no changes of rows that were not copied yet, so this is their only sign."""
    row = changed(Operation.READ, new={"customer": "ada"})
    found = invalidations([row], rules("order:{id}", kind="vitess"))
    assert (found.pairs, [*found.bumps]) == ([("order:o-1", None)], [])


def test_a_row_that_vitess_has_copied_invalidates_the_namespace_if_a_key_is_made_of_other_columns() -> None:
    """I6: which customer the row had before is not known."""
    row = changed(Operation.READ, new={"customer": "ada"})
    found = invalidations([row], rules("order:{id}", "of:{customer}", kind="vitess"))
    assert found.pairs == [("order:o-1", None), ("of:ada", None)]
    assert len(found.bumps) == 1


@pytest.mark.parametrize(("kind", "bumps"), [("dynamodb", []), ("vitess", ["orders was copied"])])
def test_the_end_of_a_copy_invalidates_the_namespace_and_the_marks_of_snapshots_nothing(
    kind: str, bumps: list[str]
) -> None:
    """I6: rows that were deleted before they were copied left no trace."""
    mark = ReducedChange(Operation.READ, "orders", "orders", None, None, None, None)
    found = invalidations([mark], rules("order:{id}", kind=kind))
    assert (found.pairs, [*found.bumps]) == ([], bumps)


def test_a_row_of_a_source_that_the_config_no_longer_names_is_taken_for_copied() -> None:
    """I6: of what kind it was is not known."""
    row = ReducedChange(Operation.READ, "earlier", "orders", {"id": "o-1"}, None, {}, None)
    assert invalidations([row], rules("order:{id}")).pairs == [("order:o-1", None)]


def test_an_update_invalidates_the_keys_of_the_old_row_and_of_the_new() -> None:
    """I6: the row has left the entry of its old customer."""
    moved = changed(Operation.UPDATE, {"customer": "ada"}, {"customer": "bob"})
    found = invalidations([moved], rules("order:{id}", "of:{customer}"))
    assert found.pairs == [("order:o-1", TOKEN), ("of:ada", TOKEN), ("of:bob", TOKEN)]


def test_a_table_without_a_column_of_a_template_is_named_with_the_column() -> None:
    of_customer = rules("order:{id}", "of:{customer}")
    assert of_customer.missing("orders", {"id", "customer", "total"}) is None
    assert of_customer.missing("other", {"id"}) is None
    said = of_customer.missing("orders", {"id", "client"})
    assert said is not None
    assert said.startswith("orders has no column `customer`, which the cache key of:{customer} needs")


def test_a_change_of_a_table_that_lost_a_column_of_a_template_invalidates_the_namespace_and_its_other_keys() -> None:
    """I6: the column was renamed or dropped, and entries under its last values would never be invalidated."""
    update = changed(Operation.UPDATE, {"client": "ada"}, {"client": "bob"}, missing="orders has no column `customer`")
    found = invalidations([update, update], rules("order:{id}", "of:{customer}"))
    assert found.pairs == [("order:o-1", TOKEN)] * 2
    assert [*found.bumps] == ["orders has no column `customer`"]


class Kind(int, enum.Enum):
    PAID = 3


class Share(float, enum.Enum):
    HALF = 0.5


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (Decimal("12.50"), "12.5"),
        (Decimal("1E+2"), "100"),
        (0.5, "0.5"),
        (True, "true"),
        (Kind.PAID, "3"),
        (Share.HALF, "0.5"),
        (b"\x00\xff", "AP8="),
        (memoryview(b"a"), "YQ=="),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), "2024-01-01T00:00:00.000000Z"),
        ({"N": "-0.0"}, "0"),
        ({"S": "1.0"}, "1.0"),
        ("0000-00-00 00:00:00", "0000-00-00 00:00:00"),
        ("0000-00-00 00:00:00.000", "0000-00-00 00:00:00"),
        ("0000-00-00 00:00:00.001", "0000-00-00 00:00:00.001"),
        ("2024-01-01 00:00:00.000", "2024-01-01 00:00:00.000"),
        ("0000-00-00", "0000-00-00"),
    ],
)
def test_a_value_has_the_text_that_invalidations_have(value: Any, part: str) -> None:
    assert key_text("k:{a}", {"a": value}) == f"k:{part}"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({}, "without a value of `a`"),
        ({"a": None}, "without a value of `a`"),
        ({"a": {"NULL": True}}, "without a value of `a`"),
        ({"a": ["x"]}, "cannot be part of a cache key"),
        ({"a": {"L": []}}, "cannot be part of a cache key"),
        ({"a": datetime(2024, 1, 1)}, "cannot be part of a cache key"),
        ({"a": timedelta(1)}, "cannot be part of a cache key"),
        ({"a": float("nan")}, "is not a number"),
    ],
)
def test_a_row_without_a_key_or_with_a_value_whose_text_is_not_known_has_none(row: Any, said: str) -> None:
    """I6: a DATETIME has as many decimals as its column, which a datetime does not say."""
    with pytest.raises(ValueError, match=said):
        key_text("k:{a}", row)


def test_texts_of_different_case_make_different_keys() -> None:
    """I6: a collation may take them for equal, but the row that changes has one of them."""
    renamed = changed(Operation.UPDATE, {"customer": "ada"}, {"customer": "Ada"})
    found = invalidations([renamed], rules("of:{customer}"))
    assert [key for key, _ in found.pairs] == [key_text("of:{customer}", {"customer": name}) for name in ("ada", "Ada")]


def test_rows_have_each_key_once_and_none_of_a_column_that_they_lack() -> None:
    templates = ["order:{id}", "of:{user}"]
    rows: list[dict[str, Any]] = [
        {"id": {"N": "1.0"}, "user": {"NULL": True}},
        {"id": {"N": "1"}, "user": {"S": "ada"}},
        {"user": "bob"},
    ]
    assert row_keys(templates, rows) == ["order:1", "of:ada", "of:bob"]
    with pytest.raises(ValueError, match="cannot be part of a cache key"):
        row_keys(templates, [{"id": {"L": []}}])


@pytest.mark.parametrize(
    "record", [b"not JSON", b"[]", b"{}", b'{"source":["orders"]}', b'{"source":{"name":"orders"},"reason":"expired"}']
)
def test_a_gap_whose_record_cannot_be_read_invalidates_the_namespace(record: bytes) -> None:
    """I9, I12: also one whose source is not text, which must not end the consumer."""
    for sources in (frozenset({"orders"}), ["orders"]):
        assert gap_bump(record, sources) == "changes of an unknown source were lost: the gap record cannot be read"


def test_a_gap_of_another_source_or_of_one_table_invalidates_nothing() -> None:
    """I9"""
    assert gap_bump(b'{"source":"lines","reason":"expired"}', ["orders"]) is None
    assert gap_bump(b'{"source":"orders","table":"orders","reason":"altered"}', ["orders"]) is None
    assert gap_bump(b'{"source":"orders","reason":"expired"}', ["orders"]) == "changes of orders were lost: expired"
