"""Records are read back as they were written, and what is not one of this version is refused by its key and field."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import orjson
import pytest

from relay.records import (
    CommittedRecords,
    Decision,
    Gap,
    PartitionOwner,
    PendingGap,
    Plan,
    ReshardJournal,
    SegmentCheckpoint,
    Shard,
    ShardCheckpoint,
    ShardListing,
    ShardState,
    SnapshotBeginning,
    SnapshotControl,
    SnapshotPart,
    SnapshotRequest,
    UnplannedTable,
    owner_key,
)
from relay.token import EventToken, OriginToken
from tests.records.graphs import STREAM

LATER = {"later": UnplannedTable((("a", "int"), ("b", "string")), 1)}
SHARD = ShardCheckpoint(
    ShardState.READING,
    position={"type": "after_sequence", "sequence": "1" * 40},
    token=EventToken(1, "orders/l/s", "MariaDB/0-1-1", OriginToken(2, "orders/l/p", "MariaDB/0-2-1")),
    parents=("p",),
    children=("c", "d"),
    start={"since": 1.5},
    gap="ab",
    updated_at=2.5,
    progress=3.5,
    journal=ReshardJournal("7", ("s",), {"c": {"gtid": "MariaDB/0-1-1"}, "d": {"gtid": "MariaDB/0-1-2"}}),
    reached=4.5,
    emptied={"orders": 5.5},
    unplanned=LATER,
)
KEYS, PARTITIONS = {"t": (("k", "S"),)}, {"shop.t": 6}
PLAN = Plan("latest", 1.5, {"s": {"since": 1.5}}, KEYS, "ab", "cd", 7, {"t": 1}, ("p@2",), "ef", PARTITIONS)
CONTROL = SnapshotControl(
    ShardState.READING,
    "1",
    after=1,
    begun=SnapshotBeginning(2, 3, 4, (SnapshotPart("-", "t"), SnapshotPart(created=1.5)), {"-": 5.5}),
    tables=("t",),
    gaps=("ab",),
    requests=("r",),
    repaired=("cd",),
    read=True,
    covered=(),
    left_out=("u",),
    again=("t",),
    repetitions=7,
    updated_at=8.5,
)
LISTING = ShardListing(1.5, 0.5, (Shard("p", closed=True), Shard("c", ("p",))), "later")
SEGMENT = SegmentCheckpoint(ShardState.FINISHED, {"rows": 3}, 1.5, LATER)
GAP = PendingGap(Gap("orders", STREAM.label, None, "trimmed", {"sequence": "5"}, None, 1.0), Decision.SKIP, 2.5)
OWNER = PartitionOwner("machine/7", {"orders": "ab"})
REQUEST = SnapshotRequest("orders", "r", ("t",), 1.5, stopped=True, updated_at=2.5)
ALTERED = replace(
    REQUEST, id="a", after=2, gap=Gap("orders", STREAM.label, None, "altered", {}, None, 1.0, "t", "ALTER")
)


def test_every_record_is_in_the_view_as_it_was_written_until_it_is_removed() -> None:
    view = CommittedRecords()
    stream = view.of(STREAM)
    keys = {
        STREAM.shard_key("s"): SHARD,
        STREAM.plan_key: PLAN,
        STREAM.listing_key: LISTING,
        STREAM.snapshot_key: CONTROL,
        STREAM.segment_key("1/0"): SEGMENT,
        GAP.key: GAP,
        REQUEST.key: REQUEST,
        ALTERED.key: ALTERED,
        owner_key(5): OWNER,
    }

    def seen() -> list[Any]:
        found: list[Any] = [*stream.checkpoints.values(), stream.plan, stream.listing, stream.control]
        found += [
            *stream.segments.values(),
            *stream.pending_gaps.values(),
            *view.requests_of("orders"),
            *view.altered_of("orders"),
            *view.owners.values(),
        ]
        return [record for record in found if record is not None]

    for key, record in keys.items():
        view.apply(key, record.to_json())
    assert seen() == [*keys.values()]
    assert stream.beside_plan().keys() == keys.keys() - {STREAM.plan_key, REQUEST.key, ALTERED.key, owner_key(5)}
    assert view.planned("orders") == view.of_source("orders") == [stream]
    assert view.versions == {"orders": len(keys) - 1, "": 1}
    for key in keys:
        view.apply(key, None)
    assert (seen(), view.planned("orders")) == ([], [])


@pytest.mark.parametrize(
    "record", [SHARD, PLAN, CONTROL, SEGMENT, GAP, REQUEST, OWNER], ids=lambda record: type(record).__name__
)
def test_a_record_says_the_type_of_each_of_its_fields(record: Any) -> None:
    """Only positions and starts are JSON that their sources read."""
    assert {field.name for field in fields(record) if "Any" in str(field.type)} <= {"position", "start", "shards"}


def test_a_field_with_its_default_is_not_written() -> None:
    assert ShardCheckpoint(ShardState.PLANNED).to_json() == b'{"state":"planned"}'
    part = SnapshotControl(ShardState.PLANNED, "1", begun=SnapshotBeginning(parts=(SnapshotPart(table="t"),)))
    assert part.to_json() == b'{"state":"planned","id":"1","begun":{"parts":[{"table":"t"}]}}'


@pytest.mark.parametrize(
    ("record", "change", "said"),
    [
        (SHARD, {"state": "other"}, "state: Input should be 'planned', "),
        (SHARD, {"state": None}, "state: Input should be 'planned', "),
        (SHARD, {"position": "1"}, "position: Input should be an object"),
        (SHARD, {"token": {"shard": "s"}}, "token: timestamp: Field required"),
        (SHARD, {"parents": "p"}, "parents: Input should be a valid array"),
        (SHARD, {"parents": [1]}, "parents: 0: Input should be a valid string"),
        (SHARD, {"updated_at": True}, "updated_at: Input should be a valid number"),
        (SHARD, {"emptied": {"t": "1"}}, "emptied: t: Input should be a valid number"),
        (
            SHARD,
            {"journal": {"id": "1", "participants": [None]}},
            "journal: participants: 0: Input should be a valid string",
        ),
        (
            SHARD,
            {"unplanned": {"t": {"key": [["a"]], "hashed": 1}}},
            "unplanned: t: key: 0: Tuple should have at least 2",
        ),
        (CONTROL, {"begun": {"rows": 1.5}}, "begun: rows: Input should be a valid integer"),
        (CONTROL, {"read": 1}, "read: Input should be a valid boolean"),
        (CONTROL, {"begun": {"parts": {}}}, "begun: parts: Input should be a valid array"),
        (GAP, {"decision": "maybe"}, "decision: Input should be 'skip' or 'resnapshot'"),
    ],
)
def test_a_record_with_another_type_in_a_field_is_refused_by_its_key_and_the_field(
    record: Any, change: dict[str, Any], said: str
) -> None:
    """I4: or it would be read as something else."""
    keys = {ShardCheckpoint: STREAM.shard_key("s"), SnapshotControl: STREAM.snapshot_key, PendingGap: GAP.key}
    key = keys[type(record)]
    value = orjson.dumps({**orjson.loads(record.to_json()), **change})
    with pytest.raises(ValueError, match=re.escape(f"{key.decode()}: {said}")):
        CommittedRecords().apply(key, value)


@pytest.mark.parametrize(
    ("value", "said"),
    [(b"{}", "state: Field required"), (b"[]", "Input should be an object"), (b"", "Invalid"), (b"\xff", "Invalid")],
)
def test_what_is_not_a_record_is_refused(value: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{STREAM.snapshot_key.decode()}: {said}")):
        CommittedRecords().apply(STREAM.snapshot_key, value)


def test_a_shard_begins_where_its_plan_says_and_one_that_it_does_not_name_at_its_horizon() -> None:
    assert PLAN.start_of(Shard("s")) == {"since": 1.5}
    assert PLAN.start_of(Shard("later")) == {"type": "trim_horizon"}


def test_the_end_of_a_shard_is_counted_once_also_if_its_removal_arrives_with_it() -> None:
    view, key = CommittedRecords(), STREAM.shard_key("s")
    view.apply(key, SHARD.to_json())
    view.apply(key, None)
    assert (view.of(STREAM).endings, view.of(STREAM).gap_version) == (1, 2)
    view.apply(key, ShardCheckpoint(ShardState.FINISHED).to_json())
    view.apply(key, None)
    assert (view.of(STREAM).endings, view.of(STREAM).gap_version) == (2, 2)


def test_of_a_table_that_was_altered_again_and_again_the_first_and_the_last_statement_are_shown() -> None:
    """I11: each shard has noted two, and each look at the page sends them."""
    view = CommittedRecords()
    for table, after in (("t", 4), ("u", 2), ("t", 1), ("t", 3)):
        assert ALTERED.gap is not None
        gap = replace(ALTERED.gap, table=table, found_at=float(after))
        note = replace(ALTERED, id=f"{after}", tables=(table,), requested_at=float(after), gap=gap)
        view.apply(note.key, note.to_json())
    shown = [(gap["table"], gap["found_at"]) for gap in view.altered_tables("orders")]
    assert shown == [("t", 1.0), ("t", 4.0), ("u", 2.0)]
