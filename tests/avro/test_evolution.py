"""Aliases between the records of a table's versions, and the list of their differences."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.avro.encode import ChangeEncoder
from relay.avro.evolution import differences, following, same, table_of
from relay.avro.framing import fingerprint
from relay.avro.schema import change_schema
from relay.change import Change, Images, Operation
from relay.table import Column, KeyColumn, TableSchema

KINDS = [
    "string",
    "bytes",
    "boolean",
    "int",
    "long",
    "double",
    "decimal(10,2)",
    "decimal(12,2)",
    "decimal(10,4)",
    "json",
]
VALUES: dict[str, Any] = {"string": "a", "bytes": b"a", "boolean": True, "json": "1"}
columns = st.dictionaries(st.sampled_from(["a", "b", "c-d"]), st.sampled_from(KINDS), max_size=3)


def schema(row: dict[str, str] | None, table: str = "orders", key: str = "S") -> dict[str, Any]:
    columns = None if row is None else tuple(Column(*column) for column in row.items())
    return change_schema(TableSchema("shop", table, (KeyColumn("id", key),), 1, columns))


def row_of(schema: dict[str, Any]) -> dict[str, Any]:
    return next(field["type"][1] for field in schema["fields"] if field["name"] == "old")


def name_of(schema: dict[str, Any]) -> str:
    return f"relay.shop.orders.{row_of(schema)['name']}"


def written(schema: dict[str, Any], row: dict[str, Any]) -> BytesIO:
    change = Change("e", Operation.INSERT, "shop", "orders", {"id": "1"}, None, row, Images.NEW, None, 0)
    return BytesIO(ChangeEncoder(schema, b"").encode(change))


def test_added_and_removed_columns_can_be_read_across_versions_by_any_avro_reader() -> None:
    old, new = schema({"a": "int", "gone": "string"}), schema({"a": "int", "b": "decimal(10,2)"})
    aliased = following(new, [old])
    assert row_of(aliased)["aliases"] == [name_of(old)]
    body = written(old, {"a": 7, "gone": "x"})
    read: Any = fastavro.schemaless_reader(body, old, aliased)
    assert read["new"] == {"a": 7, "b": None}


def test_aliases_do_not_change_the_fingerprint() -> None:
    old, new = schema({"a": "int"}), schema({"a": "int", "b": "long"})
    aliased = following(new, [old])
    assert aliased != new
    assert same(aliased, new)
    assert fingerprint(aliased) == fingerprint(new)
    assert following(aliased, []) == new
    assert not same(old, new)


@pytest.mark.parametrize(
    ("before", "after", "stands"),
    [
        ("int", "long", True),
        ("int", "double", True),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(40,2)", "decimal(50,2)", True),
        # I8: Avro would read each of these wrong, without an error.
        ("decimal(10,2)", "decimal(10,4)", False),
        ("decimal(12,2)", "decimal(10,2)", False),
        ("decimal(38,2)", "decimal(39,2)", False),
        ("long", "double", False),
        ("string", "bytes", False),
        ("string", "json", False),
        ("timestamp", "long", False),
        ("long", "int", False),
    ],
)
def test_a_record_gets_an_alias_only_if_every_value_stays_the_same(before: str, after: str, stands: bool) -> None:
    aliased = following(schema({"a": after}), [schema({"a": before})])
    assert row_of(aliased).get("aliases", []) == ([name_of(schema({"a": before}))] if stands else [])


@given(before=columns, after=columns, value=st.integers(0, 99))
def test_an_avro_reader_that_follows_an_alias_reads_what_was_written(
    before: dict[str, str], after: dict[str, str], value: int
) -> None:
    """I8: the columns that both versions have are equal, read with either schema."""
    old = schema(before)
    aliased = following(schema(after), [old])
    if not row_of(aliased).get("aliases"):
        return
    row = {name: VALUES.get(kind, value) for name, kind in before.items()}
    first: Any = fastavro.schemaless_reader(written(old, row), old, None)
    again: Any = fastavro.schemaless_reader(written(old, row), old, aliased)
    for name in first["new"].keys() & again["new"].keys():
        assert again["new"][name] == first["new"][name]


def test_aliases_name_each_earlier_record_once_and_never_the_record_itself() -> None:
    versions = [schema({"a": "int"}), schema({"a": "int", "b": "int"}), schema({"a": "string"}), schema(None)]
    last = schema({"a": "int", "c": "int"})
    aliased = following(last, [*versions, versions[0], last])
    assert row_of(aliased)["aliases"] == [name_of(versions[0]), name_of(versions[1])]


def test_a_key_with_other_columns_or_types_gets_no_alias() -> None:
    key = following(schema(None, key="N"), [schema(None)])
    assert not any("aliases" in kind for field in key["fields"] for kind in field["type"] if isinstance(kind, dict))


def test_tables_are_told_apart() -> None:
    assert table_of(schema(None)) == table_of(schema({"a": "int"})) is not None
    assert table_of(schema(None)) != table_of(schema(None, table="lines"))
    assert table_of({"type": "string"}) is None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a-b": "int"}, {"a-b": "string"}, ["row a-b: int -> string"]),
        ({"a": "int"}, {"b": "json"}, ["row a: removed, was of type int", "row b: added, of type json"]),
        (None, {"b": "json"}, ["row: JSON text -> typed columns"]),
        ({"a": "int", "b": "int"}, {"b": "int", "a": "int"}, ["the order of its columns"]),
    ],
)
def test_differences_are_listed_by_column(
    before: dict[str, str] | None, after: dict[str, str] | None, said: list[str]
) -> None:
    assert differences(schema(before), schema(after)) == said


def test_the_differences_from_a_foreign_schema_are_listed() -> None:
    assert differences(schema(None), schema(None, key="N")) == ["key id: S -> N"]
    assert "schema: removed, was of type string" in differences({"type": "string"}, schema(None))
