"""Queries over two shards of real MariaDB servers: routing, tokens of each shard, and other servers when one fails."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from relay.errors import Unavailable
from relay.keyspace import KeyspaceQueries
from relay.services.mariadb import PASSWORD, USER
from relay.token import EventToken
from tests.keyspace.keyspaces import (
    DATABASE,
    HIGH,
    KEYSPACE,
    LOW,
    REPLICAS,
    SELECT,
    Keyspace,
    goes_to,
    numbers_of,
    port_of,
    token_of,
    wait_for_position,
)
from tests.snippets import play, programs
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def lasting() -> Iterator[Keyspace]:
    with Keyspace(replicas=REPLICAS) as keyspace:
        yield keyspace


@pytest.fixture
def shared(lasting: Keyspace) -> Iterator[Keyspace]:
    """Servers, without customers, that several tests use. Each leaves them as it has found them, but for customers."""
    yield lasting
    for shard in lasting.shards.values():
        shard.primary.execute(f"DELETE FROM {DATABASE}.customer")
    lasting.replicated()


def test_each_shard_answers_with_its_own_rows_and_token(shared: Keyspace) -> None:
    low, high = numbers_of(LOW, 3), numbers_of(HIGH, 3)
    for number in (*low, *high):
        shared.put(number, number * 10)
    shared.replicated()
    with shared.queries() as queries:
        for shard, numbers in ((LOW, low), (HIGH, high)):
            for number in numbers:
                answer = queries.execute(SELECT, (number,), sharding_key=number, include_event_token=True)
                assert list(answer.rows) == [(number * 10,)]
                assert answer.token
                position = f"MariaDB/{shared.shards[shard].primary.gtid}"
                assert (answer.token.shard, answer.token.position) == (f"{KEYSPACE}/{shard}", position)
                assert queries.execute(SELECT, (number,), sharding_key=number).token is None
        compare = {LOW: token_of(queries, shared.shards[LOW].primary)}
        answers = queries.scatter(
            f"SELECT id FROM {DATABASE}.customer ORDER BY id", include_event_token=True, compare_event_tokens=compare
        )
        assert {shard: [row[0] for row in answer.rows] for shard, answer in answers.items()} == {LOW: low, HIGH: high}
        assert [answer.token.shard for answer in answers.values() if answer.token] == [
            f"{KEYSPACE}/{LOW}",
            f"{KEYSPACE}/{HIGH}",
        ]
        assert {shard: answer.fresher for shard, answer in answers.items()} == {LOW: True, HIGH: False}
        with pytest.raises(ValueError, match="has no shard c0-"):
            queries.scatter("SELECT 1", compare_event_tokens={"c0-": compare[LOW]})


def test_the_programs_of_the_readme_run(shared: Keyspace, redis_server: Any) -> None:
    for number in (7, 9):
        shared.put(number, number * 10)
    shared.replicated()
    asking, caching = programs("relay/keyspace/README.md")
    low, high = shared.shards[LOW], shared.shards[HIGH]
    user = f'"{USER}", "{PASSWORD}", database="{DATABASE}"'
    changes = {
        '["db1-replica:3306", "db1-other:3306", "db1:3306"]': repr([server.address for server in low.all]),
        '["db2-replica:3306", "db2:3306"]': repr([server.address for server in high.all]),
        "SELECT total": "SELECT v",
    }
    connecting = {'"legacy/legacy"': repr(KEYSPACE), '"app", "secret", database="legacy"': user}
    names = play(asking, changes | connecting)
    assert (list(names["rows"]), names["fresher"]) == ([(70,)], True)
    assert {shard: list(answer.rows) for shard, answer in names["answers"].items()} == {LOW: [(1,)], HIGH: [(1,)]}
    server = f'host="{low.primary.host}", port={low.primary.port}, user="{USER}", password="{PASSWORD}"'
    changes = {
        "redis://cache:6379/0": redis_server.url,
        "SELECT id, total": "SELECT id, v",
        'host="db1", user="app", password="secret", database="legacy"': f'{server}, database="{DATABASE}"',
    }
    values = play(caching, changes | connecting, names)["customers"]
    assert [read.value for read in values.values()] == [b"70", b"90"]


def test_a_query_is_read_as_the_server_reads_it(shared: Keyspace) -> None:
    """The statements are the application's: its own connections may have any `sql_mode`."""
    servers = [server for shard in shared.shards.values() for server in shard.all]
    ((before,),) = {row for server in servers for row in server.execute("SELECT @@GLOBAL.sql_mode")}
    for server in servers:
        server.execute("SET GLOBAL sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT'")
    try:
        with shared.queries(database=DATABASE) as queries:
            answer = queries.execute('SELECT 1 || "v" FROM (SELECT 7 AS v) AS t', sharding_key=1)
    finally:
        for server in servers:
            server.execute("SET GLOBAL sql_mode = %s", (before,))
    assert answer.rows == (("17",),)


def test_a_token_of_another_shard_makes_nothing_fresher(shared: Keyspace) -> None:
    """I5: shards have positions of their own, even where the numbers look newer."""
    (low,), (high,) = numbers_of(LOW, 1), numbers_of(HIGH, 1)
    for v in range(5):
        shared.put(low, v)
    shared.put(high, 1)
    shared.replicated()
    with shared.queries() as queries:
        token = token_of(queries, shared.shards[HIGH].primary)
        assert queries.execute(SELECT, (high,), sharding_key=high, compare_event_token=token).fresher
        assert not queries.execute(SELECT, (low,), sharding_key=low, compare_event_token=token).fresher


def test_a_query_that_must_be_fresh_goes_past_the_replicas_that_lag(keyspace: Keyspace) -> None:
    """I6: those that do not need it stay on the replica, and say that they are not fresher."""
    (number,) = numbers_of(LOW, 1)
    first, second = keyspace.shards[LOW].replicas
    primary = keyspace.shards[LOW].primary
    keyspace.put(number, 1)
    keyspace.replicated()
    with keyspace.queries(max_lag=3600.0) as queries:
        first.execute("STOP SLAVE SQL_THREAD")
        keyspace.put(number, 2)
        changed = wait_for_position(queries, second, primary.gtid).token
        assert changed
        assert port_of(queries, number, changed) == second.port
        answer = queries.execute(SELECT, (number,), sharding_key=number, compare_event_token=changed)
        assert (list(answer.rows), answer.fresher) == ([(2,)], True)
        second.execute("STOP SLAVE SQL_THREAD")
        keyspace.put(number, 3)
        changed = wait_for_position(queries, primary, primary.gtid).token
        assert port_of(queries, number, changed) == primary.port
        # Nobody has what comes after it.
        future = EventToken(1, f"{KEYSPACE}/{LOW}", "MariaDB/0-1-1000000")
        answer = queries.execute(SELECT, (number,), sharding_key=number, compare_event_token=future)
        assert not answer.fresher


def test_a_query_that_runs_while_its_server_is_killed_is_made_again(keyspace: Keyspace) -> None:
    (number,) = numbers_of(HIGH, 1)
    (replica,), primary = keyspace.shards[HIGH].replicas, keyspace.shards[HIGH].primary
    with keyspace.queries() as queries:
        found: list[Any] = []

        def ask() -> None:
            found.append(queries.execute("SELECT SLEEP(1), @@port", sharding_key=number))

        thread = threading.Thread(target=ask)
        replica.execute("SELECT 1")
        thread.start()
        running = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SELECT SLEEP(1)%'"
        wait_until(lambda: replica.execute(running)[0][0] > 0)
        replica.kill()
        thread.join(120)
        assert [answer.rows[0][1] for answer in found] == [primary.port]


def test_no_servers_of_a_shard_is_an_error_that_says_why_of_each(keyspace: Keyspace) -> None:
    (low,), (high,) = numbers_of(LOW, 1), numbers_of(HIGH, 1)
    with keyspace.queries() as queries:
        for server in keyspace.shards[HIGH].all:
            server.kill()
        with pytest.raises(Unavailable) as raised:
            queries.execute(SELECT, (high,), sharding_key=high)
        assert f"no server of shard {KEYSPACE}/{HIGH} can be queried" in str(raised.value)
        for server in keyspace.shards[HIGH].all:
            assert server.address in str(raised.value)
        assert list(queries.execute(SELECT, (low,), sharding_key=low).rows) == []  # the other shard goes on
        with pytest.raises(Unavailable, match=HIGH):
            queries.scatter("SELECT 1")


def test_a_statement_that_is_wrong_is_made_once_and_one_that_writes_not_at_all(keyspace: Keyspace) -> None:
    (number,) = numbers_of(LOW, 1)
    replica, primary = keyspace.shards[LOW].replicas[0], keyspace.shards[LOW].primary
    keyspace.put(number, 1)
    with keyspace.queries() as queries:
        with pytest.raises(pymysql.err.ProgrammingError, match="nowhere"):
            queries.execute(f"SELECT * FROM {DATABASE}.nowhere", sharding_key=number)
        with pytest.raises(pymysql.err.MySQLError, match=r"(?i)read.only"):
            queries.execute(f"DELETE FROM {DATABASE}.customer", sharding_key=number)
        goes_to(queries, number, replica)
        for each in (replica, keyspace.shards[LOW].replicas[1]):
            each.kill()
        with pytest.raises(pymysql.err.MySQLError, match="READ ONLY"):
            queries.execute(f"DELETE FROM {DATABASE}.customer", sharding_key=number)
        assert primary.execute(f"SELECT v FROM {DATABASE}.customer") == ((1,),)


def test_threads_get_their_own_rows_of_any_shard_while_replicas_die(keyspace: Keyspace) -> None:
    """I6: on a shared connection they would get those of another thread. A token never goes back in a shard."""
    numbers = numbers_of(LOW, 10) + numbers_of(HIGH, 10)
    for number in numbers:
        keyspace.put(number, number * 10)
    keyspace.replicated()
    wrong: list[Any] = []
    done = 0

    def ask(thread: int, queries: KeyspaceQueries) -> None:
        nonlocal done
        for turn in range(120):
            number = numbers[(thread * 7 + turn) % len(numbers)]
            try:
                rows = list(queries.execute(SELECT, (number,), sharding_key=number).rows)
            except Exception as error:
                wrong.append(repr(error))
                return
            if rows != [(number * 10,)]:
                wrong.append((number, rows))
        done += 1

    with keyspace.queries() as queries:
        threads = [threading.Thread(target=ask, args=(thread, queries), daemon=True) for thread in range(6)]
        for thread in threads:
            thread.start()
        keyspace.shards[LOW].replicas[0].kill()
        keyspace.shards[HIGH].replicas[0].kill()
        for thread in threads:
            thread.join(600)
    assert (wrong, done) == ([], 6)


def test_a_forked_process_has_no_tokens_until_it_watches_for_itself(shared: Keyspace) -> None:
    """I6: it would not see a change of role, and would share its parent's connections."""
    (number,) = numbers_of(LOW, 1)
    shared.put(number, 1)
    shared.replicated()
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    with shared.queries() as queries:
        assert queries.execute(SELECT, (number,), sharding_key=number, include_event_token=True).token

        def child() -> None:
            send.send(queries.execute(SELECT, (number,), sharding_key=number, include_event_token=True))
            with queries:
                send.send(queries.execute(SELECT, (number,), sharding_key=number, include_event_token=True))

        process = context.Process(target=child)
        process.start()
        without, its_own = receive.recv(), receive.recv()
        process.join(60)
        assert (list(without.rows), without.token) == ([(1,)], None)
        assert (list(its_own.rows), its_own.token is not None) == ([(1,)], True)
        assert queries.execute(SELECT, (number,), sharding_key=number, include_event_token=True).token
