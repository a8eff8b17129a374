"""What a watched server of a keyspace is taken for: fresh, behind, dead, promoted, hanging."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from functools import partial
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
    SELECT,
    Keyspace,
    goes_to,
    numbers_of,
    port_in,
    port_of,
    wait_for_position,
    wait_for_state,
    watching,
)
from tests.waiting import pause

pytestmark = pytest.mark.services


def test_a_replica_that_does_not_replicate_is_left_and_taken_again(keyspace: Keyspace) -> None:
    (number,) = numbers_of(HIGH, 1)
    (replica,), primary = keyspace.shards[HIGH].replicas, keyspace.shards[HIGH].primary
    with keyspace.queries() as queries:
        goes_to(queries, number, replica)
        replica.execute("STOP REPLICA")
        wait_for_state(queries, replica, lambda state: state.lag > 60)
        assert port_of(queries, number) == primary.port
        replica.execute("START REPLICA")
        goes_to(queries, number, replica)


def test_a_replica_that_is_killed_is_replaced_and_taken_again(keyspace: Keyspace) -> None:
    (number,) = numbers_of(LOW, 1)
    first, second = keyspace.shards[LOW].replicas
    keyspace.put(number, 1)
    keyspace.replicated()
    with keyspace.queries() as queries:
        goes_to(queries, number, first)
        first.kill()
        # At once, before its watcher has noticed: over the connection that was open, and over a new one.
        answer = queries.execute(SELECT, (number,), sharding_key=number, include_event_token=True)
        assert list(answer.rows) == [(1,)]
        assert answer.token
        assert port_of(queries, number) == second.port
        wait_for_state(queries, first, lambda state: state.token is None and state.problem is not None)
        second.kill()
        keyspace.put(number, 2)
        wait_for_position(queries, keyspace.shards[LOW].primary, keyspace.shards[LOW].primary.gtid)
        answer = queries.execute(SELECT, (number,), sharding_key=number, include_event_token=True)
        assert list(answer.rows) == [(2,)]
        assert answer.token
        first.restart()
        wait_for_position(queries, first, keyspace.shards[LOW].primary.gtid)
        goes_to(queries, number, first)


def test_a_promoted_replica_is_read_with_the_tokens_of_its_new_role(keyspace: Keyspace) -> None:
    """I5, I6: and a former primary that accepts writes beside it makes all tokens of the shard doubtful."""
    (number,) = numbers_of(LOW, 1)
    first, second = keyspace.shards[LOW].replicas
    former = keyspace.shards[LOW].primary
    keyspace.put(number, 1)
    keyspace.replicated()
    ask: dict[str, Any] = {"sharding_key": number, "include_event_token": True}
    with keyspace.queries() as queries:
        former.kill()
        first.promote()
        second.replicate_from(first)
        first.execute(f"REPLACE {DATABASE}.customer VALUES (%s, 2)", (number,))
        second.wait_for(first.gtid)
        wait_for_state(queries, first, lambda state: state.role == "primary")
        wait_for_position(queries, first, first.gtid)
        wait_for_position(queries, second, first.gtid)
        for _ in range(10):
            answer = queries.execute(SELECT, (number,), **ask)
            assert list(answer.rows) == [(2,)]
            assert answer.token
            assert answer.token.position == f"MariaDB/{first.gtid}"
        # It comes back as it was: with a number of its own for what the new primary does next.
        former.restart()
        wait_for_state(queries, former, lambda state: state.role == "primary")
        former.execute(f"REPLACE {DATABASE}.customer VALUES (%s, 7)", (number,))
        former.execute(f"REPLACE {DATABASE}.customer VALUES (%s, 8)", (number,))
        assert queries.execute(SELECT, (number,), **ask).token is None
        former.execute("SET GLOBAL read_only = 1")
        wait_for_state(queries, former, lambda state: state.role == "unknown")
        answer = queries.execute(SELECT, (number,), **ask)
        assert (list(answer.rows), answer.token is not None) == ([(2,)], True)


def test_servers_that_cannot_be_watched_are_queried_without_tokens(keyspace: Keyspace) -> None:
    """I6: nothing says how fresh their rows are."""
    (number,) = numbers_of(LOW, 1)
    keyspace.put(number, 1)
    keyspace.replicated()
    primary = keyspace.shards[LOW].primary
    primary.execute("CREATE USER reader@'%' IDENTIFIED BY 'secret'")
    primary.execute(f"GRANT SELECT ON {DATABASE}.* TO reader@'%'")
    keyspace.replicated()

    def reading(address: str) -> Any:
        account: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": port_in(address),
            "user": "reader",
            "password": "secret",
        }
        return pymysql.connect(**account, autocommit=True)

    shards = {"-": [server.address for server in keyspace.shards[LOW].all]}
    with pytest.raises(Unavailable, match=f"no server of keyspace {KEYSPACE} can be watched: .*the user needs"):
        KeyspaceQueries(KEYSPACE, shards, None, connect=reading, watch=partial(watching, "reader", "secret")).start()
    queries = KeyspaceQueries(KEYSPACE, shards, None, connect=reading, watch=partial(watching, "reader", "secret"))
    with closing(queries):
        token = EventToken(1, f"{KEYSPACE}/-", "MariaDB/0-1-1")
        answer = queries.execute(SELECT, (number,), include_event_token=True, compare_event_token=token)
        assert (list(answer.rows), answer.token, answer.fresher) == ([(1,)], None, False)
    # One user watches, another one queries.
    with KeyspaceQueries(KEYSPACE, shards, None, connect=reading, watch=partial(watching, USER, PASSWORD)) as queries:
        assert queries.execute(SELECT, (number,), include_event_token=True).token


def test_a_server_that_hangs_holds_up_only_the_queries_that_it_got(keyspace: Keyspace) -> None:
    (replica,), primary = keyspace.shards[HIGH].replicas, keyspace.shards[HIGH].primary
    asked: list[str] = []

    def quickly(address: str) -> Any:
        asked.append(address)
        account: dict[str, Any] = {"host": "127.0.0.1", "port": port_in(address), "user": USER, "password": PASSWORD}
        return pymysql.connect(**account, autocommit=True, read_timeout=10, connect_timeout=10)

    shards = {"-": [replica.address, primary.address]}
    watch = partial(watching, USER, PASSWORD)
    with KeyspaceQueries(KEYSPACE, shards, None, connect=quickly, watch=watch, max_lag=3600.0) as queries:
        goes_to(queries, 0, replica)
        pause(replica.process.pid)
        try:
            assert port_of(queries, 0) == primary.port
            # Nobody knows what it is now, although its watcher has not failed yet.
            wait_for_state(queries, replica, lambda state: state.lag > 11)
            asked.clear()
            assert port_of(queries, 0) == primary.port
            assert asked == []
        finally:
            os.kill(replica.process.pid, signal.SIGCONT)
