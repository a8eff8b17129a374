"""A database through the complete relay, to Kafka."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relay.cli import app
from relay.config import load
from relay.engine.relaying import run
from relay.errors import RelayError
from relay.gtid import parse
from relay.kafka.publisher import Aborted
from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.faults.harness import Relay
from tests.kafka.limited_topics import create, limit
from tests.mysql.kept_binlogs import purge_binlogs
from tests.mysql.relayed import Relayed
from tests.mysql.resharding import VITESS, Load, Replication, all_changes
from tests.mysql.server import MySQL
from tests.waiting import wait_until

pytestmark = pytest.mark.services

PARTED = "PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (100), PARTITION high VALUES LESS THAN MAXVALUE)"


OTHER_SERVER = pytest.mark.faults(
    "another server: only the reader knows it, which test_reader.py and test_failover.py try on both"
)
NAMES = ["old orders", "old_x0020_orders", "表", "#%?é'", "$1,000"]


@pytest.mark.parametrize("server", ["mariadb", pytest.param("mysql", marks=OTHER_SERVER)])
def test_every_committed_change_is_on_the_topic_once_also_of_tables_of_any_name_that_appear(
    kafka: Any, server: str, unique: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """I1, I3, I12: Kafka allows few characters in the name of a topic, and a server nearly all in that of a table."""
    database = request.getfixturevalue(server)
    database.execute(f"CREATE DATABASE {unique}")
    database.execute(f"CREATE TABLE {unique}.item (id INT PRIMARY KEY, price DECIMAL(10,2))")
    relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps({"-": [database.address]}))
    relayed.command("check", str(relayed.path))
    relayed.run()  # plans, and begins at the head
    for number in range(20):
        database.execute(f"INSERT {unique}.item VALUES ({number}, {number}.5)")
        if number == 10:
            relayed.run()
    database.execute(f"ALTER TABLE {unique}.item ADD COLUMN name VARCHAR(20)")
    database.execute(f"UPDATE {unique}.item SET name = 'n' WHERE id < 3")
    for number, name in enumerate(NAMES):
        database.execute(f"CREATE TABLE {unique}.`{name}` (id INT PRIMARY KEY)")
        database.execute(f"INSERT {unique}.`{name}` VALUES ({number})")
    relayed.run()
    relayed.run()
    changes = relayed.changes("item")
    assert len(changes) == 23
    assert sorted(change["key"]["id"] for change in changes if change["operation"] == "INSERT") == list(range(20))
    updates = [change["new"] for change in changes if change["operation"] == "UPDATE"]
    assert [row["name"] for row in updates] == ["n"] * 3
    found = {name: [change["key"] for change in relayed.changes(name)] for name in NAMES}
    assert found == {name: [{"id": number}] for number, name in enumerate(NAMES)}
    status = json.loads(relayed.command("status", str(relayed.path), "--json").stdout)
    assert parse(database.gtid).position in json.dumps(status)


def test_a_table_whose_topic_is_not_its_own_is_left_out_and_the_others_go_on_also_after_a_restart(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I8, I12: Kafka takes `a.b` and `a_b` for one; the table that was relayed before keeps its topic."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.a_b (id INT PRIMARY KEY)")
    relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps({"-": [mariadb.address]}))
    relayed.run()
    taken = ["a.b", "gaps", "ddl", "checkpoints"]
    for name in [*taken, "item"]:
        mariadb.execute(f"CREATE TABLE {unique}.`{name}` (id INT PRIMARY KEY)")
        mariadb.execute(f"INSERT {unique}.`{name}` VALUES (1)")
        mariadb.execute(f"REPLACE {unique}.a_b VALUES ({ord(name[0])})")
    for _ in range(2):
        caplog.clear()
        relayed.run()
        for name in taken:
            said = f"changes of {unique}.{name} are not relayed: the table cannot be published: its topic"
            assert said in caplog.text, name
    mariadb.execute(f"INSERT {unique}.a_b VALUES (1)")
    relayed.run()
    assert [change["key"]["id"] for change in relayed.changes("item")] == [1]
    assert {change["key"]["id"] for change in relayed.changes("a_b")} == {
        1,
        *(ord(name[0]) for name in [*taken, "item"]),
    }
    checked = relayed.command("check", str(relayed.path)).output
    assert "table gaps" in checked
    assert "one of the relay's own" in checked
    relayed.path.write_text(
        relayed.path.read_text().replace("type: mysql,", "type: mysql, tables: [a_b, a.b, ddl, gaps],")
    )
    refused = relayed.run(code=2).stderr
    assert all(f"'{unique}.{name}' of table '{name}' collides" in refused for name in ("a.b", "ddl", "gaps"))


def test_what_comes_before_a_refusal_is_published_once_even_if_its_first_commits_are_aborted(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path
) -> None:
    """I1, I3, I8, I12: even if all of it was waiting when the relay started, and however often it is started."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.item (id INT PRIMARY KEY) {PARTED}")
    relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps({"-": [mariadb.address]}))
    relayed.run()
    for number in range(10):
        mariadb.execute(f"INSERT {unique}.item VALUES ({number})")
    mariadb.execute(f"ALTER TABLE {unique}.item DROP PARTITION low")
    aborted: list[str] = []

    def probe(step: str) -> None:
        if step == "before_commit" and len(aborted) < 3:
            aborted.append(step)
            raise Aborted("by the test")

    with pytest.raises(RelayError, match="DROP PARTITION"):
        run(load(relayed.path), until_caught_up=True, probe=probe)
    assert len(aborted) == 3
    assert sorted(change["key"]["id"] for change in relayed.changes("item")) == list(range(10))
    refused = relayed.run(code=1)
    assert "DROP PARTITION" in refused.stderr
    assert sorted(change["key"]["id"] for change in relayed.changes("item")) == list(range(10))


@pytest.mark.parametrize("tables", ["", ", tables: [item, empty, other]"], ids=["all tables", "named tables"])
def test_tables_that_are_dropped_while_the_relay_is_down_are_relayed_to_their_ends(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path, tables: str
) -> None:
    """I1, I7: rows are read as the binlog describes them, and each ends with a TRUNCATE, or a copy keeps its rows.

    Before its DROP, the binlog has rows of ``item``, and nothing of ``empty``.
    """
    mariadb.execute(f"CREATE DATABASE {unique}")
    for name in ("item", "empty", "other"):
        mariadb.execute(f"CREATE TABLE {unique}.{name} (a VARCHAR(9), b INT, v DECIMAL(9,2), PRIMARY KEY (b, a))")
    relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps({"-": [mariadb.address]}))
    relayed.path.write_text(relayed.path.read_text().replace("}\n", f"{tables}}}\n").replace(f"2{tables}", "2", 1))
    relayed.run()
    for name in ("item", "empty"):
        mariadb.execute(f"INSERT {unique}.{name} VALUES ('a', 0, 1.50)")
    relayed.run()
    mariadb.execute(f"INSERT {unique}.item VALUES ('a', 1, 2.50)")
    for name in ("item", "empty"):
        mariadb.execute(f"DROP TABLE {unique}.{name}")
    mariadb.execute(f"INSERT {unique}.other VALUES ('a', 1, 1.50)")
    for _ in range(2):
        relayed.run()
    for name, rows in (("item", 2), ("empty", 1)):
        found = [(change["operation"], change["key"] and change["key"]["b"]) for change in relayed.changes(name)]
        ends = [("TRUNCATE", None)] * 2  # one a partition
        assert found == [("INSERT", number) for number in range(rows)] + ends, name
    assert [change["operation"] for change in relayed.changes("other")] == ["INSERT"]
    if tables:
        checked = relayed.command("check", str(relayed.path), code=3)
        assert "has no table item" in checked.output
    mariadb.execute(f"CREATE TABLE {unique}.item (b INT, a VARCHAR(9), w DOUBLE, PRIMARY KEY (b, a))")
    mariadb.execute(f"INSERT {unique}.item VALUES (7, 'a', 0.5)")
    relayed.run()
    assert {"b": 7, "a": "a", "w": 0.5} in [change["new"] for change in relayed.changes("item")]


def test_a_long_position_beside_a_large_row_makes_a_stub_and_never_a_record_that_the_broker_refuses(
    kafka: Any, unique: str, tmp_path: Path
) -> None:
    """I1, I10: the position is in the value and in a header of each record, and in each checkpoint."""
    largest, chance = 100_000, random.Random(1)
    with MariaDB() as server:
        server.execute(f"CREATE DATABASE {unique}")
        server.execute(f"CREATE TABLE {unique}.item (id INT PRIMARY KEY, v LONGTEXT)")
        with closing(server.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            for domain in range(1, 2000):
                cursor.execute(f"SET gtid_domain_id = {domain}")
                cursor.execute(f"INSERT {unique}.item VALUES (-{domain}, '')")
        assert len(server.gtid) > 20_000
        relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps({"-": [server.address]}))
        plain = relayed.path.read_text().replace("partitions: 2", "partitions: 2, producer: {compression.type: none}")
        relayed.path.write_text(plain)
        create(kafka.bootstrap_servers, f"{unique}.item", 2, max_message_bytes=str(largest))
        create(kafka.bootstrap_servers, f"{unique}.checkpoints", 64, cleanup_policy="compact", max_message_bytes="9000")
        refused = relayed.run(code=1)
        assert f"topic {unique}.checkpoints allows 9000: raise" in refused.stderr
        limit(kafka.bootstrap_servers, f"{unique}.checkpoints", 1 << 20)
        relayed.run()
        for number in range(1, 31):  # the limit is in the middle, wherever exactly
            text = chance.randbytes(largest).hex()[: largest - 3000 * number]
            server.execute(f"INSERT {unique}.item VALUES ({number}, %s)", (text,))
        relayed.run()
        letters = json.loads(relayed.command("dead-letters", "list", str(relayed.path), "--json").stdout)
    found = [(change["key"]["id"], change["images"]) for change in relayed.changes("item")]
    assert sorted(number for number, _ in found) == list(range(1, 31))
    stubs = [number for number, images in found if images == "OMITTED"]
    assert len(stubs) in range(1, 30)
    assert max(stubs) < min(number for number, images in found if images != "OMITTED")
    assert [letter["key"]["id"] for letter in letters] == sorted(stubs)


@pytest.mark.parametrize("kind", [MariaDB, pytest.param(MySQL, marks=OTHER_SERVER)])
def test_a_purged_binlog_stops_the_relay_with_the_same_gap_until_it_is_accepted(
    kafka: Any, unique: str, tmp_path: Path, kind: type[MariaDB | MySQL]
) -> None:
    """I9: transactions of other databases have moved the relay past its last checkpoint."""
    with kind() as server:
        server.execute(f"CREATE DATABASE {unique}")
        server.execute(f"CREATE TABLE {unique}.item (id INT PRIMARY KEY, v INT)")
        server.execute("CREATE DATABASE elsewhere")
        server.execute("CREATE TABLE elsewhere.t (id INT PRIMARY KEY)")
        relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps({"-": [server.address]}))
        relayed.run()
        server.execute(f"INSERT {unique}.item VALUES (1, 1)")
        relayed.run()
        server.execute(f"INSERT {unique}.item VALUES (2, 2)")
        server.execute("INSERT elsewhere.t VALUES (1)")
        purge_binlogs(server)
        server.execute(f"INSERT {unique}.item VALUES (3, 3)")
        path = str(relayed.path)

        def gap() -> dict[str, Any]:
            (found,) = json.loads(relayed.command("gaps", "list", path, "--json").stdout)
            assert isinstance(found, dict)
            return found

        relayed.run(code=1)
        first = gap()
        assert (first["state"], first["reason"]) == ("pending", "purged")
        relayed.run(code=1)
        assert gap()["id"] == first["id"]
        relayed.command("gaps", "accept", path, first["id"], "skip")
        relayed.run()
        assert (gap()["id"], gap()["state"]) == (first["id"], "published")
        assert [change["key"]["id"] for change in relayed.changes("item")] in ([1, 3], [3, 1])


def test_a_running_relay_follows_a_reshard_when_its_config_is_reloaded(kafka: Any, unique: str, tmp_path: Path) -> None:
    """I1, I2, I3: under writes before, during and after, to one shard first, then to the two that replace it."""
    with MariaDB() as origin, MariaDB() as low, MariaDB() as high:
        new = {"-80": low, "80-": high}
        for server in (origin, low, high):
            server.execute(f"CREATE DATABASE {unique}")
            server.execute("CREATE DATABASE _vt")
            server.execute(f"CREATE TABLE {unique}.t (id INT PRIMARY KEY, v INT)")
            server.execute(VITESS.format(meta="_vt.vreplication"))
        shards = {"-": [origin.address]}
        relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps(shards))
        relayed.run()
        begin = {"gtid": f"MariaDB/{origin.gtid}"}
        load = Load(unique, 11)
        replications = [Replication(unique, "_vt.vreplication", ("-", origin), each) for each in new.items()]
        for replication in replications:
            replication.copy()
            replication.start()
        load.start({"-": origin})
        process = Relay([sys.executable, "-m", "relay.cli", "run", str(relayed.path)], tmp_path / "log")

        try:

            def is_known(shard: str) -> Callable[[], bool | None]:
                def ask() -> bool | None:
                    assert process.is_running, process.log()
                    text = relayed.command("status", str(relayed.path), "--json").stdout
                    return any(shard == each for each in find(json.loads(text), "shard")) or None

                return ask

            wait_until(lambda: (process.is_running and len(relayed.changes("t")) > 0) or None, 30)
            shards |= {shard: [server.address] for shard, server in new.items()}
            relayed.write(json.dumps(shards))
            process._process.send_signal(signal.SIGHUP)
            wait_until(is_known("80-"), 60)
            load.stop()
            for replication in replications:
                replication.wait()
                replication.stop()
            load.start(new)
            wait_until(is_known("-80"), 60)
            load.stop()
            assert process.terminate() == 0, process.log()
        finally:
            load.stop()
            if process.is_running:
                process.kill()
        relayed.run()
        made = all_changes(unique, "-", origin, begin)
    changes = relayed.changes("t")
    ids = [change["event_id"] for change in changes]
    assert len(set(ids)) == len(ids)
    assert {change.event_id for change in made} <= set(ids)
    assert {change["token"]["shard"] for change in changes} == {f"shop/{unique}/{shard}" for shard in ("-", *new)}
    images: dict[int, Any] = {}
    for change in changes:  # partition by partition: a key is in one
        assert change["old"] == images.get(change["key"]["id"])
        images[change["key"]["id"]] = change["new"]


def test_new_tables_of_one_name_that_two_workers_have_met_end_a_worker_or_are_left_out(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path
) -> None:
    """I8: or the rows of two databases are on one topic."""
    # So many that one worker hardly ever gets them all.
    names = [f"{unique}_{number}" for number in range(12)]
    for name in names:
        mariadb.execute(f"CREATE DATABASE {name}")
    login = {"user": USER, "password": PASSWORD, "shards": {"-": [mariadb.address]}}
    sources = [{"name": name, "type": "mysql", "database": name, **login} for name in names]
    path = tmp_path / "relay.yaml"
    servers = {"bootstrap_servers": kafka.bootstrap_servers}
    path.write_text(json.dumps({"name": unique, "kafka": servers, "sources": sources}))

    def owners() -> dict[str, str] | None:
        answer = CliRunner().invoke(app, ["status", str(path), "--json"])
        found = json.loads(answer.stdout)["sources"] if answer.exit_code == 0 else []
        held = {
            each["source"]: shard["owner"]["member"]
            for each in found
            for shard in each["shards"]
            if shard["owner"] is not None and shard["state"] == "reading"
        }
        return held if len(held) == len(names) and len(set(held.values())) == 2 else None

    command = [sys.executable, "-m", "relay.cli", "run", str(path)]
    workers = [Relay(command, tmp_path / f"relay-{number}.log") for number in range(2)]
    try:
        held = wait_until(owners)
        one, other = names[0], next(name for name in names if held[name] != held[names[0]])
        for name in (one, other):
            mariadb.execute(f"CREATE TABLE {name}.item (id INT PRIMARY KEY)")
            mariadb.execute(f"INSERT {name}.item VALUES (1)")
        # One that sees what the other has committed before it commits its own leaves nothing to end the other for.
        for worker in workers:
            worker.wait_for(f"'{unique}.item', which is the topic of table item of source {unique}_")
        ended = [worker for worker in workers if worker.has_logged("has appeared at the same time as another table")]
        assert ended
        for worker in ended:
            assert worker.wait(60) == 2, worker.log()
        for worker in workers:
            assert worker in ended or worker.has_logged(".item are not relayed: the table cannot be published")
    finally:
        for worker in workers:
            worker.kill()


def find(value: Any, name: str) -> Iterator[Any]:
    """Yield the values of ``name`` at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name:
                yield inner
            yield from find(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from find(inner, name)
