"""Spark decodes the golden values correctly, all schemas in one batch, and refuses everything else (I8)."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.avro.encode import ChangeEncoder
from relay.avro.framing import fingerprint, single_object_header, split
from relay.avro.schema import change_schema, unescape
from relay.change import Change, Images, Operation
from relay.table import KeyColumn, TableSchema
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
decoded = decoded.selectExpr("*", "hex(value) AS kept").drop("value", "keyspace_id")
json.dump([row.asDict(True) for row in decoded.orderBy("offset").collect()], sys.stdout, default=str)
"""


def read_on_spark(
    spark: SparkProcess, values: list[bytes], schemas: dict[str, Any] = GOLDEN["schemas"]
) -> list[dict[str, Any]]:
    given = json.dumps({"schemas": list(schemas.items()), "values": [value.hex() for value in values]})
    return json.loads(spark.run(READ, given=given))  # type: ignore[no-any-return]


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
