"""I7: what SQL decides of a batch is what the rule makes of it, change by change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_consumers.plain_items import KeyBounds, TableSummary
from tests.spark_consumers.drawn_tokens import like_plain_tokens, plain_parts
from tests.spark_consumers.spark_process import SparkProcess


def bounds(least: str | None, greatest: str | None) -> dict[str, Any]:
    numbers = (None, None) if least is None or greatest is None else (int(least), int(greatest))
    texts = {"least": least, "greatest": greatest}
    return {**texts, "lowest": numbers[0], "highest": numbers[1], "is_number": least is not None}


def group(layout: int, *found: dict[str, Any]) -> dict[str, Any]:
    counts = {"records": 4, "plain": 2, "items": 1, "reads": 1, "bytes": 50, "of_table": 0}
    of_group = {"status": "change", "layout": layout, "topic": "shop.orders", "snapshots": [[layout, 7]]}
    return {**of_group, "bounds": list(found), **counts}


def test_a_table_has_bounds_of_its_own_key_columns_though_another_key_is_longer() -> None:
    none = bounds(None, None)
    groups = [group(0, bounds("9", "10"), none), group(1, bounds("2", "30"), none), group(2, none, none)]
    of_spark: Any = SimpleNamespace(groups=groups)
    found = TableSummary.of(of_spark, [0, 1])
    assert found.bounds == (KeyBounds(("2", "30"), (2, 30)),)
    assert (found.changes, found.items, found.reads, found.others, found.is_by_item) == (4, 2, 2, 2, True)
    assert found.snapshots == {(0, 7), (1, 7)}
    assert found.bytes == 100


@pytest.mark.services
def test_random_histories_end_in_postgresql_as_by_the_rule(database_url: str, spark_process: SparkProcess) -> None:
    spark_process.run(IN_POSTGRES, database_url, compiled=True)


IN_ICEBERG = pytest.param(
    "iceberg", marks=pytest.mark.faults("the rule in Delta, by the same statements: here; Iceberg: test_iceberg.py")
)


@pytest.mark.services
@pytest.mark.parametrize("kind", ["delta", IN_ICEBERG])
def test_random_histories_end_in_a_lake_as_by_the_rule(kind: str, tmp_path: Path, spark_process: SparkProcess) -> None:
    spark_process.run(IN_LAKE, kind, str(tmp_path), compiled=True)


@pytest.mark.services
def test_what_another_driver_stores_before_the_merge_is_decided_by_the_rule(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I2, I5, I7: the MERGE without a condition writes nothing then, and one with a condition follows it."""
    log = tmp_path / "spark.log"
    found = json.loads(spark_process.run(OTHER_DRIVER, str(tmp_path), log=log, compiled=True))
    assert found["counts"] == [
        {"applied": 3},
        {"applied": 2, "ignored": 1},
        {"applied": 1},
        {"applied": 1},
        {"applied": 2, "ignored": 1, "unknown": 1},
        {"applied": 1, "ignored": 3},
        {"applied": 1},
        {"ignored": 1},
        {"applied": 3},
        {"applied": 2},
    ]
    assert found["rows"] == [
        ["a", "a 20", False, "e20", None],
        ["b", "b 41", False, "e41", None],
        ["c", "c 42", False, "e42", 10**6],
        ["d", None, True, "e30", None],
        ["e", "e 60", False, "e60", None],
        ["f", "f 23", False, "e23", None],
    ]
    assert found["guarded"] == [False, True, True, False, True, True, True, True, True, False]
    assert log.read_text() == "", "no operator has to do anything"


@pytest.mark.services
def test_delta_gets_the_new_items_of_a_batch_also_after_batches_without_any(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I7: after such a batch the next is written by a statement that inserts nothing, and then what it left."""
    found = json.loads(spark_process.run(ALL_STORED, str(tmp_path)))
    assert found["rows"] == [["a", "a 9"], ["b", "b 5"], ["c", "c 6"], ["d", "d 7"], ["e", "e 10"]]
    # By batch, whether its statements could insert.
    assert found["inserts"] == [[True], [True], [False], [False, True], [True], [True], [False, True]]
    assert found["applied"] == [2, 1, 1, 2, 1, 1, 2]


@pytest.mark.services
def test_rows_of_snapshots_are_decided_by_their_times_in_postgresql(
    database_url: str, spark_process: SparkProcess
) -> None:
    _has_decided_by_times(json.loads(spark_process.run(OF_SNAPSHOTS, "postgresql", database_url)))


@pytest.mark.services
@pytest.mark.parametrize("kind", ["delta", IN_ICEBERG])
def test_rows_of_snapshots_are_decided_by_their_times_in_a_lake(
    kind: str, tmp_path: Path, spark_process: SparkProcess
) -> None:
    _has_decided_by_times(json.loads(spark_process.run(OF_SNAPSHOTS, kind, str(tmp_path))))


def _has_decided_by_times(found: Mapping[str, Any]) -> None:
    """I7: a row goes over an earlier snapshot's and over older changes, and over nothing else."""
    assert found["counts"] == [
        {"applied": 1},
        {"applied": 4},
        {"applied": 5, "ignored": 2},
        {"applied": 3, "ignored": 3},  # again
    ]
    assert found["rows"] == [
        ["a", "read 1", 2000, False],
        ["c", "changed 1500", 0, False],
        ["d", "read 2003", 1600, False],
        ["e", "read 2004", 1600, False],
        ["f", "read 2005", 1600, False],
        ["g", "changed 2007", 1600, False],
    ]


@pytest.mark.services
def test_changes_of_the_former_partition_of_an_item_do_not_undo_a_later_row_in_postgresql(
    database_url: str, spark_process: SparkProcess
) -> None:
    _has_kept_what_moved(json.loads(spark_process.run(MOVED, "postgresql", database_url)))


@pytest.mark.services
@pytest.mark.parametrize("kind", ["delta", IN_ICEBERG])
def test_changes_of_the_former_partition_of_an_item_do_not_undo_a_later_row_in_a_lake(
    kind: str, tmp_path: Path, spark_process: SparkProcess
) -> None:
    _has_kept_what_moved(json.loads(spark_process.run(MOVED, kind, str(tmp_path))))


def _has_kept_what_moved(found: Mapping[str, Any]) -> None:
    """I7: SQL leaves an item to the rule if a snapshot has read it in another partition (`relay repartition`)."""
    assert found["counts"] == [{"applied": 5}, {"applied": 3, "ignored": 3}, {"applied": 1}]
    assert found["rows"] == [
        ["a", "read 1"],
        ["b", "read 2"],
        ["c", "changed 1100"],
        ["d", "changed 600"],
        ["e", "changed 700"],
    ]


@pytest.mark.services
def test_delta_compares_a_stored_token_as_its_plain_parts_say(spark_process: SparkProcess) -> None:
    """I5, I7: of another stem, or no plain token, is neither."""
    texts, plain = like_plain_tokens()
    given = [[text, stem, str(number)] for text in dict.fromkeys(texts) for stem, number in plain]
    found = json.loads(spark_process.run(COMPARE, given=json.dumps(given), compiled=True))
    assert len(found) == len(given)
    for text, stem, number, is_less, is_greater in found:
        parts = plain_parts(text or "")
        other = parts[1] if parts is not None and parts[0] == stem else int(number)
        assert (is_less, is_greater) == (other < int(number), other > int(number)), (text, stem, number)


OTHER_DRIVER = """
import json, sys
from dataclasses import replace
from pyspark.sql import functions as F
from tests.spark_consumers.local_spark import spark
from spark_consumers.copy import TableCopies
from spark_consumers.table_consumer import TableBatch
from tests.spark_consumers import delta_rows
from tests.spark_consumers.batches import FOREVER, change, in_spark, layout, read
from tests.spark_consumers.targets import InDelta

LAYOUT = layout({"id": "string"}, {"id": "string", "note": "string"})

def written(number, key, **more):
    return change(number, [key], {"id": key, "note": f"{key} {number}"}, **more)

def of_another_shard(each):
    return replace(each, head=replace(each.head, token=replace(each.head.token, shard="shop/other/-", timestamp=1024)))

with spark() as session:
    ours, other = (InDelta(session, sys.argv[1]) for _ in range(2))
    copies = TableCopies(lambda source, name: ours.table, FOREVER)
    counts, guarded = [], []

    def play(changes, between=()):
        # Of an item with several changes, one is in each partition of Spark's.
        batch = in_spark(session, changes).repartitionByRange(2, F.col("offset")).persist()
        plan = copies.plan(TableBatch(batch, [LAYOUT], {}, {}))
        if between:
            other.play(LAYOUT, *between)
        counts.append({name: count for name, count in plan.write([]).items() if count})
        found = [each["matchedPredicates"] for each in delta_rows.parameters(ours.stored, "MERGE")]
        guarded.append('"predicate"' in next(each for each in found if "update" in each))

    play([written(1, "a"), written(2, "b"), written(3, "d")])
    play([written(6, "b"), written(7, "c"), written(5, "a")], [written(20, "a")])  # newer
    play([written(21, "b")])  # the last batch had an older change
    play([written(22, "b")])
    # Deleted, of an unknown order, and older than another one.
    play(
        [written(25, "d"), written(24, "b"), written(23, "f")],
        [of_another_shard(written(13, "b", partition=1)), change(30, ["d"], None)],
    )
    play([written(25, "d"), written(23, "f"), written(20, "a"), written(40, "b")])  # a replay
    play([written(41, "b")])
    # Read by a snapshot, and twice in a batch.
    found_by_snapshot = read(31, ["c"], {"id": "c", "note": "read"}, as_of=10**6)
    play([written(30, "c")], [found_by_snapshot])  # a change that the topic has before the row
    play([written(42, "c"), written(50, "e"), written(60, "e")])
    columns = ["id", "note", "_relay_deleted", "_relay_event_id", "_relay_read_as_of"]
    rows = [[*row[:-1], row[-1] or None] for row in ours.rows(*columns, deleted=True)]
    # As after an initial snapshot.
    ours, other = (InDelta(session, sys.argv[1] + "/of_snapshot") for _ in range(2))
    copies = TableCopies(lambda source, name: ours.table, FOREVER)
    play([written(42, "c"), written(43, "a")], [found_by_snapshot])
    json.dump({"counts": counts, "guarded": guarded, "rows": rows}, sys.stdout)
"""

ALL_STORED = """
import json, sys
from tests.spark_consumers.local_spark import spark
from spark_consumers.copy import TableCopies
from spark_consumers.sinks import delta_upsert
from spark_consumers.table_consumer import TableBatch
from tests.spark_consumers import delta_rows
from tests.spark_consumers.batches import FOREVER, change, in_spark, layout
from tests.spark_consumers.targets import InDelta

LAYOUT = layout({"id": "string"}, {"id": "string", "note": "string"})

with spark() as session:
    ours = InDelta(session, sys.argv[1])
    copies = TableCopies(lambda source, name: ours.table, FOREVER)
    inserts, applied, number = [], [], 0

    def merges():
        found = reversed(delta_rows.parameters(ours.stored, "MERGE"))
        return [each["notMatchedPredicates"] != "[]" for each in found]

    for keys in ("ab", "a", "b", "bc", "d", "a", "ae"):
        if number == 4:
            delta_upsert._MOST_BROADCAST = 0  # from now on as if batches were large
        changes = []
        for key in keys:
            number += 1
            changes.append(change(number, [key], {"id": key, "note": f"{key} {number}"}))
        before = len(merges()) if inserts else 0
        plan = copies.plan(TableBatch(in_spark(session, changes).coalesce(1), [LAYOUT], {}, {}))
        applied.append(plan.write([])["applied"])
        plan.close()
        inserts.append(merges()[before:])
    json.dump({"rows": ours.rows("id", "note"), "inserts": inserts, "applied": applied}, sys.stdout)
"""

OF_SNAPSHOTS = """
import json, sys
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.batches import change, layout, read
from tests.spark_consumers.targets import InPostgres, in_lake

LAYOUT = layout({"id": "string"}, {"id": "string", "note": "string"})

def changed(number, key):
    return change(number, [key], {"id": key, "note": f"changed {number}"})  # at 1000 s + number

def found(number, key, as_of):
    return read(number, [key], {"id": key, "note": f"read {number}"}, as_of)

with spark() as session:
    kind, place = sys.argv[1:]
    table = InPostgres(place, playing=session) if kind == "postgresql" else in_lake(kind, session, place)
    counts = []
    snapshot = [
        found(2001, "a", 1600), found(2002, "c", 2400), found(2003, "d", 1600), found(2004, "e", 1600),
        found(2005, "f", 1600),
    ]
    for batch in (
        [found(1, "a", 2000)],
        [changed(1500, "c"), change(501, ["d"], None), changed(502, "e"), changed(503, "g")],
        [*snapshot, found(2006, "g", 1600), changed(2007, "g")],
        [*snapshot, changed(2007, "g")],
    ):
        played = table.play(LAYOUT, *batch)
        counts.append({name: getattr(played, name) for name in ("applied", "ignored") if getattr(played, name)})
    rows = table.rows("id", "note", "_relay_read_as_of", "_relay_deleted", deleted=True)
    json.dump({"counts": counts, "rows": rows}, sys.stdout)
"""

MOVED = """
import json, sys
from relay.change import Operation, Snapshot
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.batches import change, layout
from tests.spark_consumers.targets import InPostgres, in_lake

LAYOUT = layout({"id": "string"}, {"id": "string", "note": "string"})

def changed(number, key, partition=0):
    return change(number, [key], {"id": key, "note": f"changed {number}"}, partition=partition)  # at 1000 s + number

def found(number, key, topic="shop.orders"):
    more = {"token": None, "snapshot": Snapshot("s", 2000), "partition": 1, "topic": topic}
    return change(number, [key], {"id": key, "note": f"read {number}"}, Operation.READ, **more)

with spark() as session:
    kind, place = sys.argv[1:]
    table = InPostgres(place, playing=session) if kind == "postgresql" else in_lake(kind, session, place)
    counts = []
    for batch in (
        [found(1, "a"), found(2, "b"), found(3, "c"), found(4, "d"), found(5, "e", "former.orders")],
        # Older than the row, in two changes; deleted before it; later; in the partition of the row; of another topic.
        [changed(500, "a"), changed(501, "a"), change(502, ["b"], None), changed(1100, "c"), changed(550, "d", 1),
         changed(700, "e")],
        [changed(600, "d", 1)],
    ):
        played = table.play(LAYOUT, *batch)
        counts.append({name: getattr(played, name) for name in ("applied", "ignored") if getattr(played, name)})
    json.dump({"counts": counts, "rows": table.rows("id", "note")}, sys.stdout)
"""

COMPARE = """
import json, sys
from pyspark.sql import SparkSession
from spark_consumers.sinks.delta_upsert import is_stored

session = SparkSession.getActiveSession()
rows = session.createDataFrame(json.load(sys.stdin), "_relay_token string, stem string, number string")
rows.createOrReplaceTempView("compared")
compared = ", ".join(f"coalesce({is_stored(operator, 's.number')}, false)" for operator in "<>")
both = "SELECT struct(_relay_token) AS t, struct(stem, number) AS s FROM compared"
found = session.sql(f"SELECT t._relay_token, s.stem, s.number, {compared} FROM ({both})").collect()
json.dump([list(row) for row in found], sys.stdout)
"""

IN_POSTGRES = """
import sys
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.histories import compare_with_the_rule
from tests.spark_consumers.targets import InPostgres

with spark() as session:
    for seed, oddity in enumerate((0, 12)):
        table = InPostgres(sys.argv[1], playing=session)
        compare_with_the_rule(table, seed, keeps_nul=False, changes=50, oddity=oddity)
        with table.database.transaction() as connection:
            connection.execute(b"DROP SCHEMA shop CASCADE")
        table.database.close()
"""

IN_LAKE = """
import sys
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.histories import compare_with_the_rule
from tests.spark_consumers.targets import in_lake

with spark() as session:
    # In batches with a READ, all rows are decided by the rule itself.
    for oddity in (0, 12):
        table = in_lake(sys.argv[1], session, f"{sys.argv[2]}/{oddity}")
        compare_with_the_rule(table, oddity, changes=50, oddity=oddity)
"""
