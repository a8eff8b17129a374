"""Where reading begins: at a time, a position, or the head."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any

import pytest

from relay.errors import ConfigError, RelayError, Unavailable
from relay.gtid import parse
from relay.mysql.binlog.files import executed_before
from relay.mysql.errors import BinlogPurged
from relay.mysql.kind import KIND
from relay.mysql.source import MySQLSource
from relay.records import Shard, ShardCheckpoint, ShardState
from relay.services.mariadb import MariaDB
from relay.source import Opening, Page
from relay.stream.progress import resume_timestamp
from tests.listening import NOBODY
from tests.mysql.encoder import event, format_description, gtid, previous_gtids, query, rotate
from tests.mysql.kept_binlogs import purge_binlogs
from tests.mysql.reading import connected, session
from tests.mysql.scripted import SETTINGS, Scripted, running
from tests.mysql.scripted_binlogs import GTID, HEAD, QUERY, XID, A
from tests.mysql.shards import begin, config, open_at, read_to_head, short, source_of

DATABASE = "orders"

services = pytest.mark.services


@pytest.fixture(scope="module")
def history() -> Iterator[tuple[MariaDB, list[tuple[int, str]]]]:
    """A server with transactions in several binlogs: (time, GTID position before it) of each."""
    with MariaDB() as server:
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v INT)")
        known = []
        with server.connect() as connection, connection.cursor() as cursor:
            for number in range(30):
                if number % 10 == 0:
                    # Files, and the transactions of each, are of different seconds.
                    time.sleep(1.1)
                    cursor.execute("FLUSH BINARY LOGS")
                    time.sleep(1.1)
                # Some are of before their neighbours, as long transactions are.
                at = int(time.time()) - (2 if number % 7 == 3 else 0)
                known.append((at, server.gtid))
                cursor.execute(f"SET timestamp = {at}")
                cursor.execute(f"INSERT {DATABASE}.t VALUES ({number}, {number})")
        yield server, known


@services
def test_the_position_at_a_time_is_just_before_its_first_transaction(
    history: tuple[MariaDB, list[tuple[int, str]]],
) -> None:
    """I1: never after it."""
    server, known = history
    connection = source_of(DATABASE, server)._connect(server.address)
    for wanted in range(known[0][0] + 1, known[-1][0] + 5):
        found = executed_before(connection, wanted + 0.5)
        expected = next((before for at, before in known if at >= wanted), server.gtid)
        assert str(found) == expected
    connection.close()


@services
def test_the_position_at_a_time_is_found_on_both_flavours(server: Any, unique: str) -> None:
    """I1: before the first transaction of that second."""
    with session(server, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY)")
        execute("INSERT INTO t VALUES (1)")
        execute("DO SLEEP(1.1)")
        server.execute("FLUSH BINARY LOGS")
        before = parse(server.gtid)
        ((now,),) = execute("SELECT UNIX_TIMESTAMP(NOW())")
        execute("INSERT INTO t VALUES (2)")
        with connected(server) as connection:
            assert executed_before(connection, now) == before
            assert not executed_before(connection, now - 86400).contains(before)
            assert executed_before(connection, now + 86400) == parse(server.gtid)


@services
def test_a_reader_that_starts_at_a_time_reads_everything_since(history: tuple[MariaDB, list[tuple[int, str]]]) -> None:
    server, known = history
    start = datetime.fromtimestamp(known[20][0], UTC).isoformat()
    source = source_of(DATABASE, server, start=start)
    reader = open_at(source, begin(source)["-"])
    changes, _ = read_to_head(reader)
    reader.close()
    assert short(changes)[0] == ("INSERT", 20, 20)
    assert len(changes) == 10


@services
def test_a_time_before_all_binlogs_is_refused_with_the_oldest_of_each_server() -> None:
    with MariaDB() as server:
        server.execute(f"CREATE DATABASE {DATABASE}")
        begun = time.time()
        assert str(executed_before(source_of(DATABASE, server)._connect(server.address), begun - 86_400)) == ""
        purge_binlogs(server)
        connection = source_of(DATABASE, server)._connect(server.address)
        with pytest.raises(BinlogPurged):
            executed_before(connection, begun - 86_400)
        connection.close()
        source = source_of(DATABASE, server, start="-1d")
        with pytest.raises(
            Unavailable, match=rf"shard - cannot be read from .*the binlogs of {server.address} begin at"
        ):
            begin(source)


@services
def test_a_statement_that_runs_for_seconds_in_an_idle_shard_is_not_before_the_time_of_a_restart(
    mariadb: MariaDB, unique: str
) -> None:
    """I1: its transaction has the time when it began, and meanwhile the shard progresses by heartbeats."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.t (id INT PRIMARY KEY)")
    source = source_of(unique, mariadb)
    reader = open_at(source, begin(source)["-"])
    before = parse(mariadb.gtid)
    statement = f"INSERT {unique}.t SELECT 1 FROM (SELECT GET_LOCK('{unique}', 600)) AS slow"
    thread = threading.Thread(target=mariadb.execute, args=(statement,))
    pages: list[Page] = []
    with closing(mariadb.connect()) as holding, holding.cursor() as cursor:
        cursor.execute(f"SELECT GET_LOCK('{unique}', 0)")
        began = time.time()
        thread.start()
        while not pages or (pages[-1].progress or 0.0) < began + 3 or pages[-1].reached is None:
            page = reader.read()
            assert isinstance(page, Page)
            if page.progress is not None and page.reached is not None:
                pages.append(page)
    thread.join()
    reader.close()
    checkpoint = ShardCheckpoint(
        ShardState.READING, pages[-1].position, progress=pages[-1].progress, reached=pages[-1].reached
    )
    assert checkpoint.position == {"gtid": before.position}, "the statement had not ended"
    with connected(mariadb) as connection:
        assert before.contains(executed_before(connection, resume_timestamp({"-": checkpoint})))


@pytest.mark.parametrize("start", ["current", "2023-11-14T22:13:20Z"])
def test_a_server_that_does_not_log_what_it_replicates_says_nothing_about_where_reading_begins(start: str) -> None:
    """I1: all that it has executed counts as purged, so it would seem to be older than any time."""
    settings = {**SETTINGS, "read_only": "ON", "log_replica_updates": "OFF"}
    with running(Scripted(HEAD, settings, executed=f"{A}:1-12")) as replica:
        source = MySQLSource(config("shop", {"-": [f"127.0.0.1:{replica.port}"]}, start=start))
        with pytest.raises(Unavailable, match="it does not log what it replicates"):
            source.starting_points(source.shards())


def with_purged(last: int, *, logged: bool = False) -> Scripted:
    """Return a server of transactions 1 to 12, the last three of different times, with those up to ``last`` purged.

    ``logged``: whether it had those in its binlogs. Otherwise they were loaded from a dump.
    """
    events = [rotate("binlog.000001"), format_description()]
    events.append(event(35, previous_gtids(*[(A, 1, last)] if logged else []), 0))
    for number in range(last + 1, 13):
        at = 1_700_000_000 + 100 * (number - 10)
        events += [event(GTID, gtid(A, number), at), event(QUERY, query(b"BEGIN"), at), event(XID, bytes(8), at)]
    return Scripted(events, executed=f"{A}:1-12", purged=f"{A}:1-{last}")


@pytest.mark.parametrize(
    ("servers", "expected", "is_certain"),
    [
        ([with_purged(9, logged=True)], 10, True),
        ([with_purged(11), with_purged(9, logged=True)], 10, True),
        ([with_purged(11), with_purged(9)], 10, False),
        ([with_purged(11)], 11, False),
    ],
)
def test_the_position_at_a_time_is_taken_from_a_server_that_has_logged_what_came_before(
    servers: list[Scripted],
    expected: int,
    is_certain: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I1: transactions that were loaded from a dump may be newer than the time. Then another server has them."""
    monkeypatch.setattr(MySQLSource, "_verify", lambda *_: None)
    with ExitStack() as stack:
        addresses = [f"127.0.0.1:{stack.enter_context(running(server)).port}" for server in servers]
        source = MySQLSource(config("shop", {"-": addresses}, start="2023-11-14T22:14:00Z"))
        assert source.starting_points(source.shards()).shards == {"-": {"gtid": f"MySQL56/{A}:1-{expected}"}}
        assert ("as if transactions without a known time were older" in caplog.text) is not is_certain


def test_a_time_is_refused_if_a_server_that_does_not_answer_may_have_what_was_loaded_into_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I1."""
    monkeypatch.setattr(MySQLSource, "_verify", lambda *_: None)
    with running(with_purged(11)) as server:
        shards = {"-": [f"127.0.0.1:{server.port}", NOBODY]}
        source = MySQLSource(config("shop", shards, start="2023-11-14T22:14:00Z"))
        with pytest.raises(Unavailable, match=rf"{server.port} does not know the times of .*; {NOBODY}"):
            source.starting_points(source.shards())


@pytest.mark.parametrize("logged", [True, False])
def test_a_time_before_the_oldest_binlog_is_refused_also_if_what_came_before_was_loaded(
    logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1."""
    monkeypatch.setattr(MySQLSource, "_verify", lambda *_: None)
    with running(with_purged(9, logged=logged)) as server:
        source = MySQLSource(config("shop", {"-": [f"127.0.0.1:{server.port}"]}, start="2020-01-01T00:00:00Z"))
        with pytest.raises(Unavailable, match=f"the binlogs of 127.0.0.1:{server.port} begin at 2020-09-13"):
            source.starting_points(source.shards())


@services
def test_the_start_at_current_is_a_position(mariadb: MariaDB, unique: str) -> None:
    """I4."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    assert begin(source_of(unique, mariadb)) == {"-": {"gtid": f"MariaDB/{mariadb.gtid}"}}


@services
def test_missing_databases_tables_passwords_and_servers_are_named(mariadb: MariaDB, unique: str) -> None:
    with pytest.raises(Unavailable, match=f"{mariadb.address} has no database {unique}"):
        source_of(unique, mariadb)
    mariadb.execute(f"CREATE DATABASE {unique}")
    with pytest.raises(RelayError, match=f"{unique} has no table nowhere"):
        begin(source_of(unique, mariadb, tables=["nowhere"]))
    with pytest.raises(Unavailable, match="Access denied"):
        source_of(unique, mariadb, password="wrong")
    with pytest.raises(Unavailable, match=r"no server of shard - can be read: .*127.0.0.1:1\b"):
        MySQLSource(config(unique, {"-": ["127.0.0.1:1"]})).connect()
    mariadb.execute(f"CREATE TABLE {unique}.b (id INT PRIMARY KEY)")
    mariadb.execute(f"CREATE TABLE {unique}.a (id INT PRIMARY KEY)")
    assert KIND.find_tables(config(unique, {"-": [mariadb.address]})) == ["a", "b"]


@services
def test_a_server_with_wrong_settings_is_refused_with_the_fix(unique: str) -> None:
    with MariaDB(options={"binlog-row-metadata": "MINIMAL"}) as server:
        server.execute(f"CREATE DATABASE {unique}")
        with pytest.raises(Unavailable, match="SET GLOBAL binlog_row_metadata = 'FULL'"):
            source_of(unique, server)


def test_a_configured_start_needs_a_position_for_every_shard() -> None:
    shards = {"-80": ["db1:3306"], "80-": ["db2:3306"]}
    gtids = {"-80": "MariaDB/0-1-5", "80-": "MariaDB/0-2-7"}
    source = MySQLSource(config("orders", shards, start={"gtid": gtids}))
    assert source.starting_points(source.shards()).shards == {
        "-80": {"gtid": "MariaDB/0-1-5"},
        "80-": {"gtid": "MariaDB/0-2-7"},
    }
    for wrong, message in [
        ({"-80": gtids["-80"]}, "names the shards -80, but key range - has -80, 80-: name each of these"),
        ({**gtids, "-": "MariaDB/0-1-1"}, "names the shards -, -80, 80-, but key range - has -80, 80-"),
    ]:
        source = MySQLSource(config("orders", shards, start={"gtid": wrong}))
        with pytest.raises(ConfigError, match=message):
            source.starting_points(source.shards())


def test_a_table_that_does_not_exist_is_refused_where_reading_begins() -> None:
    """I1: it would never be relayed."""
    start = {"gtid": {"-": "MariaDB/0-1-5"}}
    source = MySQLSource(config("orders", {"-": ["db1:3306"]}, start=start, tables=["lost"]))
    with pytest.raises(Unavailable, match="the database orders has no table lost"):
        source.starting_points(source.shards())


def test_a_source_has_one_database_and_shards_that_cover_its_key_range() -> None:
    source = MySQLSource(config("orders", {"-80": ["db1:3306"], "80-": ["db2:3306"]}))
    with pytest.raises(ConfigError, match="checkpoints belong to the database other"):
        source.connect("other")
    with pytest.raises(ConfigError, match="no shard holds 80-"):
        MySQLSource(config("orders", {"-80": ["db1:3306"]}))
    before = source.config_hash()
    with pytest.raises(ConfigError, match="source with another name"):
        source.reload(config("other", {"-": ["db1:3306"]}))
    with pytest.raises(ConfigError, match="no shard holds 80-"):
        source.reload(config("orders", {"-80": ["db1:3306"]}))
    source.reload(config("orders", {"-80": ["db3:3306"], "80-": ["db2:3306"], "-": ["db4:3306"]}))
    assert source.config_hash() == before
    assert [shard.id for shard in source.shards()] == ["-80", "80-"]


def test_a_shard_that_a_reload_removes_while_it_is_asked_for_has_no_servers() -> None:
    """Readers' threads ask for the targets of a reshard, which the worker's thread may remove."""
    source = MySQLSource(config("orders", {"-": ["db1:3306"], "-80": ["db2:3306"], "80-": ["db3:3306"]}))
    source.reload(config("orders", {"-": ["db1:3306"]}))
    with pytest.raises(Unavailable, match="no server of shard -80 can be read: `shards` lists none"):
        source._first_server("-80")


def test_a_shard_that_is_no_longer_listed_cannot_be_opened() -> None:
    """I1: it was not read to its end."""
    source = MySQLSource(config("orders", {"-80": ["db1:3306"], "80-": ["db2:3306"]}))
    with pytest.raises(RelayError, match="shard - was not read to its end"):
        source.open(Opening(Shard("-"), {"gtid": "MariaDB/0-1-1"}))


@services
def test_a_table_with_versions_is_refused_where_they_would_be_taken_for_one_row(
    mariadb: MariaDB, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I8: an UPDATE also inserts the old version, behind the new one, and a DELETE inserts it again."""
    declared = "s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, e TIMESTAMP(6) GENERATED ALWAYS AS ROW END"
    versions = "WITH SYSTEM VERSIONING"
    with session(mariadb, unique) as execute:
        execute(f"CREATE TABLE t (id INT PRIMARY KEY, v INT, {declared}, PERIOD FOR SYSTEM_TIME (s, e)) {versions}")
        execute(f"CREATE TABLE hidden (id INT PRIMARY KEY, v INT) {versions}")
        for key, message in (
            ({"t": ["id"]}, "treat them all as the same row: remove this `key`, or add e to it"),
            ({"hidden": ["id"]}, "treat them all as the same row: remove this `key`$"),
        ):
            with pytest.raises(RelayError, match=message):
                source_of(unique, mariadb, key=key)
        with pytest.raises(
            ConfigError, match=r"the table hidden is system-versioned.*declare `PERIOD FOR SYSTEM_TIME`"
        ):
            source_of(unique, mariadb, tables=["hidden"])
        source_of(unique, mariadb)
        assert f"{unique}.hidden are not relayed: the table is system-versioned" in caplog.text
        source = source_of(unique, mariadb, tables=["t"], key={"t": ["id", "e"]})
        with closing(open_at(source, begin(source)["-"])) as reader:
            execute("INSERT t (id, v) VALUES (1, 1)")
            execute("UPDATE t SET v = 2")
            changes, _ = read_to_head(reader)
    assert short(changes) == [("INSERT", 1, 1), ("UPDATE", 1, 2), ("INSERT", 1, 1)]
    assert changes[0].key == changes[1].key != changes[2].key
