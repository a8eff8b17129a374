"""Requested snapshots of MariaDB, MySQL and DynamoDB Local beside writers, stopped and killed: I1, I3, I7."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import orjson
import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.change import MARK
from relay.config import load
from relay.services.mariadb import MariaDB
from tests import command_line
from tests.faults.audited import TABLE
from tests.faults.copied import copied, seen
from tests.faults.harness import Relay
from tests.faults.scripted_relay import start_relay
from tests.faults.snapshotted import Snapshotted
from tests.mysql.server import MySQL
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services

OTHER = "others"
ITEMS = 3000
SLOWLY = {"snapshot_rows_per_second": 300}  # on a busy machine the commands take seconds


@pytest.fixture(params=[MariaDB, pytest.param(MySQL, marks=pytest.mark.faults("as on MariaDB"))])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    with request.param() as primary, request.param() as replica:
        yield primary, replica


def command(path: Path, *arguments: str) -> str:
    name, *others = arguments
    done = command_line.relay(name, path, *others)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def snapshot(path: Path) -> dict[str, Any] | None:
    (source,) = orjson.loads(command(path, "status", "--json"))["sources"]
    found: dict[str, Any] | None = source["snapshot"]
    return found


def is_served(path: Path) -> bool | None:
    (source,) = orjson.loads(command(path, "status", "--json"))["sources"]
    return not source["snapshot_requests"] or None


@pytest.mark.faults("kills of another source: test_snapshots.py kills, operations/test_snapshot.py stops one")
def test_a_snapshot_of_one_table_equals_it_though_it_is_stopped_and_the_relay_is_killed(
    tmp_path: Path, kafka: Any, unique: str, servers: tuple[Any, Any]
) -> None:
    """I1, I3, I7: each row is read once, no READ undoes a change, and no row of the other table is read."""
    primary, replica = servers
    world = Snapshotted(tmp_path, kafka.bootstrap_servers, unique, primary, replica, start="current", **SLOWLY)
    try:
        chance = random.Random(world.seed)
        world.execute(f"create table {OTHER} (id int primary key)")
        world.execute(f"insert into {OTHER} values (1), (2)")
        replica.wait_for(primary.gtid)
        content = yaml.safe_load(world.path.read_text())
        content["sources"][0]["tables"] = [TABLE, OTHER]
        world.path.write_text(yaml.safe_dump(content))
        world.start_writers()
        relay = world.start()
        relay.wait_for("reading shard")
        command(world.path, "snapshot", "legacy", TABLE)
        relay.wait_for(f"reading table {TABLE} from {replica.address}")
        for _ in range(2):
            time.sleep(chance.uniform(0.2, 0.6))
            assert "is stopping where it is" in command(world.path, "snapshot", "legacy", "--stop")
            assert f"table {TABLE} resumes" in command(world.path, "snapshot", "legacy", TABLE)
            time.sleep(chance.uniform(0.2, 0.6))
            relay.kill()
            relay = world.start()
            relay.wait_for(f"reading table {TABLE} from")
        relay.wait_for("is finished")
        world.stop_writers()
        assert relay.terminate() == 0, relay.log()
        world.catch_up()
    finally:
        world.close()
    world.check_that_one_snapshot_read_each_row_once()
    config = load(world.path)
    with closing(open_schemas(config)) as schemas:
        assert read_changes(config.kafka.client(), config.topic(OTHER), schemas) == []
    found = snapshot(world.path)
    assert found is not None
    assert (found["state"], found["tables"], found["repairs"]) == ("finished", [TABLE], [])
    assert is_served(world.path)


def test_a_table_that_is_added_to_the_config_is_read_alone_and_once(
    tmp_path: Path, kafka: Any, unique: str, servers: tuple[Any, Any]
) -> None:
    """I1: its rows from before are not in what is read of the binlog."""
    primary, replica = servers
    world = Snapshotted(
        tmp_path, kafka.bootstrap_servers, unique, primary, replica, start="current", snapshot="initial"
    )
    try:
        world.execute(f"create table {OTHER} (id int primary key)")
        world.execute(f"insert into {OTHER} values (1), (2)")
        replica.wait_for(primary.gtid)
        world.catch_up()
        content = yaml.safe_load(world.path.read_text())
        content["sources"][0]["tables"] = [TABLE, OTHER]
        world.path.write_text(yaml.safe_dump(content))
        world.catch_up()
        world.catch_up()
    finally:
        world.close()
    assert len(world.reads()) == len(world.rows())
    config = load(world.path)
    assert world.marks() == {"begin": config.kafka.partitions, "end": config.kafka.partitions}
    with closing(open_schemas(config)) as schemas:
        changes = [change for _, _, change in read_changes(config.kafka.client(), config.topic(OTHER), schemas)]
    assert sorted(change["key"]["id"] for change in changes if change["key"]) == [1, 2]
    assert {change["operation"] for change in changes} == {"READ"}


class Items:
    """A table of DynamoDB Local with items from before its stream, and a thread that writes to it."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
        self.name = name
        self.client.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        for number in range(ITEMS):
            self.put(number, 1, "x" * 4000)
        stream: Any = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        self.client.update_table(TableName=name, StreamSpecification=stream)
        self._random = random.Random(7)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def put(self, number: int, version: int, padding: str) -> None:
        item = {"id": {"S": f"item-{number}"}, "version": {"N": str(version)}, "padding": {"S": padding}}
        self.client.put_item(TableName=self.name, Item=item)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(60)

    def _write(self) -> None:
        version = 1
        while not self._ended.wait(0.005):
            number, version = self._random.randrange(ITEMS), version + 1
            if self._random.random() < 0.2:
                self.client.delete_item(TableName=self.name, Key={"id": {"S": f"item-{number}"}})
            else:
                self.put(number, version, "")

    def rows(self) -> dict[str, str]:
        pages = self.client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
        return {item["id"]["S"]: item["version"]["N"] for page in pages for item in page["Items"]}


@pytest.mark.faults("kills: test_snapshots.py on a scripted table, spark_consumers/test_bootstrap.py on this one")
def test_a_snapshot_of_dynamodb_equals_the_table_though_it_is_stopped_and_the_relay_is_killed(
    tmp_path: Path, kafka: Any, dynamodb: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I3, I7: items that the stream was not read for are on the topic by the snapshot."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "a")
    items = Items(dynamodb.endpoint_url, unique)
    path = tmp_path / "relay.yaml"
    entry = {"name": "s", "type": "dynamodb", "table": unique, "region": "us-east-1"}
    servers = {"bootstrap_servers": kafka.bootstrap_servers, "producer": {"transaction.timeout.ms": 2000}}
    source = {**entry, "endpoint_url": dynamodb.endpoint_url}
    path.write_text(yaml.safe_dump({"name": f"r{unique}", "kafka": servers, "sources": [source]}))
    relay = start_relay(path)
    try:
        relay.wait_for("reading shard")
        items.start()
        command(path, "snapshot", "s")
        relay = _disturb(path, relay)
        wait_until(lambda: is_served(path), 120)
        assert relay.terminate() == 0, relay.log()
    finally:
        items.stop()
        relay.kill()
    command_line.run_until_caught_up(path)
    config = load(path)
    with closing(open_schemas(config)) as schemas:
        changes = sorted(read_changes(config.kafka.client(), config.topic(unique), schemas), key=lambda each: each[:2])
    assert items.rows() == copied(
        seen(
            partition,
            change,
            item=change["key"]["id"] if change["key"] else None,
            new=orjson.loads(change["new"])["version"]["N"] if change["new"] else None,
        )
        for partition, _, change in changes
    )
    reads = Counter(change["key"]["id"] for _, _, change in changes if change["operation"] == "READ" and change["key"])
    assert set(reads.values()) == {1}
    assert len(reads) > ITEMS / 2
    marks = Counter(change["attributes"][MARK] for _, _, change in changes if MARK in change["attributes"])
    assert marks == {"begin": config.kafka.partitions, "end": config.kafka.partitions}


def _disturb(path: Path, relay: Relay) -> Relay:
    """Kill the relay in the middle of the snapshot, and stop and resume what is left of it."""
    relay.wait_for("starts, about")
    relay.kill()
    command(path, "snapshot", "s", "--stop")
    relay = start_relay(path)
    relay.wait_for("reading shard")
    command(path, "snapshot", "s")
    return relay
