"""What ``PlainItems`` finds, by Spark's window functions: slower, and shorter to read."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from relay.change import REDRIVEN
from spark_consumers.plain_tokens import PLAIN_TOKEN

_WRITES = ("INSERT", "UPDATE", "DELETE")
_SHOWN = [
    *("key_texts", "layout", "stem", "first", "number", "changes", "first_offset", "false AS _relay_incomplete"),
    "CASE WHEN operation != 'DELETE' THEN new END AS new",
    "token AS _relay_token",
    "operation = 'DELETE' AS _relay_deleted",
    "event_id AS _relay_event_id",
    "topic AS _relay_topic",
    "`partition` AS _relay_partition",
    "offset AS _relay_offset",
]
_READ = [
    *(
        "key_texts",
        "layout",
        "changes",
        "first_offset",
        "false AS _relay_incomplete",
        "new",
        "event_id AS _relay_event_id",
    ),
    *("false AS _relay_deleted", "topic AS _relay_topic", "`partition` AS _relay_partition", "offset AS _relay_offset"),
    "snapshot_as_of AS as_of",
]


def in_order(batch: DataFrame) -> DataFrame:
    """Return the changes that have a key, with what is known of their items.

    That is ``is_plain``, ``is_read``, ``is_last``, ``first``, ``first_offset`` and ``changes``.
    """
    item = Window.partitionBy("source", "table", "key_texts")
    ordered = item.orderBy("partition", "offset")
    parts = {name: F.regexp_extract("token", PLAIN_TOKEN, group) for name, group in (("stem", 1), ("number", 2))}
    frame = batch.where("status = 'change' AND key_texts IS NOT NULL").withColumns(parts)
    previous = [F.lag(name).over(ordered) for name in ("stem", "number")]
    ascends = previous[0].isNull() | ((previous[0] == F.col("stem")) & _is_less(previous[1], F.col("number")))
    # Where the rows of an item are in several of Spark's partitions, or not in the order of the topic, it is left.
    there = F.col("spark_partition") == F.min("spark_partition").over(item)
    frame = frame.withColumns({"spark_partition": F.spark_partition_id(), "row": F.monotonically_increasing_id()})
    is_plain = (
        F.col("operation").isin(*_WRITES)
        & ((F.col("operation") == "DELETE") | F.col("new").isNotNull())
        & F.col("snapshot_id").isNull()
        & F.try_element_at("attributes", F.lit(REDRIVEN)).isNull()
        & (F.col("stem") != "")
        & ascends
        & there
        & F.coalesce(F.lag("row").over(ordered) < F.col("row"), F.lit(True))
    )
    is_read = (
        (F.col("operation") == "READ")
        & F.col("new").isNotNull()
        & F.col("token").isNull()
        & F.col("snapshot_as_of").isNotNull()
        & F.try_element_at("attributes", F.lit(REDRIVEN)).isNull()
        & (F.count(F.lit(1)).over(item) == 1)
    )
    in_one_partition = F.min("partition").over(item) == F.max("partition").over(item)
    return (
        frame.withColumns(
            {
                "is_plain": F.coalesce(is_plain, F.lit(False)),
                "is_read": is_read,
                "first": F.first("number").over(ordered),
                "first_offset": F.when(in_one_partition, F.first("offset").over(ordered)).otherwise(-1),
                "position": F.row_number().over(ordered),
            }
        )
        .withColumns({"is_plain": F.bool_and("is_plain").over(item), "changes": F.count(F.lit(1)).over(item)})
        .withColumn("is_last", F.col("position") == F.col("changes"))
    )


def found_by_windows(batch: DataFrame) -> dict[str, Any]:
    """Return the newest changes of plain items, and the places of the changes of others, as JSON has them."""
    ordered = in_order(batch)
    return {
        "newest": rows(ordered.where("is_plain AND is_last").selectExpr(*_SHOWN)),
        "reads": rows(ordered.where("is_read").selectExpr(*_READ)),
        "others": rows(ordered.where("NOT is_plain AND NOT is_read").select("partition", "offset")),
    }


def rows(found: DataFrame) -> list[str]:
    return sorted(row[0] for row in found.select(F.to_json(F.struct(*sorted(found.columns)))).collect())


def _is_less(number: Column, other: Column) -> Column:
    return F.struct(F.length(number), number) < F.struct(F.length(other), other)
