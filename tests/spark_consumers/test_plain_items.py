"""I7: the newest change of an item is found where its changes are in their order, and left to the rule elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark_consumers.spark_process import SparkProcess

pytestmark = [pytest.mark.services]


def test_the_newest_changes_are_those_that_windows_find_however_spark_divides_a_batch(
    spark_process: SparkProcess,
) -> None:
    """I5, I7: byte for byte, of random batches."""
    found = json.loads(spark_process.run(RANDOM, compiled=True))
    for divided, (expected, ours) in found.items():
        assert ours["newest"] == expected["newest"], divided
        assert ours["others"] == expected["others"], divided
        assert ours["reads"] == expected["reads"], divided
        assert ours["bytes"] == ours["written"] > 0
        assert len(ours["reads"]) > 50
        assert ours["items"] == len(ours["newest"]) > 20
        assert ours["changes"] == ours["records"] - len(ours["others"]) - len(ours["reads"])
        # All that matters came up: items with several changes, and without plain tokens.
        assert ours["changes"] > ours["items"] or divided == "backwards"
        assert len(ours["others"]) > 100


def test_what_was_found_is_not_applied_to_other_records(tmp_path: Path, spark_process: SparkProcess) -> None:
    """I9: Spark reads a batch again where it has lost it, and the topic may have lost records since."""
    assert json.loads(spark_process.run(OTHER_RECORDS, str(tmp_path / "records"), compiled=True)) == [
        3,
        True,
        True,
        True,
    ]


def test_an_item_whose_changes_spark_has_in_another_order_is_left_to_the_rule(spark_process: SparkProcess) -> None:
    """I2: the topic has the newer token first, and Spark the older one."""
    assert json.loads(spark_process.run(ANOTHER_ORDER)) == {"newest": [3], "others": [1, 2]}


def test_two_keys_of_one_hash_are_left_to_the_rule(spark_process: SparkProcess) -> None:
    """I7: no row is taken for an older one of another key. A null adds one to the hash, whose seed is the table."""
    assert json.loads(spark_process.run(ONE_HASH, compiled=True)) == {"newest": [3], "others": [1, 2]}


def test_the_groups_of_a_batch_have_its_counts_and_the_bounds_of_its_keys(spark_process: SparkProcess) -> None:
    found = json.loads(spark_process.run(GROUPS, compiled=True))
    assert found["statuses"] == {"change": 6, "tombstone": 1}
    assert found["orders"] == {
        "counts": [3, 2, 1],
        "by_item": True,
        "bounds": [[["a", "\U0001f600"], None], [["-5", "9"], [-5, 10]]],
    }
    assert found["users"] == {"counts": [1, 1, 1], "by_item": False, "bounds": [[["x", "x"], None]]}


RANDOM = """
import json, sys
from dataclasses import replace
from pyspark.sql import functions as F
from tests.spark_consumers.local_spark import spark
from spark_consumers.plain_items import PlainItems
from tests.spark_consumers.batches import in_spark
from tests.spark_consumers.histories import LAYOUTS, batches
from tests.spark_consumers.window_items import found_by_windows, rows

def histories():
    # The items of each batch have keys of their own, so that one pass is over many batches.
    for seed in range(6):
        for number, batch in enumerate(batches(seed, changes=120, oddity=(0, 5, 20)[seed % 3])):
            for each in batch:
                key = (f"{seed} {number} {each.head.key[0]}", *each.head.key[1:])
                yield replace(each, head=replace(each.head, key=key))

def of_java(batch, layouts):
    items = PlainItems(batch, layouts)
    names = ("plain", "items", "reads", "records", "bytes")
    changes, number, read, records, bytes_found = (sum(group[name] for group in items.groups) for name in names)
    newest, others = items.newest([0, 1], number), items.others([1, 0], records - changes - read)
    reads = items.newest([0, 1], read, of_snapshots=True)
    found = {"newest": rows(newest.drop("now")), "others": rows(others), "reads": rows(reads.drop("now"))}
    images = newest.select("new").union(reads.select("new"))
    written = images.select(F.sum(F.octet_length("new"))).first()[0]
    items.close()
    return {**found, "changes": changes, "items": number, "records": records, "bytes": bytes_found, "written": written}

with spark() as session:
    batch = in_spark(session, list(histories()))
    divided = {
        "as from Kafka": batch.repartition(2, "partition").sortWithinPartitions("partition", "offset"),
        "backwards": batch.coalesce(1).sortWithinPartitions(F.desc("partition"), F.desc("offset")),
        "by offset": batch.repartitionByRange(2, "offset").sortWithinPartitions("partition", "offset"),
    }
    both = {}
    for name, each in divided.items():
        both[name] = [found_by_windows(each.persist()), of_java(each, list(LAYOUTS.values()))]
        each.unpersist()
    json.dump(both, sys.stdout)
"""

OTHER_RECORDS = """
import json, sys
from pathlib import Path
from tests.spark_consumers.local_spark import spark
from spark_consumers.plain_items import PlainItems
from tests.spark_consumers.batches import COLUMNS, change, row_of
from tests.spark_consumers.histories import LAYOUTS

def written(number):
    return row_of(change(number, [str(number), "1"], {"id": str(number), "part": 1, "note": "n"}))

def read(path):
    return json.loads(Path(path).read_text())

first = [written(number) for number in (1, 2, 3)]
with spark() as session:
    results = []
    for later in (first, first[:2], first[1:] + first[:1], [*first, written(4)]):
        Path(sys.argv[1]).write_text(json.dumps(first))
        records = session.sparkContext.parallelize([sys.argv[1]], 1).flatMap(read)
        items = PlainItems(session.createDataFrame(records, COLUMNS), [LAYOUTS[0]])
        Path(sys.argv[1]).write_text(json.dumps(later))
        try:
            results.append(items.newest([0], 3).count())
        except Exception as error:
            results.append("other records" in str(error))
        items.close()
    json.dump(results, sys.stdout)
"""

GROUPS = """
import json, sys
from pyspark.sql import functions as F
from relay.change import Operation
from tests.spark_consumers.local_spark import spark
from spark_consumers.plain_items import PlainItems, TableSummary
from tests.spark_consumers.batches import change, in_spark, layout

ORDERS = layout({"id": "string", "part": "int"}, {"id": "string", "part": "int"})
USERS = layout({"name": "string"}, {"name": "string"}, "users")

def shown(found):
    bounds = [[each.texts, each.numbers] for each in found.bounds]
    return {"counts": [found.changes, found.items, found.others], "by_item": found.is_by_item, "bounds": bounds}

with spark() as session:
    given = [
        change(1, ["a", "9"], {"id": "a", "part": 9}),
        change(2, ["\U0001f600", "-5"], {"id": "\U0001f600", "part": -5}),
        change(3, ["a", "9"], {"id": "a", "part": 9}),
        change(4, ["b", "10"], {"id": "b", "part": 10}, token=None),
        change(5, ["x"], {"name": "x"}, layout=1),
        change(6, (), None, Operation.TRUNCATE, layout=1),
        change(7, ["c", "c"], None),
    ]
    is_tombstone = F.col("offset") == 7
    frame = in_spark(session, given).withColumns(
        {
            "status": F.when(is_tombstone, "tombstone").otherwise(F.col("status")),
            "layout": F.when(~is_tombstone, F.col("layout")),
        }
    )
    found = PlainItems(frame.coalesce(1), [ORDERS, USERS])
    orders, users = (shown(TableSummary.of(found, [number])) for number in (0, 1))
    both = {"statuses": dict(found.statuses), "orders": orders, "users": users}
    found.close()
    json.dump(both, sys.stdout)
"""

ONE_HASH = """
import json, sys
from tests.spark_consumers.local_spark import spark
from spark_consumers.plain_items import PlainItems
from tests.spark_consumers.batches import change, in_spark, layout

with spark() as session:
    layouts = [layout({"id": "string"}, None), layout({"id": "string"}, None, "users")]
    given = [change(1, [None, None], {}), change(2, [None], {}, layout=1), change(3, ["a"], {}, layout=1)]
    items = PlainItems(in_spark(session, given).coalesce(1), layouts)
    newest = items.newest([0, 1], 3).select("_relay_offset").collect()
    others = items.others([0, 1], 3).select("offset").orderBy("offset").collect()
    items.close()
    json.dump({"newest": [row[0] for row in newest], "others": [row[0] for row in others]}, sys.stdout)
"""

ANOTHER_ORDER = """
import json, sys
from tests.spark_consumers.local_spark import spark
from relay.token import EventToken
from spark_consumers.plain_items import PlainItems
from tests.spark_consumers.batches import SHARD, change, in_spark, layout

with spark() as session:
    older, newer = (EventToken(1000, SHARD, f"MariaDB/0-1-{number}") for number in (5, 9))
    given = [change(2, ["a"], {}, token=older), change(1, ["a"], {}, token=newer), change(3, ["b"], {})]
    items = PlainItems(in_spark(session, given).coalesce(1), [layout({"id": "string"}, None)])
    newest = items.newest([0], 3).select("_relay_offset").collect()
    others = items.others([0], 3).select("offset").orderBy("offset").collect()
    items.close()
    json.dump({"newest": [row[0] for row in newest], "others": [row[0] for row in others]}, sys.stdout)
"""
