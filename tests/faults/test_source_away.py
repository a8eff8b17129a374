"""I12: a source that cannot be read stops only itself, is seen, and comes back by itself. MariaDB beside DynamoDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import yaml
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.avro.registry import open_schemas
from relay.demo.truth import check_topic
from relay.process.managed import free_port
from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.command_line import relay as command
from tests.command_line import run_until_caught_up
from tests.faults.audited import ITEMS, TABLE, Writer, audit, history, opened, problems
from tests.faults.harness import Scene
from tests.observe.observed_relay import get
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services

DATABASE = "shop"


class Beside:
    """The database of a second source, ``legacy``, in the config of ``scene``; it is down."""

    def __init__(self, scene: Scene, server: MariaDB) -> None:
        self.server = server
        self.scene = scene
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"create database {DATABASE}")
            cursor.execute(f"use {DATABASE}")
            cursor.execute(ITEMS)
        audit(self.connect, [DATABASE])
        server.kill()
        self.writer = Writer(self.connect, lambda _: DATABASE, range(20), 7)
        raw = yaml.safe_load(scene.path.read_text())
        account = {"database": DATABASE, "user": USER, "password": PASSWORD, "tables": [TABLE]}
        raw["sources"].append({"name": "legacy", "type": "mysql", **account, "shards": {"-": [server.address]}})
        self.url = f"http://127.0.0.1:{free_port()}"
        scene.path.write_text(yaml.safe_dump({**raw, "http": self.url.removeprefix("http://")}))

    def connect(self) -> Connection[Cursor]:
        return opened(self.server.connect(autocommit=False, defer_connect=True))

    def changes(self) -> list[tuple[int, int, dict[str, Any]]]:
        config = self.scene.config
        with closing(open_schemas(config)) as schemas:
            return read_changes(config.kafka.client(), config.topic(TABLE), schemas)

    def wait_for_more(self) -> None:
        before = len(self.changes())
        wait_until(lambda: len(self.changes()) > before or None, 90)

    def stop_writing(self) -> None:
        """Stop once so much is published that a loss would show."""
        wait_until(lambda: len(self.changes()) > 100 or None, 90)
        self.writer.stop()

    def set(self, **entry: Any) -> None:
        raw = yaml.safe_load(self.scene.path.read_text())
        raw["sources"][1] |= entry
        self.scene.path.write_text(yaml.safe_dump(raw))

    def told(self) -> list[str]:
        """Return what health says about the source."""
        try:
            stalls = json.loads(get(self.url, "/healthz")[1])["stalls"]
        except OSError:
            return []
        return [
            each["error"] for each in stalls if each["source"] == "legacy" and each["what"].startswith("the source")
        ]

    def problems(self) -> list[str]:
        return problems(history(self.connect, [DATABASE]), self.changes(), ("customer", "line"))


@pytest.fixture
def beside(scene: Scene) -> Iterator[Beside]:
    with MariaDB() as server:
        beside = Beside(scene, server)
        yield beside
        beside.writer.end()


def test_a_database_that_is_down_at_the_start_is_read_once_it_is_up_and_delays_no_other_source(
    scene: Scene, beside: Beside
) -> None:
    """I1, I2, I3: neither a kill while it is down, nor one after it is back, loses or doubles a change of either."""
    workload = scene.workload(pause=0.05)
    workload.start()
    relay = scene.relay()
    seen = scene.wait_for_more(0)
    [said] = wait_until(lambda: beside.told() or None)
    assert "no server of shard - can be read" in said
    shown = json.loads(command("status", scene.path, "--json").stdout)
    [problem] = [each for each in shown["problems"] if "legacy" in each["where"]]
    assert problem["colour"] == "bad"
    assert said in problem["reason"]
    assert problem["seconds"] >= 0
    assert problem["commands"] == [f"relay check {scene.path}"]
    seen = scene.wait_for_more(seen)
    relay.kill()
    relay = scene.relay()
    seen = scene.wait_for_more(seen)
    beside.server.restart()
    relay.wait_for("source legacy: reading shard")
    beside.writer.start()
    beside.wait_for_more()
    wait_until(lambda: get(beside.url, "/healthz")[0] == 200 or None)
    relay.kill()
    relay = scene.relay()
    beside.wait_for_more()
    seen = scene.wait_for_more(seen)
    relay.kill()
    beside.server.kill()
    relay = scene.relay()
    seen = scene.wait_for_more(seen)
    beside.server.restart()
    beside.wait_for_more()
    scene.wait_for_more(seen)
    beside.stop_writing()
    truth = workload.stop()
    assert relay.terminate() == 0, relay.log()
    assert scene.finish(truth) == []
    assert beside.problems() == []


def test_a_database_that_is_down_is_read_with_all_its_tables_once_it_is_up_and_may_be_down_at_a_reload(
    scene: Scene, beside: Beside
) -> None:
    """The config names none of its tables."""
    beside.set(tables=None)
    workload = scene.workload(pause=0.05)
    workload.start()
    relay = scene.relay()
    relay.wait_for("the tables of source legacy cannot be looked up: source legacy: no server of shard - can be read")
    [said] = wait_until(lambda: beside.told() or None)
    assert "no server of shard - can be read" in said
    seen = scene.wait_for_more(0)
    beside.server.restart()
    relay.wait_for("source legacy: reading shard")
    beside.writer.start()
    beside.wait_for_more()
    beside.server.kill()
    relay.reload()
    relay.wait_for("source legacy: shards -")
    seen = scene.wait_for_more(seen)
    tailed = command("tail", scene.path, "--from-beginning", "--exit-at-end", "--json")
    assert tailed.exit_code == 0, tailed.output
    assert f'"topic":"{scene.config.topic(TABLE)}"' in tailed.stdout
    beside.server.restart()
    beside.wait_for_more()
    scene.wait_for_more(seen)
    beside.stop_writing()
    truth = workload.stop()
    assert relay.terminate() == 0, relay.log()
    assert scene.finish(truth) == []
    assert beside.problems() == []


def test_the_only_database_ends_the_relay_if_it_is_down(scene: Scene, beside: Beside) -> None:
    """The config names none of its tables."""
    beside.set(tables=None)
    raw = yaml.safe_load(scene.path.read_text())
    scene.path.write_text(yaml.safe_dump({**raw, "sources": raw["sources"][1:]}))
    said = run_until_caught_up(scene.path, expected_code=3)
    assert "relay: error: source legacy: no server of shard - can be read" in said


def test_a_run_until_caught_up_reads_the_other_sources_before_it_says_what_is_away(
    scene: Scene, beside: Beside
) -> None:
    item = {"customer": {"S": "ada"}, "order_id": {"N": "7"}, "version": {"N": "1"}}
    scene.client.put_item(TableName=scene.table, Item=item)
    assert "source legacy: no server of shard - can be read" in run_until_caught_up(scene.path, expected_code=3)
    assert len(scene.events()) == 1


def test_a_config_that_no_longer_fits_a_table_while_it_is_read_stops_its_source_alone(
    scene: Scene, beside: Beside
) -> None:
    """The column that chooses the rows is taken out of the key."""
    beside.server.restart()
    beside.set(where={TABLE: {"line": 3}})
    workload = scene.workload(pause=0.05)
    workload.start()
    relay = scene.relay()
    relay.wait_for("source legacy: reading shard")
    beside.server.execute(f"alter table {DATABASE}.{TABLE} drop primary key, add primary key (customer)")
    beside.server.execute(f"insert into {DATABASE}.{TABLE} values (1, 3, 1, '')")
    [said] = wait_until(lambda: beside.told() or None)
    assert "where" in said
    seen = scene.wait_for_more(0)
    scene.wait_for_more(seen)
    truth = workload.stop()
    assert relay.terminate() == 0, relay.log()
    run_until_caught_up(scene.path, expected_code=2)
    assert check_topic(truth, scene.events()) == []
