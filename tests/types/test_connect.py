"""The table of types in Debezium's envelope: the schemas that its MySQL connector registers for the same columns."""

from __future__ import annotations

from typing import Any

import fastavro
import pytest

from relay.mysql_dialect.catalog import carried_column
from relay.types.columns import TYPES, ColumnKind, column_type
from relay.types.connect import Semantic, connect_type


def named(avro: str, name: str, **parameters: str) -> dict[str, Any]:
    said = {"connect.parameters": parameters} if parameters else {}
    return {"type": avro, "connect.version": 1, **said, "connect.name": name}


def number(precision: int, scale: int) -> dict[str, Any]:
    said = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    found = {"type": "bytes", "connect.version": 1, "connect.parameters": said, "scale": scale, "precision": precision}
    return found | {"connect.name": "org.apache.kafka.connect.data.Decimal", "logicalType": "decimal"}


INT16 = {"type": "int", "connect.type": "int16"}


@pytest.mark.parametrize(
    ("defined", "avro"),
    [
        ("tinyint(4)", INT16),
        ("tinyint(1)", INT16),
        ("tinyint(3) unsigned", INT16),
        ("smallint(6)", INT16),
        ("smallint(5) unsigned", "int"),
        ("mediumint(9)", "int"),
        ("mediumint(8) unsigned", "int"),
        ("int(11)", "int"),
        ("int(10) unsigned zerofill", "long"),
        ("bigint(20)", "long"),
        ("bigint(20) unsigned", "long"),
        ("decimal(10,2)", number(10, 2)),
        ("decimal(50,10)", number(50, 10)),
        ("float", "float"),
        ("double", "double"),
        ("date", named("int", "io.debezium.time.Date")),
        ("datetime", named("long", "io.debezium.time.Timestamp")),
        ("datetime(3)", named("long", "io.debezium.time.Timestamp")),
        ("datetime(4)", named("long", "io.debezium.time.MicroTimestamp")),
        ("datetime(6)", named("long", "io.debezium.time.MicroTimestamp")),
        ("timestamp", named("string", "io.debezium.time.ZonedTimestamp")),
        ("timestamp(6)", named("string", "io.debezium.time.ZonedTimestamp")),
        ("time", named("long", "io.debezium.time.MicroTime")),
        ("time(6)", named("long", "io.debezium.time.MicroTime")),
        ("year(4)", named("int", "io.debezium.time.Year")),
        ("varchar(20)", "string"),
        ("longtext", "string"),
        ("json", named("string", "io.debezium.data.Json")),
        ("enum('a','b,c','d''e')", named("string", "io.debezium.data.Enum", allowed="a,b\\,c,d'e")),
        ("set('x','y')", named("string", "io.debezium.data.EnumSet", allowed="x,y")),
        ("binary(4)", "bytes"),
        ("blob", "bytes"),
        ("bit(1)", "boolean"),
        ("bit(5)", named("bytes", "io.debezium.data.Bits", length="5")),
        ("vector(3)", {**named("array", "io.debezium.data.FloatVector"), "items": "float"}),
    ],
)
def test_a_column_of_sql_has_debeziums_schema(defined: str, avro: Any) -> None:
    column = carried_column("c", defined)
    assert connect_type(column.type, column.sql, column.detail).avro == avro


def test_a_geometry_is_a_record_with_its_srid() -> None:
    column = carried_column("c", "linestring")
    found = connect_type(column.type, column.sql, column.detail)
    assert found.semantic is Semantic.GEOMETRY
    assert [field["name"] for field in found.avro["fields"]] == ["wkb", "srid"]


@pytest.mark.parametrize("kind", [each.kind for each in TYPES])
def test_each_kind_of_column_has_a_schema_without_a_detail(kind: ColumnKind) -> None:
    """DynamoDB's columns have none, nor have columns that are masked or hashed."""
    name = "decimal(10,2)" if kind is ColumnKind.DECIMAL else str(kind)
    assert column_type(name).kind is kind
    fastavro.parse_schema(connect_type(name).avro)
