"""Changes as DataFrames, for your own Spark jobs."""

import contextlib
import json
import logging
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from relay.avro.registry import open_schemas
from relay.config import Config
from relay.config.config import loaded
from relay.config.topic_names import only_tables, topics_of_changes
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics as kafka_topics
from relay.kafka.group_offsets import LATEST, GroupOffsets, Offsets, with_beginnings
from spark_consumers import kafka_source
from spark_consumers.decode import Decoder, Schemas
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.session import refuse_other_meanings, refuse_unsupported

log = logging.getLogger(__name__)

_LOOK_AGAIN = 15.0  # seconds without a look-up after a failed one; otherwise each batch would wait for another
_NAME = "read-changes"
_INTERNAL = ("layout", "key_texts")
NOT_SHOWN = (*_INTERNAL, "status", "value")  # the columns of `Decoder.changes` that `read_changes` omits

OrderedRule = Callable[[tuple[str, str, Any], Iterator[Row]], object]
"""Handles the changes of one item: source, table and key, and its changes in order."""


def read_changes(
    spark: SparkSession,
    config: Config | Path | str,
    topics: Sequence[str] = (),
    *,
    table: str | None = None,
    start: str | None = None,
    end: str | None = None,
    streaming: bool = True,
    at_most: int | None = None,
    undecodable: Literal["fail", "keep"] = "fail",
) -> DataFrame:
    """Return the committed changes on ``topics``, which may be named by table; by default the topics of all tables.

    The columns are topic, partition, offset, event_id, operation, source, table, key, old, new, images, token (JSON),
    token_timestamp, token_shard, token_position, snapshot_id, snapshot_as_of, transaction_id, transaction_order,
    transaction_last, keyspace_id, resume_timestamp, committed_at, relayed_at and attributes. ``key``, ``old`` and
    ``new`` are JSON under the source's column names. With ``table`` only its changes are read, and those three are
    structs with the columns' own types; DynamoDB images without ``columns:`` stay JSON.

    ``config``: the relay's, or its file. ``start``: earliest (the default), latest, committed:GROUP, an ISO time, a
    relative time such as ``-2h``, or offsets as JSON; a streaming query with a checkpoint continues there instead.
    ``end``: the same, only without ``streaming``; by default the current end, even for partitions that JSON leaves out.
    ``at_most``: records per batch. ``undecodable``: how to treat a record that is not a change: as an error, or as a
    row with ``status`` and ``value``, which are then two more columns.

    A streaming query looks up the schemas that are published while it runs. With ``table``, the columns are those known
    now: a change with a later schema ends the query with an error that says so, and the next query knows it. Raises
    ``ConfigError`` for wrong arguments, and ``Unavailable`` if Kafka, a topic or the schema registry is, or if no
    change of ``table`` was relayed yet.
    """
    config = loaded(config)
    if streaming and end is not None:
        raise ConfigError("end: a streaming query has no end: pass streaming=False, or omit `end`")
    refuse_unsupported(spark)
    refuse_other_meanings(spark)
    names = topics_of_changes(config, topics or ([table] if table is not None else []))
    if table is not None and names != [config.topic(table)]:
        raise ConfigError(f"table {table!r}: omit `topics`, or name only {config.topic(table)}")
    kafka_topics.connect(config)  # raises a clear error if no broker can be reached
    with contextlib.closing(GroupOffsets(config, _NAME, names)) as group:
        wanted = group.resolve(start or "earliest", option="start")
        if streaming:
            # A checkpoint may override it, so Spark itself checks that its records still exist.
            records = kafka_source.read(spark, config, _NAME, names, json.dumps(wanted), at_most)
        else:
            last = group.resolve(end or "latest", option="end", others=LATEST)
            beginnings, ends = group.locate({})
            first = with_beginnings(wanted, beginnings)
            _refuse_missing(first, last, beginnings, ends)
            # Spark refuses an end before its start.
            last = {t: {p: max(offset, first[t][p]) for p, offset in ps.items()} for t, ps in last.items()}
            records = kafka_source.read_between(spark, config, _NAME, first, last)
    # After the end offsets, because the schemas of all records up to them were published before.
    published = LaterSchemas(config, names, must=undecodable == "keep")
    decoder = Decoder.of(config, published.learn(), look=published if streaming else None)
    if table is not None and all(layout.table != table for layout in decoder.layouts):
        raise Unavailable(f"table {table}: nothing was relayed for it yet, so its columns are unknown: try again later")
    changes = decoded(records, decoder, table, undecodable)
    only = {t: {table} for t in config.shared_topics.intersection(names)} if table else only_tables(config, topics)
    for topic, tables in only.items():
        is_other = (F.col("topic") == topic) & ~F.col("table").isin(*tables)
        changes = changes.where(~F.coalesce(is_other, F.lit(False)))  # an undecodable record may be of any table
    return changes


def decoded(records: DataFrame, decoder: Decoder, table: str | None, undecodable: str) -> DataFrame:
    changes = decoder.changes(records, typed=table, in_full=undecodable == "keep").drop(*_INTERNAL)
    status = F.col("status")
    foreign = status.isin(DecodeStatus.SCHEMA, DecodeStatus.FRAMING, DecodeStatus.DAMAGED)
    if undecodable == "keep":
        return changes.where((status == DecodeStatus.CHANGE) | foreign)
    place = F.concat(F.col("topic"), F.lit("["), F.col("partition"), F.lit("] offset "), F.col("offset"))
    if decoder.look is None or table is not None:
        unknown = F.lit(": its schema was not known when the query started: start the query again")
    else:
        unknown = F.lit(": its schema is not published, or could not be looked up: start the query again when it is")
    problem = F.concat(place, F.when(status == DecodeStatus.SCHEMA, unknown).otherwise(F.concat(F.lit(": "), status)))
    # In a filter, because Spark never removes it from a plan, unlike an unselected column. As it is not deterministic,
    # Spark puts no filter of the query before it, which would skip the record, whose columns are null. I1
    is_refused = foreign & (F.spark_partition_id() >= 0)
    wanted = F.when(is_refused, F.raise_error(problem).cast("boolean")).otherwise(status == DecodeStatus.CHANGE)
    return changes.where(wanted).drop("status", "value")


def apply_in_order(changes: DataFrame, rule: OrderedRule) -> None:
    """Call ``rule`` once for each item, on the executors, with its changes in the order of the topic.

    That is the order in which they happened, except for READ, which only replaces what is older than its
    ``snapshot_as_of``. ``changes``: a batch, with the columns of `read_changes`. ``rule`` is given source, table and
    key, and the item's changes, which it reads once, as they come. Changes without a key, such as TRUNCATE, are left
    out. An item may come again if a task is repeated, and with `spark.speculation` at the same time.
    """
    item = ("source", "table", "key")
    ordered = changes.where(F.col("key").isNotNull()).repartition(*item)
    ordered = ordered.sortWithinPartitions(*item, "topic", "partition", "offset")

    # Spark sends a nested function as it is, so the executors need nothing but Python, whatever the rule needs.
    def call(rows: Iterator[Row]) -> None:
        for key, of_item in groupby(rows, key=itemgetter(*item)):
            rule(key, of_item)

    ordered.foreachPartition(call)


def _refuse_missing(first: Offsets, last: Offsets, beginnings: Offsets, ends: Offsets) -> None:
    for topic, partitions in first.items():
        for partition, offset in partitions.items():
            low, end = beginnings[topic][partition], ends[topic][partition]
            there = f"{topic}[{partition}] has the records from offset {low} to {end}"
            if not low <= offset <= end:  # I1
                raise ConfigError(
                    f"start: {there}, so reading cannot start at {offset}: its records were removed, or the topic was "
                    "created again. Use -2 to start at the beginning"
                )
            if last[topic][partition] > end:
                raise ConfigError(
                    f"end: {there}, so it cannot be read up to {last[topic][partition]}: try again later, or omit "
                    "`end` to read to the current end"
                )


class LaterSchemas:
    """Returns the schemas on ``topics`` at each call. Threads may share it.

    ``must``: whether a call raises the errors of `learn`. Otherwise the known schemas serve for some seconds, and a
    change with a new schema ends its query. ``clock``: monotonic seconds.
    """

    def __init__(
        self, config: Config, topics: Sequence[str], *, must: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._topics = topics
        self._must = must
        self._clock = clock
        self._published = open_schemas(config)
        weakref.finalize(self, self._published.close)
        self._is_wanted: dict[bytes, bool] = {}
        self._again_at = -math.inf

    def learn(self) -> Schemas:
        """Look up new schemas. Raises ``Unavailable``, and ``RelayError`` for a record that is not a schema."""
        self._published.learn(self._topics)
        return self._known()

    def __call__(self) -> Schemas:
        if self._clock() >= self._again_at:
            try:
                return self.learn()
            except RelayError as error:
                if self._must:  # I1: a row that is kept without its columns does not come again
                    raise
                self._again_at = self._clock() + _LOOK_AGAIN
                log.warning("%s. Values whose schemas are known are still read", error)
        return self._known()

    def _known(self) -> Schemas:
        found = self._published.all()
        for header in found.keys() - self._is_wanted.keys():
            self._is_wanted[header] = self._config.topic(Layout.of(found[header]).table) in self._topics
        return {header: schema for header, schema in found.items() if self._is_wanted[header]}
