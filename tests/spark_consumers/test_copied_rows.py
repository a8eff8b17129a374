"""The rows that PostgreSQL copies are those of the items that SQL can decide, whatever is in their texts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from relay.change import REDRIVEN
from spark_consumers.plain_tokens import PLAIN_END
from tests.spark_consumers.drawn_tokens import like_plain_tokens, plain_parts
from tests.spark_consumers.spark_process import SparkProcess


@pytest.mark.services
def test_rows_for_postgresql_have_the_items_that_sql_can_decide_alone(spark_process: SparkProcess) -> None:
    """I5, I8: whatever token came before, and whatever is in a text."""
    texts, plain = like_plain_tokens()
    random.Random(1).shuffle(texts)
    given: list[list[Any]] = [[text, "INSERT", '{"a":"\t\\\\\n\r\\\\."}', "k\t\\\n\r\u00e9\u0001"] for text in texts]
    usual = f'{{"timestamp":7,{plain[0][0]}1{PLAIN_END}'
    given += [[usual, "DELETE", "{}", "k"], [usual, "UPDATE", None, "k"], [usual, "UPDATE", '{"a":"\\u0000"}', "k"]]
    given += [[usual, "INSERT", "{}", "\0"], *([usual, "INSERT", "x" * 300_000, "k" * number] for number in range(3))]
    given = [[*each[:3], f"{each[3]} {at}", {"event_version": "1.1"}] for at, each in enumerate(given)]
    given.append([usual, "INSERT", "{}", "k", {REDRIVEN: "true"}])
    expected = []
    for offset, (token, operation, image, key, attributes) in enumerate(given):
        parts, is_deleted = plain_parts(token or ""), operation == "DELETE"
        is_whole = is_deleted or (image is not None and "u0000" not in image)
        if parts is None or not is_whole or REDRIVEN in attributes or "\0" in key:
            continue
        shown = [key, 0, offset, "shop.orders", token, is_deleted, f"e{offset}", 0]
        number = str(parts[1])
        expected.append([*shown, None if is_deleted else image, parts[0], number, number, 1, offset, None])
    assert json.loads(spark_process.run(COPIED, given=json.dumps(given), compiled=True)) == expected


COPIED = """
import json, struct, sys
from pyspark.sql import SparkSession
from spark_consumers.plain_items import PlainItems
from spark_consumers.sinks.postgres_upsert import COPIED_COLUMNS, copied_rows
from tests.spark_consumers.batches import layout

READ = {
    "text": bytes.decode,
    "integer": lambda field: struct.unpack("!i", field)[0],
    "bigint": lambda field: struct.unpack("!q", field)[0],
    "boolean": lambda field: {b"\\0": False, b"\\1": True}[field],
}

def taken(format):
    global at
    found = struct.unpack_from(format, copied, at)
    at += struct.calcsize(format)
    return found[0]

session = SparkSession.getActiveSession()
rows = [
    ("change", 0, "shop.orders", 0, at, [key], operation, None, None, attributes, token, f"e{at}", image)
    for at, (token, operation, image, key, attributes) in enumerate(json.load(sys.stdin))
]
frame = session.createDataFrame(
    rows,
    "status string, layout int, topic string, `partition` int, `offset` long, key_texts array<string>, "
    "operation string, snapshot_id string, snapshot_as_of long, attributes map<string,string>, token string, "
    "event_id string, new string",
)
items = PlainItems(frame.coalesce(1), [layout({"id": "string"}, None)], nul=False)
copied = b"".join(copied_rows(session.sparkContext, items.rows([0]), 1))
items.close()
kinds, found, at = ["text", *COPIED_COLUMNS.values()], [], 19
while (fields := taken("!h")) >= 0:
    assert fields == len(kinds)
    found.append([None if (size := taken("!i")) < 0 else READ[kind](taken(f"!{size}s")) for kind in kinds])
assert copied.startswith(b"PGCOPY") and (fields, at) == (-1, len(copied))
json.dump(found, sys.stdout)
"""
