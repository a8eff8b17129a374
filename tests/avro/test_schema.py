"""Names and schemas: names are restored, types have their own schemas, and the files are found when installed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import to_parsing_canonical_form
from hypothesis import given, settings
from hypothesis import strategies as st

import relay
from relay.avro import schema
from relay.avro.framing import fingerprint
from relay.avro.schema import change_schema, escape, unescape
from relay.change import Images, Operation
from relay.table import Column, KeyColumn, TableSchema
from relay.types.columns import column_type
from tests.avro.strategies import tables


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("order_id", "order_id"),
        ("a-b", "a_x002D_b"),
        ("ab", "ab"),
        ("1x", "_x0031_x"),
        ("x1", "x1"),
        ("", "_x_"),
        ("_x", "_x005F_x"),
        ("_X", "_X"),
        ("_x0041_", "_x005F_x0041_"),
        ("a.b c", "a_x002E_b_x0020_c"),
        ("über", "_x00FC_ber"),
        ("名", "_x540D_"),
        ("𝒳", "_x1D4B3_"),
        ("line\n", "line_x000A_"),
    ],
)
def test_a_name_is_escaped_character_by_character(name: str, escaped: str) -> None:
    """I8."""
    assert escape(name) == escaped
    assert unescape(escaped) == name


@given(st.text() | st.from_regex(r"(_|x|[0-9A-F]{4}|_x){0,6}", fullmatch=True))
def test_every_name_is_restored_from_its_escaped_form(name: str) -> None:
    """I8."""
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", escape(name))
    assert unescape(escape(name)) == name


@settings(deadline=None)
@given(tables())
def test_every_table_has_a_schema_that_avro_accepts(table: TableSchema) -> None:
    schema = change_schema(table)
    assert fastavro.parse_schema(json.loads(json.dumps(schema)))
    assert change_schema(table) == schema


def test_the_schema_has_the_fields_of_a_change_in_order() -> None:
    schema = change_schema(TableSchema("s", "t", (KeyColumn("id", "S"),), 1))
    fields = {field["name"]: field["type"] for field in schema["fields"]}
    assert " ".join(fields) == (
        "event_id operation source table key old new images token snapshot transaction keyspace_id"
        " resume_timestamp committed_at relayed_at attributes"
    )
    assert fields["operation"]["symbols"] == list(Operation)
    assert fields["images"]["symbols"] == list(Images)
    assert fields["old"] == fields["new"] == ["null", "string"]
    assert '"doc"' not in json.dumps(schema)


def test_key_columns_keep_their_dynamodb_type_and_original_name() -> None:
    schema = change_schema(
        TableSchema("s", "my.table", (KeyColumn("a-b", "S"), KeyColumn("n", "N"), KeyColumn("b", "B")), 1)
    )
    (key,) = [field["type"][1] for field in schema["fields"] if field["name"] == "key"]
    assert key["namespace"] == "relay.s.my_x002E_table"
    assert key["fields"] == [
        {"name": "a_x002D_b", "type": "string", "source.name": "a-b"},
        {"name": "n", "type": "string", "source.name": "n", "dynamodb": "N"},
        {"name": "b", "type": "bytes", "source.name": "b"},
    ]


def _typed(*columns: tuple[str, str]) -> dict[str, Any]:
    row = tuple(Column(name, kind) for name, kind in columns)
    return change_schema(TableSchema("s", "t", (KeyColumn("id", "long"),), 1, row))


def test_types_that_avro_cannot_tell_apart_have_another_fingerprint() -> None:
    """I8: decimal(10,2) read as decimal(10,4) would be silently wrong."""
    kinds = ["decimal(10,2)", "decimal(10,4)", "bytes", "long", "timestamp", "string", "decimal(40,2)"]
    schemas = [_typed(("c", kind)) for kind in kinds]
    assert len({fingerprint(schema) for schema in schemas}) == len(kinds)
    # Without the hash in the name they would be one.
    bare = {re.sub(r"Row_[0-9a-f]{8}", "Row", to_parsing_canonical_form(schema)) for schema in schemas[:3]}
    assert len(bare) == 1


def test_number_and_text_keys_have_another_fingerprint() -> None:
    number, text = (change_schema(TableSchema("s", "t", (KeyColumn("id", kind),), 1)) for kind in "NS")
    assert fingerprint(number) != fingerprint(text)


def test_the_row_record_is_defined_once_and_named_after_that() -> None:
    old, new = (field["type"][1] for field in _typed(("c", "int"))["fields"][5:7])
    assert re.fullmatch(r"Row_[0-9a-f]{8}", old["name"])
    assert new == f"relay.s.t.{old['name']}"


@pytest.mark.parametrize("text", ["decimal", "decimal(2,3)", "decimal(0,0)", "text", "", "decimal(1,-1)"])
def test_an_unknown_column_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="column type"):
        column_type(text)


def test_spaces_in_a_decimal_type_do_not_change_the_schema() -> None:
    assert _typed(("c", "decimal( 10, 2 )")) == _typed(("c", "decimal(10,2)"))


@pytest.mark.parametrize(("key", "hashes"), [((), 0), ((KeyColumn("a", "S"),), 0), ((KeyColumn("a", "S"),), 2)])
def test_a_table_without_a_hash_key_is_refused(key: tuple[KeyColumn, ...], hashes: int) -> None:
    with pytest.raises(ValueError, match="the hash key has"):
        TableSchema("s", "t", key, hashes)


def test_two_columns_with_the_same_name_are_refused() -> None:
    columns = (Column("rest", "string"), Column("rest", "rest"))
    with pytest.raises(ValueError, match="two columns named 'rest'"):
        TableSchema("s", "t", (KeyColumn("a", "S"),), 1, columns)


@pytest.mark.parametrize("kind", ["set", "json", "rest"])
def test_a_key_cannot_be_of_a_type_without_one_text_form(kind: str) -> None:
    with pytest.raises(ValueError, match="cannot be of type"):
        change_schema(TableSchema("s", "t", (KeyColumn("a", kind),), 1))


def test_the_schemas_are_found_beside_a_checkout_and_inside_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Path(relay.__file__).parent.parent / "schemas"
    assert schema.schemas_folder() == checkout
    package = tmp_path / "relay"
    shutil.copytree(checkout, package / "_schemas")
    monkeypatch.setattr(schema, "__file__", str(package / "avro" / "schema.py"))
    assert schema.schemas_folder() == package / "_schemas"
