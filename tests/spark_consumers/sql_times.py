"""Rows with times and documents of SQL: their texts in images, and what PostgreSQL's types make of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

from tests.spark_consumers.batches import Published, change, layout

TYPED = {"at": "sql datetime", "day": "sql date", "hour": "sql time", "doc": "sql json", "seen": "sql timestamp"}
TIMES = layout({"id": "int"}, {"id": "int", **TYPED, "note": "string"})
SEEN = datetime(2026, 11, 27, 11, tzinfo=UTC)
ZERO = "1970-01-01T00:00:00.000000Z"

# The texts of a row, and its values; what does not fit is None, and its text beside.
ROWS: list[tuple[list[str | None], list[Any]]] = [
    (
        ["2026-11-27 11:00:00.5", "2000-02-29", "23:59:59.999999", '{"a": 1}', "2026-11-27T11:00:00.000000Z"],
        [datetime(2026, 11, 27, 11, 0, 0, 500000), date(2000, 2, 29), time(23, 59, 59, 999999), {"a": 1}, SEEN],
    ),
    (["0000-00-00 00:00:00", "0000-00-00", "838:59:59", '{"a": "\\u0000"}', ZERO], [None] * 5),
    (["2023-02-29 00:00:00", "1900-02-29", "-00:00:01", "1", None], [None, None, None, 1, None]),
    (["2024-00-10 00:00:00", "2023-04-31", "24:00:00", "null", None], [None] * 5),
    (
        ["9999-12-31 23:59:59", "0001-01-01", "00:00:00", '"x"', None],
        [datetime(9999, 12, 31, 23, 59, 59), date(1, 1, 1), time(0), "x", None],
    ),
    ([None] * 5, [None] * 5),
]


def written() -> list[Published]:
    images = [{"id": n, **dict(zip(TYPED, texts, strict=True)), "note": "n"} for n, (texts, _) in enumerate(ROWS)]
    return [change(n + 1, [str(n)], image) for n, image in enumerate(images)]
