"""Snapshots of tables that MoveTables takes to another keyspace, from a scripted vtgate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from relay.change import Snapshot
from relay.mysql_dialect.catalog import BINARY, TABLES
from relay.records import ReshardJournal, Shard, ShardCheckpoint, ShardState, SnapshotPart
from relay.source import Page, Segment
from relay.vitess.proto import vtgate_pb2 as pb
from tests.reads import pages_of, reason
from tests.vitess.copies import ids
from tests.vitess.reading import new, results_until, source_of
from tests.vitess.scripted import KEYSPACE, Answer, Fails, Log, Step, copy_script

THERE = "customers"
GONE = Fails("UNKNOWN", "table customer is not present in the database")
START = {"gtid": "MariaDB/0-1-11"}
ONLY, WITHOUT = {"only": ["customer"]}, {"without": ["customer"]}
JOURNAL = ReshardJournal("7", ("0",), {f"{THERE}/-": {**START, **ONLY}, "0": {**START, **WITHOUT}})
MOVED = {
    "0": ShardCheckpoint(ShardState.FINISHED, START, journal=JOURNAL),
    f"{THERE}/-@tx": ShardCheckpoint(ShardState.READING, START, parents=("0",), start={**START, **ONLY}),
    "0@ty": ShardCheckpoint(ShardState.READING, START, parents=("0",), start={**START, **WITHOUT}),
}


def defined(*tables: str) -> Answer:
    """Return the definitions of tables with the key `id`."""
    names = ("TABLE_NAME", "COLUMN_NAME", "COLUMN_TYPE", "SEQ_IN_INDEX")
    columns: list[tuple[str, str, str | None]] = [("id", "bigint(20)", "1"), ("name", "varchar(20)", None)]
    return [dict(zip(names, (table, *column), strict=True)) for table in tables for column in columns]


def answers(here: Callable[[], Answer]) -> dict[str, Answer | Callable[[], Answer]]:
    """Return the answers of a keyspace with the tables that ``here`` defines, and of one with `customer`."""
    return {
        TABLES.format(database=KEYSPACE): here,
        TABLES.format(database=THERE): defined("customer"),
        "show vschema vindexes on `other`": [],
        **{each.format(database=KEYSPACE): [] for each in BINARY},
    }


@pytest.mark.parametrize("is_read_late", [False, True])
def test_the_rest_of_a_table_that_moves_during_its_snapshot_is_read_in_the_other_keyspace(is_read_late: bool) -> None:
    """I7: it was not dropped, and copies delete the rows that a snapshot has not read."""
    log, tables = Log(), ["customer", "other"]
    log.add(*new(1))
    published = {"0": ShardCheckpoint(ShardState.READING, START)}
    copy = copy_script(log, {"customer": [(b"%d" % number, b"x") for number in range(1, 7)]}, 2, 1)
    unknown = [GONE]  # the other tablet does not know the table yet

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        place = request.vgtid.shard_gtids[0]
        if not request.flags.tables_to_copy:
            yield from copy(request)
        elif place.keyspace == THERE:
            yield unknown.pop() if unknown else []
            yield from in_keyspace(copy(request), place.keyspace, place.shard)
        else:
            yield next(copy(request))
            published.update({"0": MOVED["0"]} if is_read_late else MOVED)
            tables.remove("customer")
            yield GONE

    with source_of(log, [], script=script, answers=answers(lambda: defined(*tables))) as source:
        source.connect()
        part = SnapshotPart("0", "customer")
        segment = Segment(Shard("s/0"), Snapshot("s", 1), 0, 1, part=part, published=lambda: published)
        with closing(source.snapshots.open(segment)) as reader:
            results = results_until(reader, lambda read: "table customer" in reason(read))
            published.update(MOVED)
            results += results_until(reader, lambda read: isinstance(read, Page) and read.finished)
    assert ids(pages_of(results)) == [1, 2, 3, 4, 5, 6]


def in_keyspace(steps: Iterator[Step], keyspace: str, shard: str) -> Iterator[Step]:
    """Let ``steps`` come from a shard."""
    for step in steps:
        for event in step if isinstance(step, list) else ():
            event.keyspace, event.shard = event.keyspace and keyspace, event.shard and shard
            for at in event.vgtid.shard_gtids:
                at.keyspace, at.shard = keyspace, shard
        yield step
