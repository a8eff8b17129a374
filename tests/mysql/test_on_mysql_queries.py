"""Queries with tokens, on a real MySQL primary and its replica."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from functools import partial

import pytest

from relay.errors import RelayError
from relay.mysql.queries import TokenQueries
from relay.services.sql_server import USER
from tests.mysql.orders import DATABASE, SELECT, put, wait_for, watch
from tests.mysql.server import MySQL
from tests.mysql.shards import begin, open_at, read_until, source_of

pytestmark = [pytest.mark.services, pytest.mark.parametrize("kind", [MySQL], indirect=True)]


def test_a_replica_that_stands_still_is_not_fresher(primary: MySQL, replica: MySQL) -> None:
    """I6: until it has applied the change."""
    source = source_of(DATABASE, primary)
    reader = open_at(source, begin(source)["-"])
    with watch(replica) as watcher, closing(replica.connect(USER)) as connection:
        queries = TokenQueries(connection, watcher)
        replica.execute("STOP REPLICA SQL_THREAD")
        put(primary, 2, v="7")
        (change, *_), _ = read_until(reader, bool)
        ask = partial(queries.execute, SELECT, (2,), include_event_token=True, compare_event_token=change.token)
        answer = ask()
        assert not answer.fresher
        assert list(answer.rows) == []
        replica.execute("START REPLICA SQL_THREAD")
        replica.wait_for(primary.gtid)
        wait_for(watcher, primary.gtid)
        answer = ask()
        assert answer.fresher
        assert list(answer.rows) == [("7",)]
        assert change.token
        assert answer.token
        assert answer.token.position == change.token.position
        with pytest.raises(RelayError, match="another server"), closing(primary.connect(USER)) as other:
            TokenQueries(other, watcher).execute(SELECT, (2,), include_event_token=True)
        replica.promote()
        deadline = time.monotonic() + 20
        while watcher.token is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "role" in str(watcher.error)
    reader.close()


def test_a_query_always_reflects_the_token_it_came_with(primary: MySQL) -> None:
    """I6: also one that is sent while transactions commit: the binlog has them before queries see them."""
    primary.execute(f"REPLACE {DATABASE}.t VALUES (3, '0')")
    stop = threading.Event()
    uuid = primary.uuid
    ((_, _, before),) = [primary.gtid.rpartition("-")]

    def write() -> None:
        with closing(primary.connect()) as connection, connection.cursor() as cursor:
            number = 0
            while not stop.is_set():
                number += 1
                cursor.execute(f"UPDATE {DATABASE}.t SET v = {number} WHERE id = 3")

    with watch(primary) as watcher, closing(primary.connect(USER)) as connection:
        queries = TokenQueries(connection, watcher)
        writer = threading.Thread(target=write)
        writer.start()
        answers = [queries.execute(SELECT, (3,), include_event_token=True) for _ in range(1500)]
        stop.set()
        writer.join()
    last = 0
    for rows, token, _ in answers:
        assert token
        # One transaction each: its number says what the row has to be at least.
        reflected = int(token.position.rpartition("-")[2]) - int(before)
        assert token.position.startswith(f"MySQL56/{uuid}:1-")
        assert int(rows[0][0]) >= reflected >= last
        last = reflected
    assert last > 10
