"""Rows of a table that are read beside the stream of its shard, wherever the copy is interrupted."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from relay.errors import RelayError
from relay.mysql_dialect.layout_cache import SkippedTables
from relay.mysql_dialect.snapshot_times import LATENESS, MARGIN, lowest
from relay.records import ReshardJournal, ShardCheckpoint, ShardState
from relay.source import Page
from relay.vitess import table_reader
from relay.vitess.client import EventKind
from relay.vitess.proto import vtgate_pb2 as pb
from tests.reads import pages_of
from tests.vitess.copies import at, ids, rows_of
from tests.vitess.reading import NOW, START, copying, failure, is_at_head, new, opened, until
from tests.vitess.scripted import Fails, Log, Rows, ScriptedVtgate, Step, copy_script


def test_a_tablet_that_is_behind_what_is_published_is_waited_for_and_not_copied() -> None:
    """I7: its rows would undo changes that are on the topic."""
    log = Log()
    for number in range(1, 5):
        log.add(*new(number))
    places = [f"MariaDB/0-1-{number}" for number in range(11, 15)]
    tablets = iter(places)
    script = copy_script(log, lambda: (next(tablets), rows_of(range(1, 3))), batch=9, seed=1)
    published = at(places[2])
    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: published) as reader:
        for place in places[:2]:
            assert f"copies table customer of shard 0 is at {place}, behind the published changes" in failure(reader)
        published.update(at(places[3]))  # what was published since need not be shown
        assert ids(until(reader, lambda page: page.finished)) == [1, 2]


def test_rows_show_also_the_part_of_an_open_transaction_that_is_published() -> None:
    """I7"""
    log = Log()
    log.add(*new(1)), log.add(*new(2, 3))
    published = at("MariaDB/0-1-11", transaction="0-1-12", rows_done=1, rows_of={"0-1-12": {"customer": 1}})
    tablets = iter(["MariaDB/0-1-11", "MariaDB/0-1-12"])
    script = copy_script(log, lambda: (next(tablets), rows_of(range(1, 4))), batch=9, seed=1)
    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: published) as reader:
        assert "is at MariaDB/0-1-11, behind the published changes" in failure(reader)
        assert ids(until(reader, lambda page: page.finished)) == [1, 2, 3]


def test_nothing_is_copied_of_a_shard_of_which_nothing_is_published() -> None:
    published: dict[str, ShardCheckpoint] = {}
    log = Log()
    script = copy_script(log, rows_of(range(1, 3)), batch=1, seed=1)
    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: published) as reader:
        assert failure(reader) == "source shop: the snapshot has to wait until the relay has begun to read shard 0"
        assert vtgate.requests == []
        published.update(at(log.head))
        assert ids(until(reader, lambda page: page.finished)) == [1, 2]


@pytest.mark.parametrize(
    ("begin", "promised", "expected"),
    [
        (100, 500, 500),
        (600, 500, 600),
        (100, 1 << 40, None),  # the clock decides
    ],
)
def test_rows_replace_nothing_that_comes_after_them(begin: int, promised: int, expected: int | None) -> None:
    """I7: not what was published when they were read, nor what a clock says alone."""
    log = Log()
    published = at(log.head, timestamp=promised)
    began = time.time()
    script = copy_script(log, rows_of(range(1, 2)), batch=1, seed=1)
    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: published, as_of=begin) as reader:
        (change,) = until(reader, lambda page: bool(page.changes))[-1].changes
    assert change.snapshot is not None
    assert change.snapshot.id == "snapshot"
    if expected is None:
        assert began - MARGIN - 1 <= change.snapshot.as_of <= time.time() - MARGIN
    else:
        assert change.snapshot.as_of == expected


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_each_row_is_read_once_and_the_position_of_each_page_covers_its_rows_and_no_others(
    in_pieces: bool, seed: int
) -> None:
    """I3, I4"""
    log = Log()
    log.add(*new(1))
    whole = copy_script(log, rows_of(range(1, 30), 3000), batch=4, seed=seed)

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for step in whole(request):
            if in_pieces and isinstance(step, list):
                yield from ([event] for event in step)
            else:
                yield step

    chance, page, seen = random.Random(seed), None, Counter[int]()
    with ScriptedVtgate(script) as vtgate:
        while page is None or not page.finished:
            with copying(vtgate.address, lambda: at(log.head), after=page) as reader:
                for read in pages_of(reader.read() for _ in range(chance.randint(1, 6))):
                    page = read
                    seen.update(ids([read]))
                    (position,) = [read.position] if read.position is not None else []
                    assert position["rows"] == seen.total() == max(seen, default=0)
                    if read.finished:
                        break
    assert seen == Counter(range(1, 30))
    assert all(len(request.flags.tables_to_copy) == 1 for request in vtgate.requests)


def test_a_copy_interrupted_between_its_last_row_and_its_end_does_not_start_again() -> None:
    """I3"""
    log = Log()
    whole = copy_script(log, rows_of(range(1, 6)), batch=9, seed=1)
    ends = False

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for step in whole(request):
            if isinstance(step, list) and step[0].type == EventKind.COPY_COMPLETED and not ends:
                yield Fails("UNAVAILABLE", "the tablet is gone")
            yield step

    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.head)) as reader:
        pages = until(reader, lambda page: bool(page.changes))
        assert "the tablet is gone" in failure(reader)
        ends = True
        pages += until(reader, lambda page: page.finished)
    assert ids(pages) == [1, 2, 3, 4, 5]


def test_an_empty_table_is_finished() -> None:
    log = Log()
    script = copy_script(log, {"customer": []}, batch=9, seed=1)
    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.head)) as reader:
        pages = until(reader, lambda page: page.finished)
    assert ids(pages) == []


def test_changes_of_copied_rows_that_come_where_vtgate_goes_on_with_another_tablet_are_left_to_the_stream() -> None:
    log = Log()
    log.add(((b"1", b"x"), (b"1", b"new")), ((b"2", b"x"), None))
    places = [log.before, log.head]
    moved = 0
    for seed in range(30):
        took: list[str] = []

        def tablet(took: list[str] = took) -> tuple[str, Rows]:
            took.append(places[min(len(took), 1)])
            return took[-1], rows_of(range(3 if len(took) > 1 else 1, 7))

        script = copy_script(log, tablet, batch=2, seed=seed)
        with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.before)) as reader:
            pages = until(reader, lambda page: page.finished)
            is_moved = len(took) == 2 and len(vtgate.requests) == 1
        moved += is_moved
        assert ids(pages) == list(range(1, 7))
        assert {change.new["name"] for page in pages for change in page.changes if change.new} == {"x"}
    assert moved


@pytest.mark.parametrize("text", ["table customer is not present in the database", "unknown table customer in schema"])
def test_a_table_that_was_dropped_is_finished_and_one_that_the_tablet_does_not_know_yet_is_waited_for(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1, I7: as is one that has lost its key: all its rows would be deleted from copies."""

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield Fails("UNKNOWN", text)

    published = at(Log().head)
    with ScriptedVtgate(script) as vtgate:
        with copying(vtgate.address, lambda: published, now={}) as reader:
            page = until(reader, lambda page: page.finished)[-1]
        assert "table customer was dropped during its snapshot" in caplog.text
        with copying(vtgate.address, lambda: published, after=page) as reader:
            assert until(reader, lambda page: page.finished)  # also where the worker died then
        keyless = SkippedTables("shop", "commerce", ())
        keyless.skip("customer", "has no primary key", lacks_key=True)
        both: list[dict[str, Any]] = [{"now": NOW}, {"now": {}, "skipped": keyless}]
        for there in both:
            with copying(vtgate.address, lambda: published, **there) as reader:
                if "unknown table" in text:
                    with pytest.raises(RelayError, match="table customer cannot be copied"):
                        reader.read(), until(reader, lambda page: page.finished)
                else:
                    assert text in failure(reader)


def _without(*kinds: EventKind) -> Callable[[list[pb.VEvent]], list[pb.VEvent]]:
    return lambda events: [event for event in events if event.type not in kinds]


def _with_a_field(events: list[pb.VEvent]) -> list[pb.VEvent]:
    return [*events[:5], *(event for event in events if event.type == EventKind.FIELD), *events[5:]]


def _without_keys(events: list[pb.VEvent]) -> list[pb.VEvent]:
    for event in events:
        for one in event.vgtid.shard_gtids:
            del one.table_p_ks[:]
    return events


def _at_no_position(events: list[pb.VEvent]) -> list[pb.VEvent]:
    for event in events:
        for one in event.vgtid.shard_gtids:
            one.gtid = "current"
    return events


def _of_another_shard(events: list[pb.VEvent]) -> list[pb.VEvent]:
    for event in events:
        for one in event.vgtid.shard_gtids:
            one.shard = "80-"
    return events


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (_without(EventKind.FIELD), "without their columns"),
        (_without_keys, "without the key of the last row"),
        (_of_another_shard, "without commerce/0"),
        (_at_no_position, "a position that cannot be read"),
        (_without(EventKind.COMMIT), "a batch of copied rows was cut off"),
        (_without(EventKind.COMMIT, EventKind.BEGIN), "a batch of copied rows has no end"),
        (_with_a_field, "a batch of copied rows has several layouts"),
    ],
)
def test_events_that_do_not_fit_together_begin_the_copy_again_where_it_stood(
    breaks: Callable[[list[pb.VEvent]], list[pb.VEvent]], why: str
) -> None:
    """I4"""
    log, tries = Log(), 0
    whole = copy_script(log, rows_of(range(1, 4)), batch=9, seed=1)

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        nonlocal tries
        tries += 1
        for step in whole(request):
            yield breaks(step) if isinstance(step, list) and tries == 1 else step

    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.head)) as reader:
        assert why in failure(reader)
        assert ids(until(reader, lambda page: page.finished)) == [1, 2, 3]


@pytest.mark.parametrize("is_merged", [False, True])
def test_after_a_reshard_the_rest_of_a_table_is_read_from_the_shards_that_continue_its_shard(is_merged: bool) -> None:
    """I1: the shard that was being read serves nobody any more."""
    targets = ["0@2"] if is_merged else ["-80", "80-"]
    log = Log()
    parts = {"-80": range(1, 20, 2), "80-": range(2, 20, 2), "0": range(1, 20)}
    logs = {name: Log(shard=name) for name in parts}
    scripts = {name: copy_script(logs[name], {"customer": [(b"%d" % i, b"x") for i in numbers]}, batch=4, seed=1)
               for name, numbers in parts.items()}  # fmt: skip

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield from scripts[request.vgtid.shard_gtids[0].shard](request)

    published = dict(at(log.head))
    with ScriptedVtgate(script) as vtgate:
        with copying(vtgate.address, lambda: published) as reader:
            pages = until(reader, lambda page: bool(page.changes))
        ended = ReshardJournal("1", ("0",), {target: {"gtid": log.head} for target in targets})
        published["0"] = ShardCheckpoint(ShardState.FINISHED, {"gtid": log.head}, journal=ended)
        with copying(vtgate.address, lambda: published, after=pages[-1]) as reader:
            assert "the snapshot has to wait until the relay has begun to read shard" in failure(reader)
            reading = ShardCheckpoint(ShardState.READING, {"gtid": log.head}, parents=("0",))
            published |= dict.fromkeys(targets, reading)
            pages += until(reader, lambda page: ids([page]) != [])
        with copying(vtgate.address, lambda: published, after=pages[-1]) as reader:
            pages += until(reader, lambda page: page.finished)
    seen = ids(pages)
    assert seen[:4] == [1, 2, 3, 4]
    assert sorted(seen) == list(range(1, 20))
    assert pages[-1].position == {"type": "rows", "left": [], "rows": 19}


def test_what_a_lost_shard_had_is_not_waited_for() -> None:
    """Its gap says that its changes are lost."""
    published = {"0": ShardCheckpoint(ShardState.GONE, {"gtid": "MariaDB/0-1-10"})}
    with copying("127.0.0.1:1", lambda: published) as reader:
        assert isinstance(read := reader.read(), Page)
    assert read.finished


def test_a_silent_copy_is_opened_again_with_more_patience_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10"""
    monkeypatch.setattr(table_reader, "_PATIENCE", 4)
    log, comes = Log(), False
    whole = copy_script(log, rows_of(range(1, 4)), batch=9, seed=1)

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield from (whole(request) if comes else iter([None]))

    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.head), silence=0.02) as reader:
        vtgate.beats = False
        assert "vtgate sent nothing for 0.02 s" in failure(reader)
    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.head), silence=0.3) as reader:
        failure(reader, "no row of table customer came for 1.2 s")  # heartbeats may be late before
        comes = True
        assert ids(until(reader, lambda page: page.finished)) == [1, 2, 3]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_tokens_of_a_stream_keep_what_its_checkpoints_promise_also_if_clocks_differ(is_restarted: bool) -> None:
    """I7: the times of the log are years before the clock of the relay."""
    log, goes_on = Log(), threading.Event()
    log.add(*new(1)), log.add(*new(2))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        place = request.vgtid.shard_gtids[0].gtid
        if place == "current":
            yield [log.vgtid(log.head if goes_on.is_set() else "MariaDB/0-1-11")]
        for each in log.after(place) if place != "current" else ():
            if each.gtid == "0-1-12":
                goes_on.wait()
            yield from log.play([each], set())
        yield None

    with ScriptedVtgate(script) as vtgate, ExitStack() as stack:
        reader = stack.enter_context(opened(vtgate.address, START))
        page = until(reader, is_at_head)[-1]
        assert page.reached is not None
        promised = lowest(ShardCheckpoint(ShardState.READING, page.position, page.token, reached=page.reached))
        assert promised == int(page.reached - LATENESS)
        if is_restarted:
            reader = stack.enter_context(opened(vtgate.address, START, after=page, floor=promised))
        goes_on.set()
        (change,) = until(reader, lambda page: bool(page.changes))[-1].changes
    assert change.token is not None
    assert change.token.timestamp >= promised


def test_no_head_is_reached_while_the_token_of_an_open_transaction_is_older() -> None:
    """I7: a checkpoint would promise more than the transaction keeps."""
    log = Log(chunk=1)
    log.add(*new(1))
    log.add(*new(*range(2, 40), text=b"x" * 20))
    two = [*log.play(log.transactions[1:], set())]

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid("MariaDB/0-1-11"), pb.VEvent(type=EventKind.OTHER, keyspace="commerce", shard="0")]
            return
        yield from log.play(log.transactions[:1], set())
        for event in two[0]:
            time.sleep(0.05)
            yield [event]
        time.sleep(0.3)  # its first row waits to be told whether it is the last
        for answer in two[1:]:
            yield answer
            time.sleep(0.01)
        yield None

    seen: list[tuple[int, int]] = []
    seconds = itertools.count(2_000_000_000, 10)
    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, START, page_bytes=20, ask_every=0.0, clock=lambda: float(next(seconds))) as reader,
    ):
        promised = 0
        for page in until(reader, lambda page: bool(page.changes) and page.changes[-1].key == {"id": 39}):
            seen += [(change.token.timestamp, promised) for change in page.changes if change.token is not None]
            promised = lowest(ShardCheckpoint(ShardState.READING, page.position, page.token, reached=page.reached))
    assert len(seen) == 39
    assert all(timestamp >= before for timestamp, before in seen)
