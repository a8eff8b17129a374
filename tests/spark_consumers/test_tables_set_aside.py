"""A table of the copy that cannot take its changes is set aside: the others go on, and it says what it missed (I12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.change import Operation
from relay.operations.dead_letters import DeadLetters
from relay.services.postgres import execute
from tests.spark_consumers.noted_copy import played
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

pytestmark = pytest.mark.services

WIDER = 'layout({"a": "string"}, {"a": "string", "b": "long"})'
LATER = "int(__import__('time').time()) + 3600"


def test_a_table_that_cannot_be_altered_is_set_aside_and_goes_on_when_it_can(
    database_url: str, spark_process: SparkProcess
) -> None:
    """I9, I12: also after a restart, and until a snapshot that began later has ended."""
    steps = f"""
def look():
    rows = [copy.rows("orders", "a", "b"), copy.rows("lines", "b")]
    found.append([copy.aside(), copy.lacking(), *rows, copy.noted("orders")])

later = {LATER}
copy.play(row(1, "a", 0), row(2, "2", 2))
execute(sys.argv[1], "CREATE VIEW shop.dashboard AS SELECT b FROM shop.orders")
copy.play(row(3, "b", 1), row(4, "4", 2))
look()
copy.start()
copy.notes.applied(session)
copy.play(row(5, "5", 2))
look()
copy.play(row(6, "c", 1))
execute(sys.argv[1], "DROP VIEW shop.dashboard")
copy.play(row(7, "d", 1), mark(8, "begin", 900, "early"), mark(9, "end", 900, "early"))
look()
copy.start()
copy.notes.applied(session)
copy.play(mark(10, "begin", later), read(11, ["b"], {{"a": "b", "b": 3}}, later), mark(12, "end", later))
look()
"""
    found = played(spark_process, database_url, f"[BY_A, {WIDER}, LINES]", steps)
    assert found == [
        [["orders"], ["orders"], [["a", 1]], [[2], [4]], None],
        [["orders"], ["orders"], [["a", 1]], [[2], [4], [5]], None],
        [[], ["orders"], [["a", 1], ["d", 7]], [[2], [4], [5]], ["aside/orders"]],
        [[], [], [["a", None], ["b", 3], ["d", None]], [[2], [4], [5]], []],
    ]


def test_the_end_of_a_snapshot_deletes_nothing_in_a_table_that_has_missed_some_of_it(
    database_url: str, spark_process: SparkProcess
) -> None:
    """I7, I9: the rows that were read meanwhile exist at the source."""
    steps = f"""
later = {LATER}
copy.play(row(1, "a", 0), row(2, "b", 0), mark(3, "begin", later))
execute(sys.argv[1], "CREATE VIEW shop.dashboard AS SELECT b FROM shop.orders")
copy.play(read(4, ["a"], {{"a": "a", "b": 4}}, later), row(5, "c", 1))
execute(sys.argv[1], "DROP VIEW shop.dashboard")
copy.play(read(6, ["b"], {{"a": "b", "b": 6}}, later), mark(7, "end", later))
found += [copy.rows("orders", "a", "b", "_relay_deleted"), copy.noted("orders"), copy.aside()]
"""
    found = played(spark_process, database_url, f"[BY_A, {WIDER}]", steps)
    assert found == [[["a", 1, False], ["b", 6, False]], ["aside/orders"], []]


def test_a_table_that_cannot_be_read_keeps_no_other_from_its_changes_after_a_restart(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I12: something has written to its Delta log in a way that this Spark does not know."""
    steps = """
from pathlib import Path

def spoil(table):
    log = Path(sys.argv[1], "shop", table, "_delta_log")
    version = max(int(each.stem) for each in log.glob("*.json")) + 1
    features = {"readerFeatures": ["unheard-of"], "writerFeatures": ["unheard-of"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    (log / f"{version:020}.json").write_text(json.dumps(protocol))

copy.play(row(1, "a", 0), row(2, "2", 2))
spoil("orders")
copy.play(row(3, "a", 0), row(4, "4", 2))
found.append([copy.aside(), copy.rows("lines", "b")])
copy.start()
copy.notes.applied(session)
copy.play(row(5, "5", 2))
copy.play(row(6, "a", 0), row(7, "7", 2))
found.append([copy.aside(), copy.rows("lines", "b")])
spoil("lines")  # while no consumer runs
copy.start()
copy.notes.applied(session)
copy.play(row(8, "8", 2))
found.append(copy.aside())
"""
    found = played(spark_process, str(tmp_path), "[BY_A, BY_B, LINES]", steps)
    assert found == [[["orders"], [[2], [4]]], [["orders"], [[2], [4], [5], [7]]], ["orders", "lines"]]


def test_a_table_whose_key_has_changed_is_set_aside_until_somebody_drops_it(
    database_url: str, spark_process: SparkProcess
) -> None:
    """I9: what is made in its place says what it lacks."""
    steps = """
copy.play(row(1, "a", 0))
copy.play(row(2, "2", 1))
found.append([copy.aside(), copy.rows("orders", "b")])
execute(sys.argv[1], "DROP TABLE shop._relay_rows_orders CASCADE")
copy.play(row(3, "3", 1))
found.append([copy.aside(), copy.rows("orders", "b"), copy.noted("orders")])
"""
    found = played(spark_process, database_url, "[BY_A, BY_B]", steps)
    assert found == [[["orders"], [[1]]], [[], [[3]], ["aside/orders"]]]


def test_a_table_that_cannot_be_made_notes_earlier_gaps_once_it_can(
    database_url: str, spark_process: SparkProcess
) -> None:
    """I9"""
    steps = """
execute(sys.argv[1], "CREATE SCHEMA shop; CREATE TYPE shop.orders AS ENUM ()")
copy.play(gaps=[gap("past")])
for number in (1, 2):
    copy.play(row(number, "a", 0))
found += [copy.aside(), copy.noted("orders")]
execute(sys.argv[1], "DROP TYPE shop.orders")
copy.play(row(3, "b", 0))
found += [copy.aside(), copy.noted("orders"), copy.rows("orders", "a")]
"""
    found = played(spark_process, database_url, "[BY_A]", steps)
    assert found == [["orders"], None, [], ["past", "aside/orders"], [["b"]]]


def test_a_table_that_takes_a_part_of_a_batch_is_set_aside_with_all_of_it(
    database_url: str, spark_process: SparkProcess
) -> None:
    """I9: a truncation that it refuses comes behind a row that it takes."""
    steps = """
from relay.change import Operation

copy.play(row(1, "a", 0))
copy.execute("ALTER TABLE ALTER b SET NOT NULL")
copy.play(row(2, "b", 0), change(3, (), None, Operation.TRUNCATE), row(4, "c", 0))
found += [copy.aside(), copy.noted("orders"), copy.rows("orders", "a")]
copy.execute("ALTER TABLE ALTER b DROP NOT NULL")
copy.play(row(5, "d", 0))
found += [copy.aside(), copy.noted("orders"), copy.rows("orders", "a")]
"""
    found = played(spark_process, database_url, "[BY_A]", steps)
    assert found == [["orders"], None, [["a"], ["b"]], [], ["aside/orders"], [["a"], ["b"], ["d"]]]


IN_BOTH = """
copy.play(row(1, "a", 0), row(2, "2", 2))
copy.execute("ALTER TABLE ADD CONSTRAINT small CHECK (b IS NULL OR b NOT IN (13, 17))")
for one, other in (3, 13), (17, 18):
    refused = copy.play(row(one, "a", 0), row(other, "b", 0), row(4, "4", 2))
    found.append([refused, copy.rows("orders", "a", "b", "_relay_deleted", "_relay_incomplete")])
copy.play(row(19, "19", 1), row(20, "20", 2))
found += [copy.aside(), copy.rows("lines", "b")]
"""


@pytest.mark.parametrize("target", ["delta", "postgres"])
def test_both_targets_tell_the_fault_of_a_row_from_that_of_a_table(
    target: str, tmp_path: Path, request: pytest.FixtureRequest, spark_process: SparkProcess
) -> None:
    """I12: a row that a constraint refuses, and a table that has another key."""
    place = str(tmp_path) if target == "delta" else request.getfixturevalue("database_url")
    found = played(spark_process, place, "[BY_A, BY_B, LINES]", IN_BOTH)
    whole, incomplete = [False, False], [False, True]
    assert found == [
        [[13], [["a", 3, *whole], ["b", None, True, True]]],
        [[17], [["a", 3, *incomplete], ["b", 18, *whole]]],
        ["orders"],
        [[2], [4], [20]],
    ]


def test_a_refused_row_is_among_the_dead_letters_and_a_table_set_aside_ends_a_run_that_catches_up(
    tmp_path: Path, kafka: Any, redis_server: Any, unique: str, database_url: str, spark_process: SparkProcess
) -> None:
    """I1, I12: a change that was refused is applied when it is redriven, once the cause is gone."""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)
    topic.set_copy_url(database_url)
    topic.publish([change("c0", 1, Operation.INSERT)])
    topic.consume("copy", checkpoint="copy")
    small = "CHECK (item #>> '{version,N}' <> '13')"
    execute(database_url, f"ALTER TABLE orders._relay_rows_orders ADD CONSTRAINT small {small}")
    refused, line = change("c1", 13, Operation.INSERT), change("c0", 2, Operation.INSERT)
    line.source, line.table = "lines", "lines"
    topic.publish([change("c0", 2), refused, change("c2", 3, Operation.INSERT), line])
    assert topic.consume("copy", checkpoint="copy")["dead_letters"] == 1
    letters = DeadLetters(topic.config)
    (letter,) = letters.pending()
    assert letter.text("reason") == "refused by the table"
    assert 'violates check constraint "small"' in letter.text("detail")
    assert letters.show(letter)["change"]["event_id"] == refused.event_id
    execute(database_url, "ALTER TABLE orders._relay_rows_orders DROP CONSTRAINT small")
    letters.redrive([letter], lambda _: None)
    execute(database_url, "ALTER TABLE lines._relay_rows_lines DROP CONSTRAINT _relay_rows_lines_pkey")
    later = change("c0", 3)
    later.source, later.table = "lines", "lines"
    topic.publish([later])
    topic.refuse("copy", checkpoint="copy", code=1)
    assert topic.apply()["copy"] == {"c0": 2, "c1": 13, "c2": 3}
    assert "table lines is set aside: " in topic.log.read_text()
    assert f"then run `relay snapshot {topic.path} lines lines`" in topic.log.read_text()
