"""Reading across the start of a shard's server, after which its binlog gives the numbers of tables to other tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest

from relay import gtid
from relay.services.vitess import Vitess, database
from relay.source import Page
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.server_starts import ServerStarts
from tests import needs
from tests.reads import reason
from tests.vitess.reading import START, is_at_head, new, opened, results_until, summary, until
from tests.vitess.scripted import STARTED, Answer, Log, ScriptedVtgate, Step

_OTHERS = 80  # tables
_FIRST = 1_700_000_011  # seconds: the time of the first transaction of a log, and each has a second of its own


def logged(names: bool = True) -> Log:
    log = Log(names=names)
    for n in range(8):
        log.add(*new(2 * n, 2 * n + 1))
    return log


def starting(*after: int) -> Callable[[], Answer]:
    """Return the answers of tablets whose servers were started so many seconds after the first transaction."""
    answers = cycle(after)
    return lambda: [{"started": str(_FIRST + next(answers))}]


def files(log: Log, *after: int) -> dict[str, Answer]:
    """Return what a tablet answers about its binlog files, which begin so many transactions after the start of ``log``.

    One of them has no transactions yet.
    """
    begins = {f"binlog.{n:06}": f"0-1-{10 + count}" for n, count in enumerate((*after, len(log.transactions)))}
    answers: dict[str, Answer] = {
        f"select binlog_gtid_pos('{name}', 4)": [{"position": begin}] for name, begin in begins.items()
    }
    return answers | {"show binary logs": [{"Log_name": name} for name in begins]}


def opened_at(log: Log, *starts: int, begins: tuple[int, ...] = (0,), **settings: Any) -> list[str]:
    """Return where streams of rows were opened to read ``log``, whose changes have to be complete.

    ``begins``: see `files`.
    """
    with ScriptedVtgate(log.script) as whole, opened(whole.address, START) as reader:
        expected = _changes(summary(until(reader, is_at_head)))
    with (
        ScriptedVtgate(log.script, {STARTED: starting(*starts), **files(log, *begins)}) as vtgate,
        opened(vtgate.address, START, **settings) as reader,
    ):
        assert _changes(summary(until(reader, is_at_head))) == expected
    return [request.vgtid.shard_gtids[0].gtid for request in vtgate.reads]


def _changes(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return changes without their times: no token is later than its reading, and two readers read at two times."""
    return [(id_, operation, table, key, old, new) for id_, operation, table, key, old, new, *_ in found]


@pytest.mark.parametrize("names", [True, False], ids=["v23", "older"])
def test_what_came_after_a_start_is_read_with_a_stream_of_its_own(names: bool) -> None:
    """I1: twice, since the second of the start may have transactions from before and after it."""
    assert opened_at(logged(names), 3) == ["MariaDB/0-1-10", "MariaDB/0-1-13", "MariaDB/0-1-14"]


def test_each_tablet_may_be_on_a_server_that_was_started_at_another_time() -> None:
    expected = [f"MariaDB/0-1-{n}" for n in (10, 12, 13, 16, 17)]
    assert opened_at(logged(), 2, 6) == expected
    assert opened_at(logged(), 2, 6, page_bytes=1) == expected


def test_an_earlier_start_of_a_server_shows_in_its_binlog_files() -> None:
    """The first of these files begins before the position, and was begun by an earlier start."""
    expected = [f"MariaDB/0-1-{n}" for n in (10, 12, 16, 17)]
    assert opened_at(logged(), 6, begins=(-5, 2, 6)) == expected


@pytest.mark.parametrize("names", [True, False], ids=["v23", "older"])
def test_a_replica_that_went_on_with_older_times_is_read_by_its_binlog_files(names: bool) -> None:
    """I1: its transactions have the times of the primary, where a long statement began early."""
    log = logged(names)
    for transaction in log.transactions[4:]:
        transaction.timestamp -= 100
    assert opened_at(log, 1_000_000, begins=(0, 4)) == ["MariaDB/0-1-10", "MariaDB/0-1-14"]


def test_binlog_files_are_looked_into_once_for_each_start() -> None:
    log = logged()
    answers = {STARTED: starting(3), **files(log, 0)}
    with ScriptedVtgate(log.script, answers) as vtgate, opened(vtgate.address, START) as reader:
        until(reader, is_at_head)
        first = [statement for _, statement in vtgate.statements]
        vtgate.statements.clear()
        reader.close()
        log.add(*new(99))
        until(reader, is_at_head)
    assert first.count("show binary logs") == 3  # until two listings in a row show nothing new
    assert {statement for _, statement in vtgate.statements} == {STARTED}


def test_a_shard_that_is_read_from_after_the_start_needs_one_more_stream_once() -> None:
    assert opened_at(logged(), -9) == ["MariaDB/0-1-10"] * 2


def test_a_server_whose_clock_is_ahead_is_read_on_after_its_start() -> None:
    log, ahead = logged(), int(time.time()) + 600
    for n, transaction in enumerate(log.transactions):
        transaction.timestamp = ahead + n
    assert opened_at(log, ahead + 3 - _FIRST) == ["MariaDB/0-1-10", "MariaDB/0-1-13", "MariaDB/0-1-14"]


def test_a_start_that_a_stream_which_is_behind_outlives_ends_it() -> None:
    """I1: vtgate opens a stream of a tablet again by itself, so what was told when it was opened holds no longer."""
    log, now = logged(), [float(_FIRST + 3)]

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        now[0] += 100
        yield from log.script(request)

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, clock=lambda: now[0]) as reader:
        pages = until(reader, is_at_head)
    assert [change.key for page in pages for change in page.changes] == [{"id": n} for n in range(16)]
    assert [each.vgtid.shard_gtids[0].gtid for each in vtgate.reads] == ["MariaDB/0-1-10", "MariaDB/0-1-13"]


@pytest.mark.parametrize("names", [True, False], ids=["v23", "older"])
def test_a_stream_that_is_up_to_date_goes_on(names: bool) -> None:
    log, at = logged(names), int(time.time())
    for transaction in log.transactions:
        transaction.timestamp = at
    assert opened_at(log, -1_000_000) == ["MariaDB/0-1-10"] * 2  # the first one is opened again once


def test_nothing_is_read_while_vtgate_does_not_tell_when_servers_were_started() -> None:
    """I1: the server that is down may be starting."""
    log, answers = logged(), iter([pb.RPCError(message="no healthy tablet", code=14)] * 3)
    then = starting(3)

    def started() -> Answer:
        return next(answers, None) or then()

    with ScriptedVtgate(log.script, {STARTED: started, **files(log, 0)}) as vtgate, opened(vtgate.address, START) as at:
        reads = results_until(at, lambda read: isinstance(read, Page) and is_at_head(read))
    assert ["no healthy tablet" in reason(read) for read in reads[:3]] == [True] * 3
    assert [request.vgtid.shard_gtids[0].gtid for request in vtgate.reads] == [
        f"MariaDB/0-1-{n}" for n in (10, 10, 10, 10, 13, 14)
    ]


def test_the_files_of_several_tablets_are_joined_however_they_answer() -> None:
    """The first file of one of them begins after what the other has purged, or has not at all."""
    log = logged()
    one, other = files(log, 0, 2), files(log, 0, 5)
    answers: dict[str, Answer | Callable[[], Answer]] = {STARTED: starting(3, 1_000_000)}
    for statement in one.keys() | other.keys():
        both = cycle([one.get(statement, "no such file"), other.get(statement, "no such file")])
        answers[statement] = partial(next, both)
    with ScriptedVtgate(log.script, answers) as vtgate, opened(vtgate.address, START) as reader:
        until(reader, is_at_head)
    assert {f"MariaDB/0-1-{n}" for n in (12, 15)} <= {each.vgtid.shard_gtids[0].gtid for each in vtgate.reads}


def test_files_that_begin_after_one_number_of_two_servers_all_end_the_stream() -> None:
    """I1: sets of MariaDB with the same numbers of two servers contain each other."""
    begins = {gtid.parse("MariaDB/0-1-100"), gtid.parse("MariaDB/0-2-100")}
    tablets: Any = SimpleNamespace(kind="PRIMARY", started_at=lambda flavour: 5, shard=None)
    starts: Any = ServerStarts(tablets, silence=1.0)
    starts._history = SimpleNamespace(begins_after=lambda at: begins)
    assert {*starts.end_after("MariaDB/0-1-50", 10.0).begins} == begins


@pytest.mark.parametrize("answer", ["command denied", [{"started": None}], []], ids=str)
def test_a_start_that_is_not_known_is_said_once(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    log = logged()
    with ScriptedVtgate(log.script, {STARTED: answer}) as vtgate, opened(vtgate.address, START) as reader:
        until(reader, is_at_head)
        reader.close()
        log.add(*new(99))
        assert [change.new for page in until(reader, is_at_head) for change in page.changes][-1] is not None
    assert caplog.text.count("cannot find out when the database servers of the shard were started") == 1


@pytest.fixture
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    tables = "create table customer (id bigint primary key, v int)"
    with Vitess(keyspaces={"one": ["0"]}, schemas={"one": (tables, {"tables": {"customer": {}}})}) as vitess:
        yield vitess


def execute(cluster: Vitess, *statements: str) -> None:
    connection = cluster.mariadb.connect(database=database("one", "0"), autocommit=True)
    with closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.services
@pytest.mark.parametrize("is_started_again", [False, True], ids=["last", "earlier"])
def test_changes_after_a_start_that_reuses_the_numbers_of_tables_are_read(
    cluster: Vitess, is_started_again: bool
) -> None:
    """I1: Vitess' streamer goes on with what it knows about a number, so a stream across the restart lacks rows."""
    execute(cluster, "create database others")
    execute(cluster, *(f"create table others.t{n} (id bigint primary key)" for n in range(_OTHERS)))
    start = {"gtid": cluster.position}
    execute(cluster, *(f"insert into others.t{n} values (1)" for n in range(_OTHERS)))
    time.sleep(1.0)
    cluster.kill()
    cluster.restart()
    time.sleep(1.0)
    for n in range(_OTHERS):
        execute(cluster, "flush tables", f"insert into customer values ({n}, 1)")
    if is_started_again:
        cluster.kill()
        cluster.restart()
    with opened(cluster.vtgate, start, keyspace="one") as reader:
        pages = until(reader, is_at_head)
    assert [change.new["id"] for page in pages for change in page.changes if change.new] == [*range(_OTHERS)]
