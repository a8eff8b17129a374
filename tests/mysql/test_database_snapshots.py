"""The segments of a snapshot on real servers: where they read, what their rows may replace, and when they end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.change import Change
from relay.errors import RelayError, Unavailable
from relay.gtid import parse
from relay.mysql.connection import connect
from relay.mysql.database_snapshots import ChunkReader, shows
from relay.mysql_dialect.snapshot_times import LATENESS, MARGIN, lowest
from relay.records import Shard, ShardCheckpoint, ShardState, SnapshotPart
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.source import Opening
from tests.mysql.kept_binlogs import purge_binlogs
from tests.mysql.reading import NUMBERS, connected, session
from tests.mysql.segments import checkpoint_of, head, segment_of
from tests.mysql.shards import begin, open_at, read_to_head, source_of
from tests.reads import read_page, reason

pytestmark = pytest.mark.services

V = ", repeat('v', 90)"
X = ", repeat('x', 300000)"


def read_rows(reader: ChunkReader) -> list[Change]:
    """Read a segment to its end."""
    changes: list[Change] = []
    while True:
        page = read_page(reader)
        changes += page.changes
        if page.finished:
            reader.close()
            return changes


@pytest.fixture
def filled(mariadb: Any, unique: str) -> Iterator[Any]:
    """The ``execute`` of a database with a table ``item`` of 900 rows."""
    with session(mariadb, unique) as execute:
        execute("create table item (id int primary key, v varchar(100))")
        execute(f"insert item {NUMBERS.format(900, V)}")
        yield execute


def test_a_change_that_a_read_may_not_see_is_never_older_than_the_read(server: Any, unique: str) -> None:
    """I7: a statement may begin long before its commit, and its time is when it began."""
    with session(server, unique) as execute:
        execute("create table item (id int primary key)")
        source = source_of(unique, server)
        reader = open_at(source, begin(source)["-"])
        _, pages = read_to_head(reader)
        published = checkpoint_of(pages[-1])
        execute(f"set timestamp = {int(time.time()) - 1000}")
        execute("insert item values (1)")
        for opened in (reader, source.open(Opening(source.shards()[0], {}, published))):
            [change], _ = read_to_head(opened)
            opened.close()
            assert change.token is not None
            assert published.reached is not None
            assert change.token.timestamp >= lowest(published) == int(published.reached - LATENESS)
            assert source.snapshots.may_begin(lowest(published), {"-": published})
            assert not source.snapshots.may_begin(lowest(published) + 1, {"-": published})


def test_a_time_in_the_future_is_in_no_token(primary: Any, unique: str) -> None:
    """I7: later tokens have it at least, so until then no READ would replace a row that they have changed.

    A session may set its time, and a clock may have been wrong. On a server of its own: others start at a time.
    """
    with session(primary, unique) as execute:
        execute("create table item (id int primary key)")
        source = source_of(unique, primary)
        start = begin(source)["-"]
        for at, timestamp in enumerate(("default", int(time.time()) + 500_000, "default")):
            execute(f"set timestamp = {timestamp}")
            execute(f"insert item values ({at})")
        reader = open_at(source, start)
        changes, pages = read_to_head(reader)
        reader.close()
    assert [change.key for change in changes] == [{"id": 0}, {"id": 1}, {"id": 2}]
    latest = time.time() + LATENESS
    assert all(change.token is not None and change.token.timestamp <= latest for change in changes)
    assert lowest(checkpoint_of(pages[-1])) <= latest


def test_a_child_of_a_reshard_gives_no_earlier_token_than_its_parent_promised(mariadb: Any, unique: str) -> None:
    """I7: a row that was read from the parent may have changed in the child."""
    with session(mariadb, unique) as execute:
        execute("create table item (id int primary key)")
        source = source_of(unique, mariadb)
        parent = head(source)
        child = source.open(Opening(Shard("-"), begin(source)["-"], parents={"before": parent}))
        execute(f"set timestamp = {int(time.time()) - 1000}")
        execute("insert item values (1)")
        [change], _ = read_to_head(child)
        child.close()
        assert change.token is not None
        assert change.token.timestamp >= lowest(parent) > time.time() - 100


def test_a_child_of_a_reshard_ends_the_gap_of_a_table_that_its_parents_left_out(mariadb: Any, unique: str) -> None:
    """I9: its first row that has a key says so."""
    with session(mariadb, unique) as execute:
        execute("create table item (id int primary key)")
        source = source_of(unique, mariadb)
        start = begin(source)["-"]
        ended = {**start, "targets": {"-": start["gtid"]}}
        parents = {
            name: ShardCheckpoint(ShardState.FINISHED, {**ended, "left_out": tables})
            for name, tables in (("-80", []), ("80-", ["item"]))
        }
        child = source.open(Opening(Shard("-"), {"type": "reshard"}, parents=parents))
        execute("insert item values (1)")
        changes, pages = read_to_head(child)
        child.close()
    assert [change.key for change in changes] == [{"id": 1}]
    (gap,) = [page.gap for page in pages if page.gap is not None]
    assert gap.reason == "left out up to here, as it had no primary key: table item"


def test_a_server_that_lacks_what_is_published_is_not_read(kind: Any, primary: Any, replica: Any) -> None:
    """I7: a replica that is behind would undo changes."""
    with session(primary, "shop") as execute:
        execute("create table item (id int primary key)")
        execute("insert item values (1)")
        replica.wait_for(primary.gtid)
        source = source_of("shop", primary, replica)
        reader = segment_of(source, head(source), "item")
        assert len(read_rows(reader)) == 1
        replica.execute("stop replica")
        execute("insert item values (2)")
        published = head(source)
        reader = segment_of(source, published, "item")
        assert len(read_rows(reader)) == 2
        primary.kill()
        assert "does not show" in reason(segment_of(source, published, "item").read())
        primary.restart()


@pytest.mark.parametrize("kind", [MariaDB], indirect=True)
def test_a_server_shows_domains_that_are_not_in_its_binlogs_any_more(
    primary: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7, I10: 8 was idle since the server was copied, and 9 was deleted."""
    monkeypatch.setattr("relay.mysql.database_snapshots._CATCH_UP", 0.1)
    with closing(primary.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("SET gtid_domain_id = 9")
        cursor.execute("CREATE TABLE orders.u (id INT PRIMARY KEY)")
    purge_binlogs(primary)
    primary.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (9)")
    primary.execute(f"SET GLOBAL gtid_slave_pos = '{primary.gtid},8-1-7'")
    primary.execute("CREATE TABLE orders.v (id INT PRIMARY KEY)")
    with connected(primary) as server:
        logged, deleted = server.executed().position, f"9-{primary.server_id}"
        assert shows(server, parse(f"{logged},8-1-7,{deleted}-1"))
        for missing in ("8-1-8", "8-2-7", f"{deleted}-2", "7-1-1"):
            assert not shows(server, parse(f"{logged},{missing}")), missing


def test_what_a_replica_refuses_to_a_snapshot_is_read_from_the_next_server(primary: Any, replica: Any) -> None:
    """I10: it would be asked again for ever."""
    with session(primary, "shop") as execute:
        execute("create table item (id int primary key)")
        execute("insert item values (1)")
    replica.wait_for(primary.gtid)
    source = source_of("shop", replica, primary)
    published = head(source)
    with session(replica, "shop") as execute:
        execute("set sql_log_bin = 0")
        execute(f"revoke select on *.* from {USER}")
    assert [part.table for part in source.snapshots.measure({"-": published}).parts] == ["item"]
    reader = segment_of(source, published, "item")
    assert f"{replica.address}: {USER} may not read the table shop.item" in reason(reader.read())
    assert len(read_rows(reader)) == 1


def test_a_segment_resumes_after_its_last_row_and_has_the_table_of_now(mariadb: Any, unique: str, filled: Any) -> None:
    """I1, I3: a column that was added meanwhile is in the rows after it."""
    source = source_of(unique, mariadb)
    published = head(source)
    reader = segment_of(source, published, "item")
    first = read_page(reader)
    assert not first.finished
    filled("alter table item add column more int default 5")
    filled("delete from item where id = 700")
    second = read_page(reader)
    reader.close()
    [newer, *_] = second.changes
    assert newer.new is not None
    assert newer.new["more"] == 5
    assert second.tables[0] != first.tables[0]
    rest = read_rows(segment_of(source, published, "item", second.position))
    seen = [change.key and change.key["id"] for change in (*first.changes, *second.changes, *rest)]
    assert seen == [n for n in range(1, 901) if n != 700]
    assert second.finished == (not rest)


def test_a_table_that_was_dropped_ends_and_one_without_a_key_is_refused(mariadb: Any, unique: str, filled: Any) -> None:
    source = source_of(unique, mariadb)
    published = head(source)
    measured = source.snapshots.measure({"-": published})
    assert measured.parts == [SnapshotPart("-", "item")]
    reader = segment_of(source, published, "item")
    read_page(reader)
    filled("drop table item")
    assert "doesn't exist" in reason(reader.read())
    assert read_rows(reader) == []
    filled("create table loose (a int)")
    named = source_of(unique, mariadb, tables=["loose"], key=["a"])
    with pytest.raises(RelayError, match=rf"the table {unique}\.loose has no primary key"):
        named.snapshots.measure({"-": published})


def test_a_page_holds_a_megabyte_however_large_the_rows_are(mariadb: Any, unique: str, filled: Any) -> None:
    """I11"""
    filled("create table large (id int primary key, v longblob)")
    filled(f"insert large {NUMBERS.format(30, X)}")
    source = source_of(unique, mariadb)
    reader = segment_of(source, head(source), "large")
    pages = [read_page(reader)]
    while not pages[-1].finished:
        pages.append(read_page(reader))
    reader.close()
    sizes = [page.counts.size for page in pages]
    assert max(sizes) < 1.5 * (1 << 20)
    assert sum(sizes) > 30 * 300_000


def test_the_pace_of_a_snapshot_is_a_fifth_of_a_second_worth_of_rows(mariadb: Any, unique: str, filled: Any) -> None:
    source = source_of(unique, mariadb, snapshot_rows_per_second=500)
    reader = segment_of(source, head(source), "item")
    page = read_page(reader)
    reader.close()
    assert (len(page.changes), page.finished) == (100, False)
    assert page.pause == 0.2


def test_a_snapshot_rests_for_what_it_read_also_where_few_rows_are_wanted(
    mariadb: Any, unique: str, filled: Any
) -> None:
    """Else the engine would wait as for an idle shard, five times as long."""
    source = source_of(unique, mariadb, snapshot_rows_per_second=500, where={"item": {"id": 1}})
    reader = segment_of(source, head(source), "item")
    pages = [read_page(reader), read_page(reader)]
    reader.close()
    assert [(len(page.changes), page.pause) for page in pages] == [(1, 0.2), (0, 0.2)]


def test_the_time_of_a_read_is_neither_later_than_the_stream_nor_than_the_margin(
    mariadb: Any, unique: str, filled: Any
) -> None:
    """I7"""
    source = source_of(unique, mariadb)
    now = time.time()
    published = head(source)
    for reached, begun_as_of, expected in (
        (now, 1, now - MARGIN),
        (now - 500, 1, now - 530),
        (now - 500, 7, now - 530),
    ):
        old = ShardCheckpoint(ShardState.READING, published.position, reached=reached)
        page = read_page(segment_of(source, old, "item", as_of=begun_as_of))
        assert page.changes[0].snapshot is not None
        assert expected - 2 <= page.changes[0].snapshot.as_of <= expected + 2 + time.time() - now


def test_a_user_needs_no_more_than_the_binlog_reader(mariadb: MariaDB, unique: str, filled: Any) -> None:
    mariadb.execute(f"create user {unique} identified by %s", (PASSWORD,))
    server = connect(mariadb.host, mariadb.port, USER, PASSWORD)
    grant = server.grant.replace(f" {USER}", f" {unique}")
    server.close()
    mariadb.execute(grant)
    source = source_of(unique, mariadb, user=unique)
    reader = segment_of(source, head(source), "item")
    assert len(read_rows(reader)) == 900


@pytest.mark.parametrize("shards", [[], ["-80"], ["-40", "80-"], ["-", "-80", "80-"]])
def test_a_snapshot_waits_until_all_shards_are_read(mariadb: Any, unique: str, filled: Any, shards: list[str]) -> None:
    """I1: the rows of a shard whose first checkpoint another worker has yet to write would never be read."""
    source = source_of(unique, mariadb)
    with pytest.raises(Unavailable, match="not all shards are being read yet"):
        source.snapshots.measure({shard: ShardCheckpoint(ShardState.READING) for shard in shards})


def test_a_table_whose_primary_key_the_server_generates_and_hides_is_read(mysql: Any, unique: str) -> None:
    """I1: its rows are in the binlog, and information_schema may leave out the key."""
    shown = "show_gipk_in_create_table_and_information_schema"
    with session(mysql, unique) as execute:
        execute("set sql_generate_invisible_primary_key = on")
        execute("create table item (v int)")
        execute("insert item values (5), (7)")
        mysql.execute(f"set global {shown} = off")
        try:
            source = source_of(unique, mysql)
            published = head(source)
            parts = source.snapshots.measure({"-": published}).parts
            changes = read_rows(segment_of(source, published, "item"))
        finally:
            mysql.execute(f"set global {shown} = on")
    assert [part.table for part in parts] == ["item"]
    assert [change.new for change in changes] == [{"my_row_id": 1, "v": 5}, {"my_row_id": 2, "v": 7}]


def test_every_table_is_read_although_the_server_limits_the_rows_of_a_select(server: Any, unique: str) -> None:
    """I1: it would limit what information_schema says about columns and tables, too."""
    with session(server, unique) as execute:
        for table in ("item", "other"):
            execute(f"create table {table} (id int primary key, v int)")
            execute(f"insert {table} values (1, 2)")
        server.execute("set global sql_select_limit = 3")
        try:
            source = source_of(unique, server)
            published = head(source)
            parts = source.snapshots.measure({"-": published}).parts
            changes = read_rows(segment_of(source, published, "other"))
        finally:
            server.execute("set global sql_select_limit = default")
    assert sorted(part.table for part in parts) == ["item", "other"]
    assert [change.new for change in changes] == [{"id": 1, "v": 2}]


@pytest.fixture
def limited(server: Any, unique: str) -> Iterator[Callable[[str], None]]:
    """Run statements as root, where a user called as the database may read its binlog and the table ``item`` only."""
    with session(server, unique) as execute:
        execute("create table item (id int primary key)")
        execute("create table other (id int primary key)")
        execute("insert item values (1)")
        own = connect(server.host, server.port, USER, PASSWORD)
        replication = own.grant.replace("SELECT, ", "").replace(f" {USER}", f" {unique}")
        own.close()
        server.execute(f"create user {unique} identified by %s", (PASSWORD,))
        server.execute(replication)
        server.execute(f"grant select on {unique}.item to {unique}")
        yield server.execute


def test_a_table_that_a_user_may_no_longer_read_does_not_count_as_dropped(
    server: Any, unique: str, limited: Callable[[str], None]
) -> None:
    """I7: the end of the snapshot would delete all its rows from copies."""
    limited(f"grant select on {unique}.other to {unique}")
    source = source_of(unique, server, user=unique, tables=["item", "other"])
    published = head(source)
    limited(f"revoke select on {unique}.item from {unique}")
    said = rf"{unique} may not read the table {unique}\.item, .*GRANT SELECT ON `{unique}`"
    assert re.search(said, reason(segment_of(source, published, "item").read()))
    with pytest.raises(Unavailable, match=said):
        source.snapshots.measure({"-": published})
    limited(f"grant select on {unique}.item to {unique}")
    limited(f"drop table {unique}.item")
    assert [part.table for part in source.snapshots.measure({"-": published}).parts] == ["other"]
    assert read_rows(segment_of(source, published, "item")) == []


def test_a_user_who_may_not_read_all_tables_that_are_wanted_is_told_the_grant(
    server: Any, unique: str, limited: Callable[[str], None]
) -> None:
    """I1, I7: what it may not read is not in information_schema, as if it had been dropped."""
    with pytest.raises(Unavailable, match=rf"may not read all tables of {unique}, .*GRANT SELECT ON `{unique}`"):
        source_of(unique, server, user=unique)
    with pytest.raises(Unavailable, match=rf"may not read the table {unique}\.other"):
        source_of(unique, server, user=unique, tables=["item", "other"])
    with pytest.raises(Unavailable, match=rf"may not read all tables of {unique}"):
        source_of(unique, server, user=unique, where={"item": {"id": 1}})
    assert [table.table for table in source_of(unique, server, user=unique, tables=["item"]).tables()] == ["item"]
    limited(f"grant select on {unique}.* to {unique}")
    limited(f"drop table {unique}.other")
    for wanted in ({}, {"tables": ["item", "other"]}):
        assert [table.table for table in source_of(unique, server, user=unique, **wanted).tables()] == ["item"]


def test_a_user_who_may_read_some_columns_only_is_told_the_table_and_the_grant(
    server: Any, unique: str, limited: Callable[[str], None]
) -> None:
    """I1: information_schema leaves out the others. The server says "SHOW command denied"."""
    limited(f"alter table {unique}.other add v int")
    limited(f"grant select (id) on {unique}.other to {unique}")
    said = rf"may not read all columns of the table {unique}\.other: run `GRANT SELECT ON `{unique}`\.\* TO {unique}`"
    with pytest.raises(Unavailable, match=said):
        source_of(unique, server, user=unique, tables=["item", "other"])
    limited(f"grant select on {unique}.other to {unique}")
    source = source_of(unique, server, user=unique, tables=["item", "other"])
    published = head(source)
    limited(f"revoke select on {unique}.other from {unique}")
    limited(f"grant select (id) on {unique}.other to {unique}")
    assert re.search(said, reason(segment_of(source, published, "other").read()))
