"""What a source makes of answers of vtgate that a real one gives only for moments."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.change import Change, Snapshot
from relay.errors import ConfigError, RelayError, Unavailable
from relay.mysql_dialect.catalog import TABLES
from relay.mysql_dialect.snapshot_times import lowest
from relay.records import Plan, Shard, ShardCheckpoint, ShardState, SnapshotPart
from relay.source import Opening, Page, Segment
from relay.table import Column
from relay.vitess.position import VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.source import VitessSource
from tests.reads import pages_of
from tests.vitess.reading import START, is_at_head, new, source_of, until
from tests.vitess.scripted import HOLDS, KEYSPACE, Answer, Log, Step, copy_script, fields
from tests.waiting import wait_until

COLUMNS = (Column("id", "long"), Column("name", "string"))


def test_the_start_current_is_a_position_before_anything_is_read() -> None:
    """I4: else a restart would begin wherever the shard is by then."""
    log = Log()
    log.add(*new(1))
    with source_of(log, []) as source:
        start = source.starting_points([Shard("0")]).shards["0"]
    assert start == {"gtid": "MariaDB/0-1-11"}


def test_a_reload_that_has_found_other_tables_changes_no_setting() -> None:
    """I12: none, while the keyspace cannot be reached."""
    with source_of(log := Log(), []) as source, source_of(log, [], on_alter="resnapshot") as other:
        source.reload(source.config.for_tables(["t"])[0])
        with pytest.raises(ConfigError, match="restart the relay to apply them"):
            source.reload(other.config)


def test_a_copy_is_a_snapshot_beside_the_changes_from_a_position_that_the_plan_has() -> None:
    """I4, I1: what is changed while the rows are read is on the topic."""
    log = Log()
    log.add(*new(1))
    for start, is_initial in (("copy", True), ("current", False)):
        with source_of(log, [], start=start) as source:
            begin = source.starting_points([Shard("0")])
            plan = Plan(start, begin.decided_at, begin.shards, {})
            assert begin.shards["0"]["gtid"] == "MariaDB/0-1-11"
            assert VStreamPosition.from_json(begin.shards["0"], "0").to_json() == {"gtid": "MariaDB/0-1-11"}
            assert source.snapshots.is_initial(plan) is is_initial


def test_a_restarted_stream_keeps_what_the_checkpoints_before_it_promise() -> None:
    """I7: a snapshot may rely on it, also where a shard goes on as another."""
    log = Log()
    log.add(*new(1))
    promises = ShardCheckpoint(ShardState.READING, START, reached=2_000_000_000.0)
    both: list[dict[str, Any]] = [{"checkpoint": promises}, {"parents": {"before": promises}}]
    for more in both:
        with (
            source_of(log, [], ["customer"]) as source,
            closing(source.open(Opening(Shard("0"), START, **more))) as reader,
        ):
            (change,) = until(reader, lambda page: bool(page.changes))[-1].changes
        assert change.token is not None
        assert change.token.timestamp == lowest(promises)


def test_a_shard_that_a_reshard_made_ends_the_gap_of_a_table_that_its_parents_left_out() -> None:
    """I9: its first row that has a key says so."""
    log = Log()
    log.add(*new(1))
    parents = {
        name: ShardCheckpoint(ShardState.FINISHED, {**START, "left_out": tables})
        for name, tables in (("-80", []), ("80-", ["customer"]))
    }
    with (
        source_of(log, [], ["customer"]) as source,
        closing(source.open(Opening(Shard("0"), START, parents=parents))) as reader,
    ):
        pages = until(reader, lambda page: bool(page.changes))
    (gap,) = [page.gap for page in pages if page.gap is not None]
    assert gap.reason == "left out up to here, as it had no primary key: table customer"


@pytest.mark.parametrize(
    ("on_alter", "kinds", "key", "is_read_again"),
    [
        ("warn", ["bigint", "double"], "1", False),
        ("resnapshot", ["bigint", "double"], "1", True),
        ("resnapshot", ["bigint", "double"], None, False),
        ("resnapshot", ["bigint", "float"], "1", False),
        ("resnapshot", ["float", "double"], "1", False),
        ("resnapshot", ["bigint", "unheard_of"], "1", False),
        ("resnapshot", [], None, False),
        ("resnapshot", None, None, False),
    ],
)
def test_a_table_that_an_online_change_replaces_is_read_again_if_it_can_be_and_else_warned_of(
    on_alter: str, kinds: list[str] | None, key: str | None, is_read_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """I7, I10: its rows may have other values, and no change shows them. Vitess tells nothing of the new table."""
    log = Log()
    log.add(*new(1))
    held, swapped = (f"_vt_{kind}_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_" for kind in ("hld", "vrp"))
    log.add(statement=f"RENAME TABLE customer TO {held}, {swapped} TO customer, {held} TO {swapped}")
    rows = [("customer", f"c{at}", kind, None if at else key) for at, kind in enumerate(kinds or ())]
    names = ("TABLE_NAME", "COLUMN_NAME", "COLUMN_TYPE", "SEQ_IN_INDEX")
    answer = "VT14001: no tablet" if kinds is None else [dict(zip(names, row, strict=True)) for row in rows]
    answers: dict[str, Answer] = {TABLES.format(database=KEYSPACE): answer}
    with (
        source_of(log, [], ["customer"], answers=answers, on_alter=on_alter) as source,
        closing(source.open(Opening(Shard("0"), START))) as reader,
    ):
        (made,) = until(reader, lambda page: bool(page.schema_changes))[-1].schema_changes
    assert made.reread == (("customer",) if is_read_again else ())
    assert made.unseen.keys() == {"customer"}
    assert ("`relay snapshot CONFIG s customer`" in caplog.text) != is_read_again


def test_a_table_that_a_tool_leaves_behind_is_not_read_again() -> None:
    """I7: each cut-over would store a request for a table that is never relayed."""
    log = Log()
    log.add(*new(1))
    log.add(statement="RENAME TABLE customer TO _customer_old, _customer_gho TO customer")
    names = ("TABLE_NAME", "COLUMN_NAME", "COLUMN_TYPE", "SEQ_IN_INDEX")
    rows = [
        dict(zip(names, (table, column, kind, key), strict=True))
        for table in ("customer", "_customer_old", "_customer_gho")
        for column, kind, key in (("c0", "bigint", "1"), ("c1", "double", None))
    ]
    with source_of(log, [], answers={TABLES.format(database=KEYSPACE): rows}, on_alter="resnapshot") as source:
        known = source.layout("customer", COLUMNS, ["id"])
        assert known is not None
        source._layouts = {"customer": known}
        with closing(source.open(Opening(Shard("0"), START))) as reader:
            (made,) = until(reader, lambda page: bool(page.schema_changes))[-1].schema_changes
    assert made.reread == ("customer",)


def test_of_a_table_that_is_left_out_nothing_is_noted_unless_it_was_relayed_before() -> None:
    """I12: no snapshot could read it."""
    log = Log()
    log.add(*new(1))
    log.add(statement="ALTER TABLE odd ADD c INT DEFAULT 5")
    both: list[tuple[dict[str, Any], list[str]]] = [({}, []), ({"odd": [["id", "long"]]}, ["odd"])]
    for keys, noted in both:
        with source_of(log, []) as source:
            known = source.layout("customer", COLUMNS, ["id"])
            assert known is not None
            source._layouts = {"customer": known}
            source.skipped.skip("odd", "has no primary key", lacks_key=True)
            with closing(source.open(Opening(Shard("0"), START, keys=keys))) as reader:
                (made,) = until(reader, lambda page: bool(page.schema_changes))[-1].schema_changes
        assert [*made.unseen] == noted


def test_a_table_that_a_timestamp_shards_has_no_keyspace_ids(caplog: pytest.LogCaptureFixture) -> None:
    """Vitess hashes its text in the time zone of the session, which nothing says."""
    vindex: list[dict[str, str | None]] = [{"Columns": "at", "Type": "xxhash", "Name": "xxhash"}]
    with source_of(Log(), vindex) as source:
        found = {
            kind: source.layout("customer", (*COLUMNS, Column("at", kind)), ["id"]) for kind in ("long", "timestamp")
        }
    by_number, by_time = found.values()
    assert by_number is not None
    assert by_number.keyspace_id is not None
    assert by_time is not None
    assert by_time.keyspace_id is None
    assert [column.name for column in by_time.schema.key] == ["at", "id"]
    assert caplog.text.count("the changes of customer have no keyspace ids") == 1


def test_a_table_whose_vindex_cannot_be_looked_up_is_not_read() -> None:
    """I2: its rows would go to the partitions of their primary keys."""
    columns = (Column("id", "long"), Column("owner", "long"))
    with (
        source_of(Log(), "VT14001: the tablet is gone") as source,
        pytest.raises(Unavailable, match=r"cannot look up the vindex of customer: .*the tablet is gone"),
    ):
        source.layout("customer", columns, ["id"])
    with source_of(Log(), [{"Columns": "owner", "Type": "hash"}]) as source:
        table = source.layout("customer", columns, ["id"])
    assert table is not None
    assert [column.name for column in table.schema.key[: table.schema.hash_columns]] == ["owner"]


def test_a_table_that_does_not_exist_is_refused_where_reading_begins() -> None:
    """I1: it would never be relayed."""
    with (
        source_of(Log(), [], ["lost"]) as source,
        pytest.raises(Unavailable, match="keyspace commerce has no table lost"),
    ):
        source.starting_points([Shard("0")])


_RENAMED = "no longer has column name, .*has the new column label"
PROTECTED: dict[str, Any] = {"tables": ["customer"], "protect": {"customer": {"name": "mask"}}}


def read_all(source: VitessSource, start: dict[str, Any], pages: list[Page]) -> list[Change]:
    """Add the pages up to the head of the shard to ``pages``, and return their changes."""
    with closing(source.open(Opening(Shard("0"), start))) as reader:
        while not pages or not is_at_head(pages[-1]):
            pages += pages_of([reader.read()])
    return [change for page in pages for change in page.changes]


def test_a_stream_and_a_copy_have_no_value_of_a_protected_column_and_no_row_that_is_not_wanted() -> None:
    log = Log()
    log.add(*new(1, 2, 3, text=b"s3cr3t"), ((b"2", b"s3cr3t"), (b"2", b"s3cr3t 2")))
    rows: dict[str, list[tuple[bytes | None, ...]]] = {"customer": [(b"1", b"s3cr3t"), (b"2", b"s3cr3t")]}
    copy, where = copy_script(log, rows, 1, 1), {"customer": {"id": 2}}
    masked = {"id": 2, "name": "***"}
    with source_of(log, [], script=copy, where=where, **PROTECTED) as source:
        streamed = read_all(source, START, [])
        published = {"0": ShardCheckpoint(ShardState.READING, {"gtid": log.head})}
        part = SnapshotPart("0", "customer")
        segment = Segment(Shard("s/0"), Snapshot("s", 1), 0, 1, part=part, published=lambda: published)
        with closing(source.snapshots.open(segment)) as reader:
            copied = [change for page in until(reader, lambda page: page.finished) for change in page.changes]
    assert [(change.old, change.new) for change in streamed] == [(None, masked), (masked, masked)]
    assert [change.new for change in copied] == [masked]


def test_a_protected_column_that_is_renamed_ends_the_stream_before_its_first_row() -> None:
    old, log = Log(), Log()
    old.add(*new(1))
    log.add(), log.add(statement="alter table customer rename column name to label"), log.add(*new(2, text=b"s3cr3t"))
    log.layouts["customer"].fields[1].name = "label"

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        else:
            answers = [*old.play(old.transactions, set()), *log.play(log.transactions[1:], set())]
            yield [event for answer in answers for event in answer]
        yield HOLDS

    pages: list[Page] = []
    with source_of(log, [], script=script, **PROTECTED) as source, pytest.raises(RelayError, match=_RENAMED):
        read_all(source, START, pages)
    assert [change.new for page in pages for change in page.changes] == [{"id": 1, "name": "***"}]
    both = {**PROTECTED, "protect": {"customer": {"name": {"absent": "mask"}, "label": "exclude"}}}
    with source_of(log, [], script=script, **both) as source:
        changes = read_all(source, START, [])
    assert [change.new for change in changes] == [{"id": 1, "name": "***"}, {"id": 2}]


def test_nothing_is_read_of_a_protected_column_that_is_renamed_before_the_first_row_of_its_table() -> None:
    log = Log()
    log.add(statement="alter table customer rename column name to label"), log.add(*new(2, text=b"s3cr3t"))
    log.layouts["customer"].fields[1].name = "label"
    with source_of(log, [], **PROTECTED) as source:
        table = source.layout("customer", (Column("id", "long"), Column("name", "string")), ["id"])
        assert table is not None
        source._layouts = {"customer": table}  # as `connect` has found it
        with pytest.raises(RelayError, match=_RENAMED):
            read_all(source, START, [])


def qualified(table: str) -> tuple[str, Log]:
    """Return a table's name as every vtgate before v23 sends it, and an empty log of it."""
    name = f"{KEYSPACE}.{table}"
    layout = fields(name)
    # `copy_script` looks the layout up by the table that was asked for.
    return name, Log(names=False, layouts={name: layout, table: layout})


@pytest.mark.parametrize("named", [True, False])
def test_a_table_whose_name_comes_with_its_keyspace_is_relayed_without_it(named: bool) -> None:
    """I1: it is not another table, which nobody wants."""
    name, log = qualified("customer")
    internal, _ = qualified("_vt_vrp_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_")
    log.layouts[internal] = fields(internal)
    log.add((name, None, (b"1", b"x")), (internal, None, (b"2", b"x")))
    log.add((name, (b"1", b"x"), (b"1", b"y")))
    with source_of(log, [{"Columns": "id", "Type": "hash"}], ["customer"] if named else None) as source:
        if not named:
            source._layouts = {"customer": found} if (found := source.layout("customer", COLUMNS, ["id"])) else {}
        changes = read_all(source, START, [])
    assert [(change.table, change.new) for change in changes] == [
        ("customer", {"id": 1, "name": "x"}),
        ("customer", {"id": 1, "name": "y"}),
    ]


def test_a_table_whose_name_comes_with_its_keyspace_is_copied_without_it() -> None:
    """I1, I7: at the end of a copy without rows, copies would delete all they have."""
    _, log = qualified("customer")
    rows: dict[str, list[tuple[bytes | None, ...]]] = {"customer": [(b"1", b"x"), (b"2", b"y")]}
    with source_of(log, [], ["customer"], copy_script(log, rows, 1, 1)) as source:
        published = {"0": ShardCheckpoint(ShardState.READING, {"gtid": log.head})}
        segment = Segment(
            Shard("s/0"), Snapshot("s", 1), 0, 1, part=SnapshotPart("0", "customer"), published=lambda: published
        )
        with closing(source.snapshots.open(segment)) as reader:
            pages = until(reader, lambda page: page.finished)
    copied = [change for page in pages for change in page.changes]
    assert [(change.table, change.new) for change in copied] == [
        ("customer", {"id": 1, "name": "x"}),
        ("customer", {"id": 2, "name": "y"}),
    ]


@pytest.mark.parametrize("utf8", ["utf8", "utf8mb3", "utf8mb4"])
def test_a_table_may_have_utf8_by_each_of_its_names_beside_text_that_vitess_does_not_know(utf8: str) -> None:
    """I8: before MySQL 8.0.30, utf8mb3 is called utf8."""
    log = Log()
    text, unknown = log.layouts["customer"].fields[1], pb.Field()
    unknown.CopyFrom(text)
    unknown.name, unknown.charset = "note", 0
    log.layouts["customer"].fields.append(unknown)
    log.add((None, (b"1", "模".encode(), "模".encode("gbk"))))
    asked = (
        "select column_name, character_set_name from information_schema.columns"
        f" where table_schema = '{KEYSPACE}' and table_name = 'customer' and character_set_name is not null"
    )
    names: Answer = [{"n": "name", "of": utf8}, {"n": "note", "of": "gbk"}]
    with source_of(log, [], ["customer"], answers={asked: names}) as source:
        changes = read_all(source, START, [])
    assert [change.new for change in changes] == [{"id": 1, "name": "模", "note": "模"}]


def test_a_table_that_is_called_like_another_with_its_keyspace_keeps_its_name() -> None:
    name, log = qualified("customer")
    log.add((name, None, (b"1", b"x")))
    with source_of(log, [], [name]) as source:
        source._layouts = {name: found} if (found := source.layout(name, COLUMNS, ["id"])) else {}
        changes = read_all(source, START, [])
    assert [change.table for change in changes] == [name]


def test_the_clock_of_vtgate_is_followed_when_it_is_put_forward() -> None:
    """I1: each heartbeat of a stream tells what it is."""
    log = Log()
    log.add(*new(1))
    with source_of(log, [], ["customer"]) as source:
        source.clock.note(time.time() - 86_400, source.config.vtgate)
        with closing(source.open(Opening(Shard("0"), {"gtid": "MariaDB/0-1-10"}))) as reader:
            wait_until(lambda: (reader.read(), abs(source.clock() - time.time()) < 60)[1] or None)
