"""Which gaps the tables of a copy note, wherever it is, as tables and their keys come and change (I9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark_consumers.noted_copy import played
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services

IN_BOTH = pytest.mark.parametrize("place", ["delta", "postgres"], indirect=True)
# The rule is one for both: that of IN_BOTH proves that Delta keeps and returns what it notes.
IN_POSTGRES = pytest.mark.parametrize(
    "place",
    ["postgres", pytest.param("delta", marks=pytest.mark.faults("the same rule in PostgreSQL, and Delta by IN_BOTH"))],
    indirect=True,
)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a copy is kept."""
    return str(tmp_path) if request.param == "delta" else request.getfixturevalue("database_url")


@IN_BOTH
def test_a_gap_is_noted_at_a_table_that_had_another_key_before_the_copy_began(
    place: str, spark_process: SparkProcess
) -> None:
    """The schemas topic still has the other key, and no later batch could be written to a table that had both."""
    steps = """
copy.play(row(1, "1", 1), gaps=[gap("with its first change")])
copy.play(gaps=[gap("alone")])
copy.start()
copy.play(row(2, "2", 1), gaps=[gap("after a start")])
found.append(copy.noted("orders"))
"""
    found = played(spark_process, place, "[BY_A, BY_B]", steps)
    assert found == [["with its first change", "alone", "after a start"]]


@IN_POSTGRES
def test_a_gap_before_the_first_change_is_noted_at_a_table_that_had_another_key(
    place: str, spark_process: SparkProcess
) -> None:
    steps = """
copy.play(gaps=[gap("past")])
copy.play(row(1, "1", 1))
copy.play(row(2, "2", 1))
found.append(copy.noted("orders"))
"""
    assert played(spark_process, place, "[BY_A, BY_B]", steps) == [["past"]]


@IN_POSTGRES
def test_a_gap_that_a_snapshot_without_rows_has_repaired_is_not_noted_again(
    place: str, spark_process: SparkProcess
) -> None:
    """Nothing but another snapshot would ever remove it."""
    steps = """
copy.play(gaps=[gap("past")])
copy.play(mark(1, "begin", FOUND_AT))
found.append(copy.noted("orders"))
copy.play(mark(2, "end", FOUND_AT))
copy.start()
copy.play(row(3, "a", 0))
found.append(copy.noted("orders"))
"""
    assert played(spark_process, place, "[BY_A]", steps) == [["past"], []]


@IN_POSTGRES
def test_a_table_that_comes_later_notes_the_gaps_that_others_of_its_source_still_have(
    place: str, spark_process: SparkProcess
) -> None:
    """I9: its first changes may be among those that were lost."""
    steps = """
copy.play(gaps=[gap("repaired"), gap("later", FOUND_AT + 1000)])
copy.play(row(1, "a", 0), mark(2, "begin", FOUND_AT), mark(3, "end", FOUND_AT))
copy.play(row(4, "1", 1))
found.append([copy.noted("orders"), copy.noted("lines")])
"""
    assert played(spark_process, place, "[BY_A, LINES]", steps) == [[["later"], ["later"]]]


@IN_POSTGRES
def test_a_table_that_comes_after_the_gaps_of_its_source_were_repaired_notes_none(
    place: str, spark_process: SparkProcess
) -> None:
    steps = """
copy.play(gaps=[gap("repaired")])
copy.play(row(1, "a", 0), mark(2, "begin", FOUND_AT), mark(3, "end", FOUND_AT))
copy.start()
copy.play(row(4, "1", 1))
found.append([copy.noted("orders"), copy.noted("lines")])
"""
    assert played(spark_process, place, "[BY_A, LINES]", steps) == [[[], None]]
