"""What a table's own name shows in a copy in Delta: the table as its source has it, and nothing of ours."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable, QueryBuilder

from spark_consumers.sinks.delta_view import replaced, shown_of
from tests.snippets import blocks
from tests.spark_consumers import delta_rows
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.sql_times import ROWS, TYPED

VECTOR = {"storageType": "u", "pathOrInlineDv": "0123456789abcdefghij", "offset": 1}


def add(path: str, *, deleted: bool = False, **more: Any) -> dict[str, Any]:
    return {"add": {"path": path, "partitionValues": {"_relay_deleted": str(deleted).lower()}, **more}}


def remove(path: str, *, deleted: bool = False, **more: Any) -> dict[str, Any]:
    return {"remove": add(path, deleted=deleted, **more)["add"]}


def shown(path: str, kind: str = "add", **more: Any) -> dict[str, Any]:
    return {kind: {"path": f"_relay_rows/{path}", "partitionValues": {}, **more}}


def test_only_files_of_rows_that_exist_are_shown_each_below_its_folder() -> None:
    inline = {"storageType": "i", "pathOrInlineDv": "abc"}
    below = {**VECTOR, "pathOrInlineDv": f"ab{VECTOR['pathOrInlineDv']}"}
    given = [
        add("a", deletionVector=VECTOR),
        add("b", deletionVector=below),
        add("c", deletionVector=inline),
        add("d", deleted=True),
        remove("e", deleted=True),
        {"commitInfo": {"operation": "MERGE"}},
        {"txn": {"appId": "another", "version": 1}},
    ]
    assert shown_of(given) == [
        shown("a", deletionVector={**VECTOR, "pathOrInlineDv": f"_relay_rows{VECTOR['pathOrInlineDv']}"}),
        shown("b", deletionVector={**VECTOR, "pathOrInlineDv": f"_relay_rows/{below['pathOrInlineDv']}"}),
        shown("c", deletionVector=inline),
    ]
    (moved,) = shown_of([{"add": {"path": "s3://other/a", "partitionValues": {"_relay_deleted": "false"}}}])
    assert moved["add"]["path"] == "s3://other/a"
    assert shown_of([{"remove": {"path": "a"}}]) == [shown("a", "remove")]  # its partition need not be told


def test_what_comes_and_goes_between_two_versions_is_not_shown() -> None:
    """I7: Delta refuses a version that adds and removes the same file."""
    again = add("b", deletionVector=VECTOR)
    assert shown_of([add("a"), remove("a"), remove("b"), again, add("c")]) == [
        shown("b", "remove"),
        *shown_of([again]),
        shown("c"),
    ]
    assert shown_of([remove("a"), add("a")]) == []


def test_no_column_and_no_property_of_ours_is_shown() -> None:
    fields = [{"name": name} for name in ("id", "_relay_own", "_relay_token", "_relay_key_0", "_relay_unfit", "more")]
    configuration = {"delta.enableDeletionVectors": "true", "relay.gaps": "[]", "parquet.x": "1"}
    given = {"id": "1", "schemaString": json.dumps({"fields": fields}), "partitionColumns": ["_relay_deleted"]}
    first = {"metaData": {**given, "configuration": {}}}
    (found,) = shown_of([first, {"metaData": {**given, "configuration": configuration}}])
    schema = json.loads(found["metaData"]["schemaString"])
    assert [field["name"] for field in schema["fields"]] == ["id", "_relay_own", "more"]
    assert found["metaData"]["partitionColumns"] == []
    assert found["metaData"]["configuration"] == {"delta.enableDeletionVectors": "true"}
    assert found["metaData"]["id"] not in ("", "1")


def test_files_of_others_are_replaced_and_the_same_ones_stay() -> None:
    """I7"""
    protocol = {"protocol": {"minReaderVersion": 1}}
    present = [protocol, shown("a"), shown("b", stats="{}", size=1), shown("other")]
    found = replaced([protocol, shown("a"), shown("b", deletionVector=VECTOR), shown("c")], present, 9)
    removed = {each["remove"]["path"]: each["remove"] for each in found if "remove" in each}
    assert removed.keys() == {"_relay_rows/b", "_relay_rows/other"}
    assert "stats" not in removed["_relay_rows/b"]
    assert (removed["_relay_rows/b"]["dataChange"], removed["_relay_rows/b"]["deletionTimestamp"]) == (True, 9)
    added = [shown("b", deletionVector=VECTOR, dataChange=True), shown("c", dataChange=True)]
    assert [each for each in found if "remove" not in each] == [protocol, *added]


PLAYED = """
import json, sys
from dataclasses import replace
from tests.spark_consumers.batches import change, layout
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.sql_times import ROWS, TIMES, TYPED, written
from tests.spark_consumers.targets import InDelta

KEYED = layout({"day": "sql date", "hour": "sql time"}, {"day": "sql date", "hour": "sql time", "note": "string"})

def keyed(number, key, note, **more):
    return change(number, key, {"day": key[0], "hour": key[1], "note": note}, **more)

def by_the_rule(changes):
    token = changes[0].head.token
    return [replace(each, head=replace(each.head, token=replace(token, position=""))) for each in changes]

with spark() as session:
    table = InDelta(session, sys.argv[1] + "/typed")
    given = written() if sys.argv[2] == "in SQL" else by_the_rule(written())
    table.play(TIMES, *given)
    table.play(TIMES, change(100, ["0"], None))
    kept = [[row.key, row.values] for row in table.kept(TIMES, list(TYPED))]
    of_keys = InDelta(session, sys.argv[1] + "/keyed")
    keys = [["2024-02-29", "10:00:00"], ["0000-00-00", "10:00:00"], ["2024-00-00", "838:59:59"]]
    given = [keyed(n, key, "a") for n, key in enumerate(keys, 1)]
    of_keys.play(KEYED, *(given if sys.argv[2] == "in SQL" else by_the_rule(given)))
    of_keys.play(KEYED, keyed(9, keys[1], "b"), change(10, keys[2], None))
    both = [[row.key, row.values] for row in of_keys.kept(KEYED, ["note"])]
    both += [[row.key, row.values] for row in of_keys.kept(KEYED, ["note"], [keys[1]])]
    documents = InDelta(session, sys.argv[1] + "/documents", items="variant")
    texts = ['{"a": 1.5}', '{"a": ' + "1" * 39 + "}"]
    of_documents = layout({"id": "int"}, {"id": "int", "doc": "sql json"})
    documents.play(of_documents, *(change(n, [str(n)], {"id": n, "doc": text}) for n, text in enumerate(texts)))
    both += [[row.key, [json.loads(row.values[0])]] for row in documents.kept(of_documents, ["doc"])]
    counted = session.sql(f"SELECT count(*), min(at) FROM delta.`{table.path}`").collect()[0]
    columns = session.table(f"delta.`{table.path}`").dtypes
    asked = [[*map(str, session.sql(each).collect())] for each in json.loads(sys.argv[3])]
    json.dump({"asked": asked, "kept": kept, "keys": both, "count": counted[0], "columns": columns}, sys.stdout)
"""


@pytest.mark.services
@pytest.mark.parametrize("decided", ["in SQL", "by the rule"])
def test_selecting_from_a_copy_gives_what_the_source_gives(
    tmp_path: Path, spark_process: SparkProcess, decided: str
) -> None:
    """I8: and what does not fit is beside, as `relay verify` reads it, and keys stay apart in it."""
    path = tmp_path / "typed/shop/orders"
    documented = "".join(block.text for block in blocks("deploy/docs/how_to/copy.md", "sql") if "delta.`" in block.text)
    statements = json.dumps(documented.replace("/copy/shop/orders", str(path)).split(";\n")[:-1])
    said = json.loads(spark_process.run(PLAYED, str(tmp_path), decided, statements, compiled=True).splitlines()[-1])
    columns = ["id", *TYPED, "note"]
    # Times without a date, and documents, are texts in Delta.
    texts = {"hour": 2, "doc": 3}
    expected = [
        (n, *(given[texts[name]] if name in texts else values[at] for at, name in enumerate(TYPED)), "n")
        for n, (given, values) in enumerate(ROWS)
        if n
    ]
    found = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t ORDER BY id").read_all()
    assert found.schema.names == columns
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    with duckdb.connect() as connection:
        connection.register("t", found)
        assert connection.execute("SELECT count(*), max(day) FROM t").fetchall() == [(len(expected), date(1, 1, 1))]
    kinds = ["int", "timestamp_ntz", "date", "string", "string", "timestamp", "string"]
    assert (said["count"], said["columns"]) == (len(expected), [[*each] for each in zip(columns, kinds, strict=True)])
    read = {int(key[0]): values for key, values in said["kept"]}
    beside = dict(delta_rows.rows(path / "_relay_rows", ["id", "_relay_unfit"], where="NOT _relay_deleted"))
    for n, (given, values) in enumerate(ROWS[1:], 1):
        assert read[n] == given
        names = [name for name in ("at", "day", "seen") if values[[*TYPED].index(name)] is None]
        wanted = {name: given[[*TYPED].index(name)] for name in names}
        assert json.loads(beside[n] or "{}") == {name: text for name, text in wanted.items() if text is not None}
    incomplete, gone, unfit, details = said["asked"]
    assert (len(incomplete), len(gone)) == (0, 1)
    assert len(unfit) == sum(bool(json.loads(text or "{}")) for text in beside.values())
    assert len(details) == 1
    keyed = delta_rows.rows(tmp_path / "keyed/shop/orders", ["day", "hour", "note"])
    assert keyed == [(None, "10:00:00", "b"), (date(2024, 2, 29), "10:00:00", "a")]
    no_date = [["0000-00-00", "10:00:00"], ["b"]]
    *keys, one, other = said["keys"]
    assert sorted(keys) == sorted([no_date, [["2024-02-29", "10:00:00"], ["a"]], no_date])
    # Spark would round what has more digits.
    assert sorted([one, other]) == [[["0"], [{"a": 1.5}]], [["1"], [{"a": int("1" * 39)}]]]


KILLED = """
import json, shutil, sys
from contextlib import suppress
from spark_consumers.copy import TableCopies
from spark_consumers.sinks import delta, delta_copy, delta_view
from spark_consumers.table_consumer import TableBatch
from tests.spark_consumers import delta_rows
from tests.spark_consumers.batches import FOREVER, in_spark
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InDelta

class Killed(BaseException):
    pass

steps, left = 0, 0

def step():
    global steps, left
    steps, left = steps + 1, left - 1
    if left == 0:
        raise Killed

def killable(place, name):
    does = getattr(place, name)
    def cut_off(*given):
        step()
        found = does(*given)
        step()
        return found
    setattr(place, name, cut_off)

killable(delta, "merge")
killable(delta_view._Log, "write")
killable(delta_view._Log, "checkpoint")
killable(delta_copy.DeltaTable, "replace_property")
delta_view._CHECKPOINT_EVERY = 2

BATCHES = [
    [order(1, 1, "a"), order(2, 2, "a")],
    [order(3, 1, "b"), order(4, 2, None), order(5, 3, "b")],
]
TRUTH = [[], [(1, "a"), (2, "a")], [(1, "b"), (3, "b")]]

def seen(table):
    return delta_rows.rows(table.path, ["id", "note"]) if delta_rows.is_there(table.path) else []

def apply(number, folder):
    table = InDelta(session, folder)
    plan = TableCopies(lambda source, name: table.table, FOREVER).plan(
        TableBatch(in_spark(session, BATCHES[number]), [ORDERS], {}, {})
    )
    try:
        plan.write([])
    finally:
        plan.close()
    return table

with spark() as session:
    kills = [0] * len(BATCHES)
    for number in range(len(BATCHES)):
        at = 0
        while True:
            at += 1
            folder = f"{sys.argv[1]}/{number}-{at}"
            if number:  # as the last batch has left it
                shutil.copytree(f"{sys.argv[1]}/{number - 1}-1", folder)
            left = at
            try:
                apply(number, folder)
            except Killed:
                left = 0
            is_killed = left == 0
            kills[number] += is_killed
            found = seen(InDelta(session, folder))
            assert found in (TRUTH[number : number + 2] if is_killed else TRUTH[number + 1 :]), (number, at, found)
            if is_killed:  # the next driver dies as well, before it has written anything
                left = 1
                with suppress(Killed):
                    apply(number, folder)
                found = seen(InDelta(session, folder))
                assert found in TRUTH[number : number + 2], (number, at, found)
            left = 0
            table = apply(number, folder)
            assert seen(table) == TRUTH[number + 1], (number, at, seen(table))
            if not is_killed:
                break
    json.dump(kills, sys.stdout)
"""


@pytest.mark.services
def test_a_driver_that_dies_at_any_step_leaves_a_batch_in_full_or_not_at_all(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I7: whatever it has written, nothing of a batch is seen before all of it, and the next driver ends it."""
    kills = json.loads(spark_process.run(KILLED, str(tmp_path), timeout=1200).splitlines()[-1])
    assert min(kills) >= 4


OTHERS = """
import shutil, sys
from deltalake import DeltaTable as Readers
from tests.spark_consumers import delta_rows
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InDelta

def seen():
    return delta_rows.rows(table.path, ["id", "note"])

with spark() as session:
    table = InDelta(session, sys.argv[1])
    table.play(ORDERS, order(1, 1, "a"), order(2, 2, "a"))
    table.play(ORDERS, order(3, 2, "b"))
    session.sql(f"UPDATE delta.`{table.path}` SET note = 'others'")
    session.sql(f"OPTIMIZE delta.`{table.path}`")
    table.play(ORDERS, order(4, 3, "c"))
    assert seen() == [(1, "a"), (2, "b"), (3, "c")], seen()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.sql(f"VACUUM delta.`{table.path}` RETAIN 0 HOURS")
    Readers(table.path).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert seen() == [(1, "a"), (2, "b"), (3, "c")], seen()
    table = InDelta(session, sys.argv[1])
    table.play(ORDERS, order(5, 1, None))
    assert seen() == [(2, "b"), (3, "c")], seen()
    for _ in range(2):  # another driver, which does not know what this one has shown, and the first one again
        other, table = table, InDelta(session, sys.argv[1])
        table.play(ORDERS, order(6, 3, "d"))
        other.play(ORDERS, order(7, 4, "d"))
        assert seen() == [(2, "b"), (3, "d"), (4, "d")], seen()
    shutil.rmtree(table.path + "/_delta_log")
    table.play(ORDERS, order(8, 2, "e"))
    assert seen() == [(2, "e"), (3, "d"), (4, "d")], seen()
    table.play(ORDERS, order(9, 0, "x\\u2028y"))  # which is among the least texts of a file
    table.play(ORDERS, order(10, 4, None))
    assert seen() == [(0, "x\\u2028y"), (2, "e"), (3, "d")], seen()
    versions = len(delta_rows.operations(table.path))
    assert table.table.replace_property(session.range(0), "relay.gaps", None, "[]")
    table.table.maintain(session.range(0))
    assert len(delta_rows.operations(table.path)) == versions
"""


@pytest.mark.services
def test_what_others_write_to_a_table_of_the_copy_is_put_back(tmp_path: Path, spark_process: SparkProcess) -> None:
    """I7: also where another driver was faster, and where its log was deleted."""
    spark_process.run(OTHERS, str(tmp_path))
