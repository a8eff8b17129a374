"""Shards of MySQL servers, as far as they differ from those of MariaDB: roles, UUIDs, tags, group replication."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from relay.errors import RelayError
from relay.gtid import parse
from relay.mysql.binlog.files import Unlogged, executed_before
from relay.mysql.errors import BinlogPurged
from relay.mysql.queries import TokenQueries
from relay.mysql.reader import BinlogShardReader
from relay.mysql.roles import role_of
from relay.process.managed import free_port
from relay.services.mariadb import USER
from relay.source import Page
from relay.token import Order, compare
from tests import needs
from tests.mysql.group import require_group_replication
from tests.mysql.orders import DATABASE, SELECT, opened, put, wait_for, watch
from tests.mysql.reading import connected
from tests.mysql.server import MySQL
from tests.mysql.shards import begin, open_at, read_to_head, read_until, resume, short, source_of
from tests.reads import read_page, reason
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.parametrize("kind", [MySQL], indirect=True)]

GROUP = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"


def test_a_replica_has_a_lag_that_is_infinite_while_it_does_not_apply(primary: MySQL, replica: MySQL) -> None:
    with connected(replica) as server:
        role = role_of(server)
        assert (role.is_replica, role.is_read_only) == (True, True)
        assert role.lag < 30
        replica.execute("STOP REPLICA SQL_THREAD")
        assert role_of(server).lag == float("inf")
        replica.execute("START REPLICA SQL_THREAD")


def test_tokens_of_a_former_primary_compare_with_those_of_all_servers(primary: MySQL, replica: MySQL) -> None:
    """I5: what it wrote while it was the primary has its own UUID, and all servers have it."""
    before = {"gtid": f"MySQL56/{primary.gtid}"}
    put(primary, 1, 2)
    replica.wait_for(primary.gtid)
    replica.promote()
    primary.replicate_from(replica)
    put(replica, 3)
    primary.wait_for(replica.gtid)
    reader = open_at(source_of(DATABASE, primary, replica), before)
    changes, pages = read_until(reader, lambda found: len(found) == 3)
    assert isinstance(reader, BinlogShardReader)
    assert reader.server.address == primary.address
    assert changes[-1].token
    assert changes[-1].token.position == f"MySQL56/{replica.gtid}"
    assert "local" not in (pages[-1].position or {})
    for one, two in pairwise(changes):
        assert compare(one.token, two.token) is Order.OLDER
    with watch(primary) as watcher, closing(primary.connect(USER)) as connection:
        answer = TokenQueries(connection, watcher).execute(SELECT, (3,), compare_event_token=changes[-1].token)
        assert answer.fresher
        primary.execute("CREATE DATABASE scratch")
        put(replica, 4)
        primary.wait_for(replica.gtid)
        assert wait_for(watcher, replica.gtid).position == f"MySQL56/{replica.gtid}"
    reader.close()


def test_tables_that_are_emptied_or_dropped_are_truncated(primary: MySQL) -> None:
    """I1: also tables that the statement that creates them fills."""
    source = source_of(DATABASE, primary)
    reader = opened(source)
    put(primary, 1)
    primary.execute(f"TRUNCATE {DATABASE}.t")
    put(primary, 2)
    primary.execute(f"CREATE TABLE {DATABASE}.copied (PRIMARY KEY (id)) AS SELECT * FROM {DATABASE}.t")
    primary.execute(f"UPDATE {DATABASE}.copied SET id = 3")
    primary.execute(f"DROP TABLE {DATABASE}.copied")
    changes, _ = read_to_head(reader)
    assert short(changes) == [
        ("INSERT", 1, "a"),
        ("TRUNCATE", None, None),
        ("INSERT", 2, "a"),
        ("INSERT", 2, "a"),
        ("DELETE", 2, None),
        ("INSERT", 3, "a"),
        ("TRUNCATE", None, None),
    ]
    reader.close()


def test_tagged_gtids_end_the_reading(primary: MySQL) -> None:
    """I8: once one session has used `AUTOMATIC:tag`, no server of the shard can be read."""
    ((version,),) = primary.execute("SELECT @@version")
    if tuple(map(int, version.split("-")[0].split("."))) < (8, 3):
        needs.lacking("MYSQL", f"tags need MySQL 8.3 or later, and this is {version}")
    source = source_of(DATABASE, primary)
    reader = opened(source)
    put(primary, 1)
    read_until(reader, lambda found: len(found) == 1)
    with closing(primary.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET gtid_next = 'AUTOMATIC:mine'")
        cursor.execute(f"INSERT {DATABASE}.t VALUES (2, 'b')")
    with pytest.raises(RelayError, match="tag"):
        read_until(reader, lambda found: len(found) == 1, passing=True)
    reader.close()
    with pytest.raises(RelayError, match=r"tags \(mine\)"):
        source_of(DATABASE, primary)


def test_group_replication_is_read_and_waited_for(kind: type[MySQL]) -> None:
    """I9: a member may have what it lacks in its queue, so that is not a loss."""
    here = f"127.0.0.1:{free_port()}"
    options: dict[str, str | int] = {"plugin-load-add": "group_replication.so", "performance-schema": 1}
    options |= {"loose-group-replication-group-name": GROUP, "loose-group-replication-start-on-boot": 0}
    options |= {"loose-group-replication-local-address": here, "loose-group-replication-group-seeds": here}
    with kind(options=options) as server:
        require_group_replication(server)
        server.execute("SET GLOBAL group_replication_bootstrap_group = ON")
        server.execute("START GROUP_REPLICATION")
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v VARCHAR(100))")
        source = source_of(DATABASE, server)
        reader = opened(source)
        put(server, 1)
        changes, _ = read_until(reader, lambda found: len(found) == 1)
        assert changes[0].token
        assert GROUP in changes[0].token.position
        reader.close()
        ahead = resume(source, {"gtid": f"MySQL56/{server.gtid},{server.uuid}:999"})
        for _ in range(4):
            assert "is behind" in reason(ahead.read())
            time.sleep(0.5)
        ahead.close()


def test_transactions_that_are_added_to_gtid_purged_are_a_gap_also_while_the_server_is_read(
    primary: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9, I10: such as those of a dump that is loaded without a binlog. The server never says that it lacks them."""
    monkeypatch.setattr("relay.mysql.head._OVERDUE", 0.5)
    reader = opened(source_of(DATABASE, primary))
    put(primary, 1)
    read_to_head(reader)
    loaded = f"{GROUP}:1-7"
    with closing(primary.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"INSERT {DATABASE}.t VALUES (2, 'b')")
        cursor.execute(f"SET GLOBAL gtid_purged = '+{loaded}'")
    pages: list[Page] = []

    def has_gap() -> bool:
        pages.append(read_page(reader))
        return pages[-1].gap is not None

    wait_until(has_gap, 60)
    gap = pages[-1].gap
    assert gap is not None
    assert gap.reason == "purged"
    assert gap.end is not None
    assert parse(gap.end["gtid"]) == parse(f"MySQL56/{primary.gtid}")
    put(primary, 3)
    changes, _ = read_to_head(reader)
    assert short(changes) == [("INSERT", 3, "a")]
    reader.close()


def test_what_follows_a_reset_after_which_the_server_got_its_executed_set_back_is_read(
    primary: MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: nothing that was executed is missing then, but the connection from before stays open and silent."""
    monkeypatch.setattr("relay.mysql.head._OVERDUE", 0.5)
    monkeypatch.setattr("relay.mysql.current_server._ROLE_EVERY", 600.0)  # so it does not ask in between
    reader = opened(source_of(DATABASE, primary))
    put(primary, 1)
    read_to_head(reader)
    executed = primary.gtid
    primary.execute("RESET BINARY LOGS AND GTIDS")
    primary.execute(f"SET GLOBAL gtid_purged = '{executed}'")
    put(primary, 2)
    changes, _ = read_until(reader, lambda found: len(found) == 1, passing=True)
    assert short(changes) == [("INSERT", 2, "a")]
    reader.close()


def test_a_time_is_found_although_transactions_were_added_to_gtid_purged(primary: MySQL) -> None:
    """I1: a server that was set up from a dump has executed what none of its binlogs has, and no stream starts without.

    No binlog says when that was, and the transactions may be newer than a time before all binlogs.
    """
    put(primary, 1)
    before = parse(primary.gtid)
    primary.execute(f"SET GLOBAL gtid_purged = '+{GROUP}:1-7'")
    primary.execute("FLUSH BINARY LOGS")
    later = time.time() + 60
    with connected(primary) as server:
        with pytest.raises(Unlogged) as raised:
            executed_before(server, later)
        assert raised.value.executed == before | parse(f"{GROUP}:1-7")
        with pytest.raises(BinlogPurged):
            executed_before(server, time.time() - 86400)
    start = datetime.fromtimestamp(later, UTC).isoformat()
    assert begin(source_of(DATABASE, primary, start=start)) == {"-": {"gtid": f"MySQL56/{primary.gtid}"}}


def test_what_waits_for_semi_synchronous_replicas_is_not_lost(kind: type[MySQL]) -> None:
    """I3, I9: the binlog has it, and the executed set does not yet."""
    options: dict[str, str | int] = {"plugin-load-add": "semisync_source.so", "sync-binlog": 1}
    with kind(options=options | {"loose-rpl-semi-sync-source-timeout": 3_600_000}) as server:
        if not server.execute("SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_source_enabled'"):
            needs.lacking("MYSQL", "this MySQL has no semi-synchronous replication")
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v VARCHAR(100))")
        source = source_of(DATABASE, server)
        reader = opened(source)
        server.execute("SET GLOBAL rpl_semi_sync_source_enabled = ON")
        writing = threading.Thread(target=put, args=(server, 1))
        writing.start()
        changes, pages = read_until(reader, lambda found: len(found) == 1)
        reader.close()
        again = resume(source, pages[-1].position or {})
        waits = []
        for _ in range(8):
            waits.append(reason(again.read()))
            time.sleep(0.3)
        server.execute("SET GLOBAL rpl_semi_sync_source_enabled = OFF")
        writing.join()
        put(server, 2)
        after, _ = read_until(again, lambda found: len(found) == 1, passing=True)
        again.close()
    assert all("waits for its replicas to acknowledge what was read" in each for each in waits)
    assert short([*changes, *after]) == [("INSERT", 1, "a"), ("INSERT", 2, "a")]
