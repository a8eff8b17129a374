"""The rows of tables that MoveTables takes to another keyspace, from a scripted vtgate: snapshots, and verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from relay.change import Snapshot
from relay.mysql_dialect.catalog import BINARY, TABLES
from relay.records import (
    CommittedRecords,
    Plan,
    ReshardJournal,
    Shard,
    ShardCheckpoint,
    ShardState,
    SnapshotBeginning,
    SnapshotControl,
    SnapshotPart,
)
from relay.snapshots.control import Facts, Wait, next_step
from relay.snapshots.lifecycle import SnapshotTables
from relay.source import Opening, Page, Segment
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.source import VitessSource
from relay.vitess.table_rows import VitessTableRows
from tests.reads import pages_of, reason
from tests.vitess.copies import ids
from tests.vitess.reading import new, results_until, source_of
from tests.vitess.scripted import JOURNALS, KEYSPACE, Answer, Fails, Log, Step, copy_script, moved

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
        "select table_name, table_rows from information_schema.tables where table_schema = database()": [],
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


PLAN = Plan("current", 0.0, {"0": START}, dict.fromkeys(("customer", "other"), (("id", "long"),)))
READ = SnapshotControl(ShardState.READING, "s1", covered=("customer", "other"))


def marked(source: VitessSource, control: SnapshotControl) -> list[str]:
    """Return the tables for which a snapshot of a source ends."""
    stream = CommittedRecords().of(source.stream)
    stream.plan = PLAN
    return sorted(change.table for change in SnapshotTables(source, stream).marks(control, "end"))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_snapshot_has_no_end_for_a_table_that_was_moved_away_before_the_relay_read_it(is_known: bool) -> None:
    """I7: it lives on in the other keyspace, so copies keep its rows."""
    tables = ["customer", "other"]
    moves: dict[str, Answer] = {JOURNALS: [moved("0-1-4")]} if is_known else {}
    published = {"0": ShardCheckpoint(ShardState.READING, START if is_known else {**START, "left_out": ["customer"]})}
    with source_of(Log(), [], answers={**answers(lambda: defined(*tables)), **moves}) as source:
        source.connect()
        tables.remove("customer")
        for wanted in (None, ["customer"]):
            found = source.snapshots.measure(published, wanted)
            assert (found.segments, found.left_out) == (0 if wanted else 1, ["customer"])
        control = replace(READ, gaps=("g",), left_out=tuple(found.left_out))
        assert marked(source, control) == ["other"]
        again = VitessSource(source.config)
        with closing(again):
            again.connect(KEYSPACE)
            assert marked(again, control) == ["other"]


def test_a_snapshot_ends_after_a_restart_for_a_table_that_was_followed_to_another_keyspace() -> None:
    """I7, I10: it is not removed from the config, and nothing is read twice."""
    moves: dict[str, Answer] = {JOURNALS: [moved("0-1-11")]}
    with source_of(Log(), [], ["customer", "other"], answers={**answers(lambda: defined("other")), **moves}) as source:
        source.connect(KEYSPACE)
        there, gone = ({table.table for table in found} for found in (source.tables(), source.dropped(PLAN.keys, {})))
        facts = Facts(0.0, 65, True, True, False, there, gone, set(), set(), 0, (), {}, {})
        assert (there, gone) == ({"other"}, {"customer"})
        for control in (READ, replace(READ, state=ShardState.FINISHED, read=True)):
            step = next_step(replace(control, begun=SnapshotBeginning(segments=1)), facts)
            assert isinstance(step, Wait)
        assert marked(source, READ) == ["customer", "other"]


@pytest.mark.parametrize("tables", [None, ["customer", "other"]])
def test_a_moved_table_is_verified_by_the_key_that_its_changes_have(tables: list[str] | None) -> None:
    """I2: the other keyspace has no vindex for it, and the first one no longer knows the table."""
    plan: dict[str, Any] = {"keys": {"customer": [["name", "string"], ["id", "long"]]}, "hashed": {"customer": 1}}
    starts = {f"{THERE}/-@tx": {**START, **ONLY}, "0@ty": {**START, **WITHOUT}}
    openings = [Opening(Shard(name), start, **plan) for name, start in starts.items()]
    unknown = "VT05005: table 'customer' does not exist in keyspace 'commerce'"
    with source_of(Log(), unknown, tables, answers=answers(lambda: defined("other"))) as source:
        source.connect()
        rows = VitessTableRows(source, openings, "customer")
    assert [column.name for column in rows.schema.key] == ["name", "id"]
    assert rows.schema.hash_columns == 1


def in_keyspace(steps: Iterator[Step], keyspace: str, shard: str) -> Iterator[Step]:
    """Let ``steps`` come from a shard."""
    for step in steps:
        for event in step if isinstance(step, list) else ():
            event.keyspace, event.shard = event.keyspace and keyspace, event.shard and shard
            for at in event.vgtid.shard_gtids:
                at.keyspace, at.shard = keyspace, shard
        yield step
