"""Spark decodes the golden values correctly, all schemas in one batch, and refuses everything else (I8)."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.avro.encode import ChangeEncoder
from relay.avro.framing import fingerprint, single_object_header, split
from relay.avro.schema import change_schema, unescape
from relay.change import Change, Images, Operation
from relay.table import Column, KeyColumn, TableSchema
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services

GOLDEN = orjson.loads((Path(__file__).parents[2] / "schemas" / "golden" / "values.json").read_bytes())

READ = """
import json, sys
from relay.avro.registry import open_schemas
from spark_consumers.decode import Decoder
from spark_consumers.session import open_session
given = json.load(sys.stdin)
schemas = {bytes.fromhex(header): schema for header, schema in given["schemas"]}
session = open_session("golden", delta=False)
rows = [("t", 0, number, bytes.fromhex(value)) for number, value in enumerate(given["values"])]
frame = session.createDataFrame(rows, "topic string, partition int, offset long, value binary")
decoded = Decoder(schemas, registry=True, gaps="gaps").changes(frame)
decoded = decoded.selectExpr("*", "hex(value) AS kept", "is_valid_utf8(new) AS readable").drop("value", "keyspace_id")
json.dump([row.asDict(True) for row in decoded.orderBy("offset").collect()], sys.stdout, default=str)
"""


def read_on_spark(
    spark: SparkProcess, values: list[bytes], schemas: dict[str, Any] = GOLDEN["schemas"]
) -> list[dict[str, Any]]:
    given = json.dumps({"schemas": list(schemas.items()), "values": [value.hex() for value in values]})
    return json.loads(spark.run(READ, given=given, compiled=True))  # type: ignore[no-any-return]


def typed(text: str | None) -> Any:
    """Read a typed row as the log and the copy hold it: times end in Z, and 32-bit floats are short."""
    row = None if text is None else json.loads(text)
    return row and {name: pytest.approx(value) if isinstance(value, float) else value for name, value in row.items()}


def expected_row(row: dict[str, Any] | None) -> Any:
    return row and {
        unescape(name): value.replace("+00:00", "Z") if isinstance(value, str) else value for name, value in row.items()
    }


def test_spark_decodes_the_golden_values_and_nothing_else(spark_process: SparkProcess) -> None:
    good = [bytes.fromhex(case["bytes"]) for case in GOLDEN["cases"]]
    header = split(good[0])[0]
    bad = {
        b"": "framing",
        b"hello": "framing",
        b"\xc3\x01" + b"\x07" * 8 + b"body": "schema",
        header + b"\x02": "damaged",
        good[0][:-3]: "damaged",
        good[0] + b"\x00": "damaged",
    }
    rows = read_on_spark(spark_process, [*good, *bad])
    assert [row["status"] for row in rows] == ["change"] * len(good) + list(bad.values())
    # I11: of values with an unknown schema, which may be a complete backlog, only the header is kept.
    kept = [value[:10] if status == "schema" else value for value, status in bad.items()]
    assert [row["kept"] for row in rows] == [None] * len(good) + [value.hex().upper() for value in kept]
    for case, row in zip(GOLDEN["cases"], rows, strict=False):
        expected = case["decoded"]
        name = case["name"]
        assert (row["event_id"], row["operation"], row["images"]) == (
            expected["event_id"],
            expected["operation"],
            expected["images"],
        ), name
        for image in ("old", "new"):
            if isinstance(expected[image], str):
                assert row[image] == expected[image], name
            else:
                assert typed(row[image]) == expected_row(expected[image]), name
        assert row["attributes"] == expected["attributes"], name
        token = expected["token"]
        found = json.loads(row["token"]) if row["token"] is not None else None
        assert found == token, name
        assert row["resume_timestamp"] == expected["resume_timestamp"], name


def test_long_binary_is_base64_on_one_line(spark_process: SparkProcess) -> None:
    """I8: as in the log and the copy of a short one."""
    table = TableSchema("shop", "blobs", (KeyColumn("id", "B"),), 1)
    schema = change_schema(table)
    header = single_object_header(fingerprint(schema))
    raw = bytes(range(200))
    change = Change(
        event_id="e",
        operation=Operation.DELETE,
        source="shop",
        table="blobs",
        key={"id": raw},
        old=None,
        new=None,
        images=Images.KEYS_ONLY,
        token=None,
        committed_at=1_700_000_000_000_000,
    )
    (row,) = read_on_spark(spark_process, [ChangeEncoder(schema, header).encode(change)], {header.hex(): schema})
    assert json.loads(row["key"]) == {"id": b64encode(raw).decode()}
    assert row["key_texts"] == [b64encode(raw).decode()]


EXACT: dict[str, tuple[Any, str]] = {
    "int": (-(2**31), "-2147483648"),
    "long": (2**63 - 1, "9223372036854775807"),
    "float": (0.10000000149011612, "0.1"),
    "double": (1e10, "1.0E10"),
    "boolean": (False, "false"),
    "string": ('a"\\\x00\u2028\U0001f600', '"a\\"\\\\\\u0000\u2028\U0001f600"'),
    "bytes": (b"", '""'),
    "decimal(38,10)": (Decimal("0.0000000001"), '"0.0000000001"'),
    "decimal(60,1)": (Decimal("-" + "9" * 20 + ".5"), '"-' + "9" * 20 + '.5"'),
    "timestamp": (datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), '"1969-12-31T23:59:59.999999Z"'),
    "set": ([], "[]"),
    "json": ('{"a": 1}', '"{\\"a\\": 1}"'),
}


def row_of_all(types: Mapping[str, tuple[Any, str]]) -> tuple[dict[str, Any], str]:
    """Return a row with a column of each type, and its JSON."""
    values = {f"{kind} column": value for kind, (value, _) in types.items()}
    texts = ",".join(f'"{kind} column":{text}' for kind, (_, text) in types.items())
    return values, f"{{{texts}}}"


def test_json_holds_every_value_exactly(spark_process: SparkProcess) -> None:
    """I8: the extremes of each type, in a row, in a key, and null; also with 200 other schemas."""
    row, text = row_of_all(EXACT)
    key, key_text = row_of_all({kind: each for kind, each in EXACT.items() if kind not in ("set", "json")})
    columns = {name: name.removesuffix(" column") for name in row}
    schemas, values = {}, []
    for number in range(201):
        table = TableSchema(
            "shop",
            f"table-{number}",
            tuple(KeyColumn(name, columns[name]) for name in key),
            1,
            row=tuple(Column(name, kind) for name, kind in columns.items()),
        )
        schema = change_schema(table)
        header = single_object_header(fingerprint(schema))
        schemas[header.hex()] = schema
        change = Change(
            event_id=f"e{number}",
            operation=Operation.UPDATE,
            source="shop",
            table=f"table-{number}",
            key=key,
            old=dict.fromkeys(row),
            new=row,
            images=Images.NEW_AND_OLD,
            token=None,
            committed_at=-1,
        )
        values.append(ChangeEncoder(schema, header).encode(change))
    found = read_on_spark(spark_process, values, schemas)
    assert [(each["event_id"], each["table"]) for each in found] == [(f"e{n}", f"table-{n}") for n in range(201)]
    # A key keeps its text when its columns get more decimals, so it has no zeros at their end.
    assert {each["key"] for each in found} == {key_text}
    nulls = ",".join(f'"{name}":null' for name in row)
    assert {(each["old"], each["new"]) for each in found} == {(f"{{{nulls}}}", text)}
    assert {each["committed_at"] for each in found} == {"1969-12-31 23:59:59.999999"}


def test_texts_of_any_length_and_alphabet_are_exact_in_json(spark_process: SparkProcess) -> None:
    """I8: in names and values, at all places of the buffers that JSON is written through. Bytes that are not text are
    replaced as Java does it.
    """
    name = 'n"\\\U0001f600\u00e9'
    table = TableSchema("shop", "texts", (KeyColumn(name, "string"),), 1, row=(Column(name, "string"),))
    schema = change_schema(table)
    header = single_object_header(fingerprint(schema))
    texts = ["x" * length + '\U0001f600\u2028"' * 6000 for length in range(4)]
    changes = [
        Change(
            event_id="e",
            operation=Operation.UPDATE,
            source="shop",
            table="texts",
            key={name: text},
            old=None,
            new={name: text},
            images=Images.NEW_AND_OLD,
            token=None,
            committed_at=0,
        )
        for text in [*texts, "no text: ????"]
    ]
    *good, last = (ChangeEncoder(schema, header).encode(change) for change in changes)
    *rows, replaced = read_on_spark(
        spark_process, [*good, last.replace(b"????", b"\xed\xa0\x80\xff")], {header.hex(): schema}
    )
    assert [json.loads(row["key"]) for row in rows] == [{name: text} for text in texts]
    assert [json.loads(row["new"]) for row in rows] == [{name: text} for text in texts]
    assert not any("\\ud83d" in row["key"].lower() for row in rows)
    assert set(json.loads(replaced["new"])[name].removeprefix("no text: ")) == {"\ufffd"}
    assert replaced["readable"]


def test_damaged_values_are_changes_or_damaged_but_never_end_spark(spark_process: SparkProcess) -> None:
    """I8: a flipped byte may be one of a text. One of a length must not ask for gigabytes."""
    chance = random.Random(7)
    values = []
    for case in GOLDEN["cases"]:
        good = bytes.fromhex(case["bytes"])
        for _ in range(20):
            place = chance.randrange(10, len(good))
            values.append(good[:place] + bytes([chance.randrange(256)]) + good[place + 1 :])
            values.append(good[:place] + b"\xfe\xff\xff\xff\x0f" + good[place:])
            values.append(good[:place])
    rows = read_on_spark(spark_process, values)
    statuses = [row["status"] for row in rows]
    assert set(statuses) == {"change", "damaged"}
    assert "change" not in statuses[2::3]
    assert [row["event_id"] is None for row in rows] == [status == "damaged" for status in statuses]
