"""Ends of streams and what follows: reshards, gaps, silence, replicas that are behind."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import orjson
import pytest

from relay.errors import RelayError
from relay.source import ReadResult, UnknownShard, Unreadable
from relay.vitess.client import TABLET_TYPES
from relay.vitess.proto import vtgate_pb2 as pb
from tests.reads import pages_of, reason
from tests.vitess.reading import START, failure, is_at_head, journal, new, opened, read_all, results_until, until
from tests.vitess.scripted import HOLDS, KEYSPACE, Answer, Fails, Log, ScriptedVtgate, Step

PRIMARY = TABLET_TYPES["PRIMARY"]


def test_a_shard_ends_at_its_journal_which_names_its_successors() -> None:
    log = Log()
    log.add(*new(1))
    log.add(journal=journal(["0"], ["-80", "80-"]))
    log.add(*new(2))
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START) as reader:
        pages = until(reader, lambda page: page.finished)
    assert [change.key for page in pages for change in page.changes] == [{"id": 1}]
    assert pages[-1].position == {"gtid": "MariaDB/0-1-12"}
    ending = pages[-1].journal
    assert ending is not None
    assert (ending.id, ending.participants) == ("77", ("0",))
    assert ending.targets == {"-80": {"gtid": "MariaDB/0-2-5"}, "80-": {"gtid": "MariaDB/0-2-5"}}


@pytest.mark.parametrize("migration", [0, 1])
def test_journals_of_table_moves_and_of_other_shards_are_ignored(migration: int) -> None:
    log = Log()
    ignored = journal(["0"] if migration == 0 else ["-40", "40-80"], ["-80"])
    ignored.migration_type = migration
    log.add(journal=ignored)
    log.add(*new(2))
    pages = read_all(log)
    assert not any(page.finished for page in pages)
    assert [change.key for page in pages for change in page.changes] == [{"id": 2}]


def test_a_journal_whose_positions_cannot_be_read_does_not_end_the_shard() -> None:
    """I4: the shards that continue it would begin nowhere, at each start of the relay again."""
    log = Log()
    broken = journal(["0"], ["-80", "80-"])
    broken.shard_gtids[0].gtid = "current"
    log.add(journal=broken)
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START) as reader:
        results = results_until(reader, lambda read: isinstance(read, Unreadable), most=100)
    assert "a position in journal 77 cannot be read" in reason(results[-1])
    assert not any(page.finished for page in pages_of(results[:-1]))


PARTICIPANTS = (
    'not all journaling participants are in the stream: journal: [keyspace:"commerce"  shard:"0" '
    'keyspace:"commerce" shard:"1" keyspace:"commerce" shard:"2"], stream: [keyspace:"commerce" shard:"9"]'
)


@pytest.mark.parametrize("lost", [True, False])
def test_a_journal_with_several_participants_is_read_from_a_stream_over_all_of_them(lost: bool) -> None:
    log = Log()
    log.add(*new(1))
    log.add(journal=journal(["0", "1", "2"], ["-"]))
    theirs = Log(shard="1")
    theirs.add(*new(100))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        at = request.vgtid.shard_gtids
        if at[0].gtid == "current":
            yield [log.vgtid(log.head)]
            yield HOLDS
        answers = list(log.play(log.after(at[0].gtid), set()))
        others = {one.shard: one.gtid for one in at[1:]}
        if others == {"1": "current", "2": "current"}:
            yield from theirs.play(theirs.transactions, set())
            yield from answers
            yield HOLDS
        yield from answers[:-1] if lost else answers
        yield Fails("INTERNAL", PARTICIPANTS)

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        pages = until(reader, lambda page: page.finished)
    assert [change.key for page in pages for change in page.changes] == [{"id": 1}]
    assert pages[-1].journal is not None
    assert pages[-1].position == {"gtid": "MariaDB/0-1-12"}


def test_the_stream_is_reopened_until_a_journal_comes_if_a_participant_no_longer_exists() -> None:
    log = Log()
    log.add(journal=journal(["0", "1", "2"], ["-"]))
    tries = []

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        at = request.vgtid.shard_gtids
        tries.append([one.shard for one in at])
        if "2" in tries[-1]:
            yield Fails("FAILED_PRECONDITION", "shard provided in VGTID, 2, not found in the commerce keyspace")
        if len(tries) > 6:
            yield from log.play(log.transactions, set())
        yield Fails("INTERNAL", PARTICIPANTS)

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, ask_every=60.0) as reader:
        pages = until(reader, lambda page: page.finished)
    assert pages[-1].journal is not None


def test_a_shard_that_is_not_in_the_topology_is_reported_as_unknown() -> None:
    text = "failed: shard provided in VGTID, 0, not found in the commerce keyspace"

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield Fails("FAILED_PRECONDITION", text)

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        results_until(reader, lambda read: isinstance(read, UnknownShard))
        assert reader.position.to_json() == START


@pytest.mark.parametrize(
    "text",
    [
        "Could not find first log file (errno 1236) (sqlstate HY000): the master has purged binary logs",
        "Cannot replicate because the source purged required binary logs (errno 1236) (sqlstate HY000)",
        "(errno 1789) (sqlstate HY000)",
    ],
)
def test_purged_binlogs_are_a_gap_and_reading_continues_at_the_head(text: str) -> None:
    log = Log(before="MariaDB/0-1-10")
    for _ in range(3):
        log.add(*new(1))
    head = log.head

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == START["gtid"]:
            yield Fails("UNKNOWN", text)
        yield from log.script(request)

    hidden: dict[str, Answer | Callable[[], Answer]] = {"show binary logs": "denied"}
    with ScriptedVtgate(script, hidden) as vtgate, opened(vtgate.address, START) as reader:
        pages = until(reader, lambda page: page.gap is not None)
        gap = pages[-1].gap
        log.add(*new(9))
        after = until(reader, lambda page: bool(page.changes))
    assert gap is not None
    assert (gap.reason, gap.begin, gap.end) == ("purged", START, {"gtid": head})
    assert pages[-1].position == {"gtid": head}
    assert not pages[-1].changes
    assert [change.key for change in after[-1].changes] == [{"id": 9}]


def test_a_silent_stream_at_a_purged_position_is_a_gap() -> None:
    log = Log()
    log.add(*new(1))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        yield HOLDS

    answers: dict[str, list[dict[str, str | None]] | str] = {
        "show binary logs": [{"Log_name": "binlog.000007", "File_size": "1"}],
        "select binlog_gtid_pos('binlog.000007', 4)": [{"pos": "0-1-11"}],
    }
    with ScriptedVtgate(script, answers) as vtgate, opened(vtgate.address, START, silence=0.3) as reader:
        page = until(reader, lambda page: page.gap is not None)[-1]
    assert page.position == {"gtid": "MariaDB/0-1-11"}


FIRST_BINLOG: Answer = [{"Log_name": "binlog.000007", "File_size": "1"}]


@pytest.mark.parametrize("says_so", [True, False])
def test_nothing_is_lost_while_one_of_the_tablets_has_the_binlogs(says_so: bool) -> None:
    """I1: one that was restored from a backup has only what came after that."""
    log, begins = Log(), itertools.cycle(["0-1-11", "0-1-10"])
    log.add(*new(1))
    tries = itertools.count()

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        elif next(tries) < 3:
            if says_so:
                yield Fails("UNKNOWN", "the source purged required binary logs (errno 1236) (sqlstate HY000)")
        else:
            yield from log.script(request)
        yield HOLDS

    def first() -> Answer:
        return [{"pos": next(begins)}]

    answers = {"show binary logs": FIRST_BINLOG, "select binlog_gtid_pos('binlog.000007', 4)": first}
    with ScriptedVtgate(script, answers) as vtgate, opened(vtgate.address, START, silence=0.3) as reader:
        pages = until(reader, lambda page: page.gap is not None or bool(page.changes))
    assert [page.gap for page in pages if page.gap is not None] == []
    assert [change.key for change in pages[-1].changes] == [{"id": 1}]


@pytest.mark.parametrize("says_so", [True, False])
def test_a_purged_shard_that_has_been_resharded_is_refused_and_not_read_on_at_its_head(says_so: bool) -> None:
    """I10, I9: what was purged has the journal, and no change comes to that shard any more."""
    log = Log()
    log.add(*new(1))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        elif says_so:
            yield Fails("UNKNOWN", "the source purged required binary logs (errno 1236) (sqlstate HY000)")
        yield HOLDS

    answers: dict[str, Answer] = {
        "show vitess_shards": [{"Shards": f"{KEYSPACE}/-80"}, {"Shards": f"{KEYSPACE}/80-"}],
        "show binary logs": FIRST_BINLOG,
        "select binlog_gtid_pos('binlog.000007', 4)": [{"pos": "0-1-11"}],
    }
    with (
        ScriptedVtgate(script, answers) as vtgate,
        opened(vtgate.address, START, silence=0.3) as reader,
        pytest.raises(
            RelayError, match=r"shop/commerce/0: .*purged.*has since been resharded.*relay reset CONFIG shop"
        ),
    ):
        until(reader, lambda page: page.gap is not None)


def test_a_silent_stream_behind_the_head_fails_with_the_reason() -> None:
    log = Log()
    log.add(*new(1))

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        yield HOLDS

    tablet: dict[str, str | None] = {"Keyspace": KEYSPACE, "Shard": "0", "TabletType": "PRIMARY", "State": "SERVING"}
    answers: dict[str, list[dict[str, str | None]] | str] = {
        "show vitess_shards": [{"Shards": "commerce/0"}],
        "show vitess_tablets": [tablet],
    }
    with ScriptedVtgate(script, answers) as vtgate, opened(vtgate.address, START, silence=0.3) as reader:
        # On a busy host heartbeats may be late before.
        failure(reader, "is at MariaDB/0-1-11: no REPLICA tablet of the shard is serving")
        assert reader.position.to_json() == START


def test_the_stream_is_reopened_if_vtgate_stops_sending_heartbeats() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, silence=0.3) as reader:
        vtgate.beats = False
        assert "vtgate sent nothing" in failure(reader)
        seen = len(vtgate.reads)
        results_until(reader, lambda read: len(vtgate.reads) > seen)


@pytest.mark.parametrize(
    "start", ["MariaDB/0-1-99", "MySQL56/16b1039f-22b6-11ed-b765-0a43f95f28a3:1-5", "MariaDB/0-1-10,5-1-7"]
)
def test_a_position_that_the_shard_never_executed_is_refused_with_its_head(start: str) -> None:
    log = Log()

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid("MariaDB/0-1-12")]
        yield HOLDS

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, {"gtid": start}, silence=0.3) as reader,
        pytest.raises(RelayError, match=rf"shop/commerce/0 never executed {start}, and is at MariaDB/0-1-12"),
    ):
        until(reader, lambda page: False)


MISMATCH = "GTIDSet Mismatch: requested source position:0-1-12, current target vrep position: 0-1-11"


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("has_primary", [False, True])
def test_reading_waits_for_a_replica_that_is_behind_the_position(refuses: bool, has_primary: bool) -> None:
    log = Log()
    log.add(*new(1))
    log.add(*new(2))
    start, behind = {"gtid": log.head}, ["MariaDB/0-1-11"]

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            if request.tablet_type != PRIMARY:
                yield [log.vgtid(behind[0] if behind else log.head)]
            elif has_primary:
                yield [log.vgtid(log.head)]
            else:
                yield Fails("UNAVAILABLE", "no primary")
        elif behind:
            if refuses:
                yield Fails("UNKNOWN", MISMATCH)
        else:
            yield from log.script(request)
        yield HOLDS

    failures: list[str] = []

    def is_behind(read: ReadResult) -> bool:
        failures.append(reason(read))
        return len([failure for failure in failures if "behind MariaDB/0-1-12" in failure]) > 3

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, start, silence=0.2) as reader:
        pages = pages_of(results_until(reader, is_behind))
        assert {orjson.dumps(page.position) for page in pages} <= {orjson.dumps(start)}
        assert reader.position.to_json() == start
        assert not any(page.reached for page in pages)
        behind.clear()
        log.add(*new(3))
        after = until(reader, lambda page: bool(page.changes))
    assert [change.key for change in after[-1].changes] == [{"id": 3}]


def test_a_position_that_the_primary_never_executed_is_refused() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [Log().vgtid("MariaDB/0-1-12" if request.tablet_type == PRIMARY else "MariaDB/0-1-8")]
        yield HOLDS

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, {"gtid": "MariaDB/0-1-13"}, silence=0.2) as reader,
        pytest.raises(RelayError, match=r"never executed MariaDB/0-1-13, and is at MariaDB/0-1-12"),
    ):
        until(reader, lambda page: False)


@pytest.mark.parametrize(
    ("head", "expected"),
    [("13-15", "Its binlogs were reset"), ("1-8:14-15", "Its binlogs were reset"), ("1-11", "waiting for a tablet")],
)
def test_a_replica_whose_binlogs_were_reset_is_told_from_one_that_is_behind(head: str, expected: str) -> None:
    """I10: it will never have the position, although the primary has."""
    server = "MySQL56/16b1039f-22b6-11ed-b765-0a43f95f28a3"

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [Log().vgtid(f"{server}:{'1-15' if request.tablet_type == PRIMARY else head}")]
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, {"gtid": f"{server}:1-12"}, silence=0.2) as reader:
        assert expected in failure(reader, "tablet is at")


def test_an_idle_shard_reports_that_it_is_read_to_its_head() -> None:
    log = Log()
    log.add(*new(1))
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START) as reader:
        # On a slow machine, the page with the change may be at the head already, and the next without progress.
        first = until(reader, lambda page: is_at_head(page) and page.progress is not None)[-1]
        assert first.progress is not None
        assert first.reached is not None
        assert first.progress == first.reached - 65
        until(reader, lambda page: (page.reached or 0) > (first.reached or 0))


def test_a_shard_with_commits_that_no_wanted_table_is_in_reports_that_it_is_read_to_its_head() -> None:
    """I10: a tablet that writes heartbeats commits each second, and its tables may be idle for days."""
    log = Log()

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield from log.script(request)
        while True:
            time.sleep(0.003)
            yield from log.play([log.add(statement="")], set())

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START) as reader:
        first = until(reader, lambda page: page.reached is not None)[-1].reached
        later = until(reader, lambda page: page.reached != first, 500)[-1].reached
        assert first is not None
        assert later is not None
        assert later > first
