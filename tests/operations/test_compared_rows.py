"""Rows of both sides as `relay verify` compares them: their keys, their values, and more of them than fit in memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from relay.errors import RelayError
from relay.mysql_dialect.charsets import NotText
from relay.operations.compared_rows import ComparedRow, ComparedTable, digest_pairs
from relay.table import Column, KeyColumn, TableSchema
from spark_consumers.kept_rows import KeptRow


def test_the_rows_of_both_sides_meet_by_their_keys_and_the_last_one_of_a_key_counts() -> None:
    rows = [ComparedRow((str(number),), (str(number),)) for number in range(5000)]
    pairs = list(digest_pairs([ComparedRow(("17",), ("before",)), *rows[:4000]], rows[1000:]))
    assert sorted(int(pair.key[0]) for pair in pairs) == list(range(5000))
    assert sum(pair.kept == pair.truth for pair in pairs) == 3000
    assert {(pair.kept, pair.truth) for pair in pairs if pair.key == ("17",)} == {(rows[17].digest, None)}


_MANY_ROWS = """
import resource
from relay.operations.compared_rows import ComparedRow
from relay.operations.compared_rows import digest_pairs

def rows():
    return (ComparedRow((f"{number * 7919 % 200_000:0400}",), (number,)) for number in range(200_000))

def largest():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = largest()
print(sum(1 for _ in digest_pairs(rows(), rows())), largest() - before)
"""


@pytest.mark.processes
def test_more_rows_than_fit_into_the_memory_are_on_the_disk() -> None:
    """I11: these have 160 MB of keys."""
    ran = subprocess.run([sys.executable, "-c", _MANY_ROWS], capture_output=True, text=True, check=True)
    count, kilobytes = map(int, ran.stdout.split())
    assert count == 200_000
    assert kilobytes < 60_000


VALUES: list[tuple[str, Any, Any]] = [
    ("int", 5, "5"),
    ("int", 5, "5.0"),  # in a copy whose column was widened to a double
    ("long", 2**63 - 1, str(2**63 - 1)),
    ("decimal(10,2)", "1.50", "1.5000"),
    ("float", 0.1, "0.1"),
    ("double", 1e300, "1.0E300"),
    ("double", -0.0, 0),
    ("boolean", True, "true"),
    ("string", "1.50", "1.50"),
    ("bytes", b"\x00\xff", "AP8="),
    ("timestamp", 1_706_691_600_000_001, "2024-01-31T09:00:00.000001Z"),
    ("set", ["b", "a"], '["b","a"]'),
    ("json", '{"L":[{"N":"1.0"},{"SS":["b","a"]}]}', '{"L": [{"N": "1"}, {"SS": ["a", "b"]}]}'),
    ("rest", '{"a":{"N":"1"},"b":{"NULL":true}}', '{"b": {"NULL": true}, "a": {"N": "1.0"}}'),
    ("string", None, None),
]


@pytest.mark.parametrize(("kind", "true", "kept"), VALUES)
def test_equal_values_are_equal_whatever_their_texts(kind: str, true: Any, kept: Any) -> None:
    """I8"""
    table = ComparedTable(TableSchema("s", "t", (KeyColumn("id", "int"),), 1, (Column("v", kind),)))
    assert table.of_source({"id": 1}, {"v": true}).digest == table.of_kept(KeptRow(("1",), (kept,), False, "")).digest


OTHERS: list[tuple[str, Any, Any]] = [
    ("int", 5, "6"),
    ("int", 0, None),
    ("string", "", None),
    ("string", "1.5", "1.50"),
    ("decimal(38,10)", "12345678901234567890.0000000001", "12345678901234567890"),
    ("long", 2**63 - 1, str(2**63 - 2)),
    ("int", 5, "five"),
    ("json", '{"N":"1"}', '{"S":"1"}'),
]


@pytest.mark.parametrize(("kind", "true", "kept"), OTHERS)
def test_other_values_differ_and_are_shown(kind: str, true: Any, kept: Any) -> None:
    """I8"""
    table = ComparedTable(TableSchema("s", "t", (KeyColumn("id", "int"),), 1, (Column("v", kind),)))
    one, other = table.of_source({"id": 1}, {"v": true}), table.of_kept(KeptRow(("1",), (kept,), False, ""))
    assert one.digest != other.digest
    assert list(table.differences(other, one)) == ["v"]


def test_of_items_the_attributes_that_differ_are_shown() -> None:
    table = ComparedTable(TableSchema("s", "t", (KeyColumn("id", "S"),), 1))
    kept = table.of_kept(KeptRow(("a",), ('{"id":{"S":"a"},"n":{"N":"1"},"old":{"S":"x"}}',), False, ""))
    truth = table.of_source({"id": "a"}, '{"n":{"N":"2"},"id":{"S":"a"}}')
    shown = table.differences(kept, truth)
    assert shown == {"n": ['{"N":"1"}', '{"N":"2"}'], "old": ['{"S":"x"}', None]}
    protected = ComparedTable(TableSchema("s", "t", (KeyColumn("id", "S"),), 1, protected=(("n", "hash"),)))
    assert "2" not in str(protected.differences(kept, truth)["n"])


def test_keys_have_the_texts_of_the_copy() -> None:
    key = (KeyColumn("n", "N"), KeyColumn("b", "B"), KeyColumn("t", "timestamp"), KeyColumn("d", "string", "datetime"))
    table = ComparedTable(TableSchema("s", "t", key, 1))
    row = table.of_source({"n": "7", "b": b"\xff", "t": 1_000_000, "d": "2024-01-31 09:00:00.500"}, "{}")
    assert row.key == ("7", "/w==", "1970-01-01T00:00:01.000000Z", "2024-01-31 09:00:00.5")
    assert table.of_kept(KeptRow(("7.0", *row.key[1:]), ("{}",), False, "")).key == row.key


def test_a_key_with_bytes_that_are_not_text_is_not_compared_by_what_is_said_of_it() -> None:
    """I8: no row has that key, so a row that is missing would count as right."""
    table = ComparedTable(TableSchema("shop", "t", (KeyColumn("k", "string"),), 1, (Column("v", "string"),)))
    with pytest.raises(RelayError, match="table t: the key of a row cannot be compared"):
        table.of_source({"k": NotText(b"\xa4")}, {"k": NotText(b"\xa4"), "v": "a"})
