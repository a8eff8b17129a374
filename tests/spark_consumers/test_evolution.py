"""A table's columns change: the relay is restarted, and the consumers keep running."""

from __future__ import annotations

import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from confluent_kafka.admin import AdminClient

from relay.avro.registry import open_schemas
from relay.cache import RedisStore, entry_key, generation_key
from relay.config import load
from relay.services.postgres import execute
from relay.services.registry import SchemaRegistry
from tests.command_line import run_until_caught_up
from tests.faults.harness import Relay
from tests.log_lines import log_lines
from tests.spark_consumers.own_clients import PROGRAMS, own_client, printed
from tests.spark_consumers.spark_process import RunningInSpark, SparkProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.services


class Orders:
    """A table with typed columns, its config, and the processes that relay and consume it."""

    def __init__(self, folder: Path, name: str, kafka: Any, dynamodb: Any, redis_url: str) -> None:
        self.folder, self.name, self.redis_url = folder, name, redis_url
        self.path = folder / "relay.yaml"
        self.processes: list[Relay] = []
        self.client = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
        self.client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
        self.raw: dict[str, Any] = {
            "name": name,
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1},
            "sources": [
                {
                    "name": "orders",
                    "type": "dynamodb",
                    "table": name,
                    "region": "us-east-1",
                    "endpoint_url": dynamodb.endpoint_url,
                }
            ],
            "cache": {"url": redis_url, "namespace": name, "keys": {name: ["order:{id}", "note:{note}"]}},
            "copy": {"url": f"delta://{folder}/copied"},
        }

    def declare(self, **columns: str) -> None:
        self.raw["sources"][0]["columns"] = columns
        self.path.write_text(yaml.safe_dump(self.raw))

    def put(self, key: str, **attributes: Any) -> None:
        self.client.put_item(TableName=self.name, Item={"id": {"S": key}, **attributes})

    def start(self, *command: str) -> Relay:
        log = self.folder / f"process-{len(self.processes)}.log"
        self.processes.append(Relay([sys.executable, *command], log))
        return self.processes[-1]

    def relay(self, *arguments: str) -> Relay:
        return self.start("-m", "relay.cli", "run", str(self.path), *arguments)

    def invalidated(self, key: str, *running: Relay | RunningInSpark) -> None:
        """Wait until the cache has an entry for ``key``. ``running``: processes that must not end meanwhile."""

        def entry() -> bool | None:
            for process in running:
                assert process.is_running, process.log()
            with RedisStore(self.redis_url) as store:
                ((found,), _) = store.read([entry_key(self.name, key)], generation_key(self.name))
            return found is not None or None

        wait_until(entry, 120)

    def read_by(self, program: str, count: int, registry: str) -> list[Any]:
        """Return what a program that has none of our code prints of the topic."""
        config = load(self.path)
        topic, schemas = config.topic(self.name), config.internal("schemas")
        return printed(own_client(program, config.kafka.bootstrap_servers, topic, schemas, count, registry))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self.client.close()


@pytest.fixture
def orders(tmp_path: Path, unique: str, kafka: Any, dynamodb: Any, redis_server: Any) -> Iterator[Orders]:
    found = Orders(tmp_path, unique, kafka, dynamodb, redis_server.url)
    yield found
    found.close()


def clients(path: Path) -> set[str]:
    """Return the client ids of the members of the relay's group."""
    config = load(path)
    admin = AdminClient(config.client("test"))
    group = f"{config.name}.relay"
    found = admin.describe_consumer_groups([group])[group].result(120)
    return {member.client_id for member in found.members}


def test_the_cache_reads_a_new_schema_version_and_survives_the_loss_of_the_registry(
    orders: Orders, spark_process: SparkProcess
) -> None:
    """I1, I6: one consumer reads both versions, and known schemas need no registry, after a restart either."""
    with SchemaRegistry() as registry:
        orders.raw["schema_registry"] = {"url": registry.url}
        orders.declare(id="string", a="long")
        orders.put("one", a={"N": "1"}, note={"S": "first"})
        run_until_caught_up(orders.path)
        cache = spark_process.start_relay("consume", "cache", str(orders.path), log=orders.folder / "cache.log")
        orders.invalidated("note:first", cache)

        orders.declare(id="string", a="long", note="string")
        orders.put("two", a={"N": "2"}, note={"S": "second"})
        relay = orders.relay()
        orders.invalidated("note:second", cache, relay)
        (client,) = clients(orders.path)
        assert client.startswith(f"{orders.name}-relay-")

        registry.kill()
        orders.put("two", a={"N": "3"}, note={"S": "third"})
        orders.invalidated("note:third", cache, relay)
        assert cache.terminate() == 0, cache.log()
        orders.put("two", a={"N": "4"}, note={"S": "fourth"})
        again = spark_process.start_relay("consume", "cache", str(orders.path), log=orders.folder / "again.log")
        orders.invalidated("note:fourth", again, relay)
        assert again.terminate() == 0, again.log()
        assert relay.stop(signal.SIGTERM) == 0, relay.log()
        said = f"the schema registry at {registry.url} does not answer"
        refused = orders.relay("--until-caught-up")
        assert refused.wait(60) == 3
        assert refused.has_logged(said)
        new = ("--checkpoint", str(orders.folder / "new"))
        knows_none = spark_process.start_relay(
            "consume", "cache", str(orders.path), *new, log=orders.folder / "new.log"
        )
        assert knows_none.wait(120) == 3, knows_none.log()
        assert knows_none.has_logged(said)
        assert not knows_none.has_logged('"event": "batch"')


def test_the_copy_reads_a_new_schema_version_from_the_schemas_topic(
    orders: Orders, database_url: str, spark_process: SparkProcess
) -> None:
    """I1, I7"""
    orders.raw["copy"]["url"] = database_url
    orders.declare(id="string", a="long")
    orders.put("one", a={"N": "1"}, note={"S": "first"})
    run_until_caught_up(orders.path)
    command = ("consume", "copy", str(orders.path), "--checkpoint", str(orders.folder / "copy-point"))
    copy = spark_process.start_relay(*command, log=orders.folder / "copy.log")
    applied = _batches(copy)
    wait_until(lambda: applied() >= 1 or None, 120)

    orders.declare(id="string", a="long", note="string")
    orders.put("two", a={"N": "2"}, note={"S": "second"}, more={"BOOL": True})
    run_until_caught_up(orders.path)
    wait_until(lambda: applied() >= 2 or None, 120)
    assert copy.terminate() == 0, copy.log()
    assert execute(database_url, f"SELECT id, a, note, rest FROM orders.{orders.name} ORDER BY id") == [
        ("one", 1, None, {"note": {"S": "first"}}),
        ("two", 2, "second", {"more": {"BOOL": True}}),
    ]
    schemas = open_schemas(load(orders.path))
    schemas.refresh()
    first, second = schemas.all().values()
    schemas.close()
    row = {field["name"]: field["type"] for field in second["fields"]}["old"][1]
    before = {field["name"]: field["type"] for field in first["fields"]}["old"][1]
    assert row["aliases"] == [f"{before['namespace']}.{before['name']}"]


def test_a_program_in_javascript_reads_both_versions_from_the_registry(orders: Orders, schema_registry: Any) -> None:
    """I8: with the libraries that such programs have; numbers that JavaScript cannot hold stay exact."""
    orders.raw["schema_registry"] = {"url": schema_registry.url}
    columns = {"id": "string", "a": "long", "total": "decimal(38,2)"}
    orders.declare(**columns)
    orders.put("one", a={"N": str(2**62 + 1)}, total={"N": "-12345678901234567890.5"})
    run_until_caught_up(orders.path)
    orders.declare(**columns, note="string")
    orders.put("two", note={"S": "x" * 5000})
    run_until_caught_up(orders.path)
    assert orders.read_by("javascript", 2, schema_registry.url) == [
        ["INSERT", {"id": "one"}, ONE],
        ["INSERT", {"id": "two"}, {**TWO, "note": "x" * 5000}],
    ]


ONE = {"id": "one", "a": str(2**62 + 1), "total": "-12345678901234567890.50", "rest": None}
TWO = {"id": "two", "a": None, "total": None, "note": "b", "rest": None}


@pytest.fixture(scope="module")
def reframed(
    tmp_path_factory: pytest.TempPathFactory, kafka: Any, dynamodb: Any, schema_registry: Any
) -> Iterator[Any]:
    """A table on two topics: with values from before it had a registry and after, and in Debezium's envelope."""
    folders = [tmp_path_factory.mktemp(name) for name in ("own", "debezium")]
    found = Orders(folders[0], f"t{uuid.uuid4().hex[:10]}", kafka, dynamodb, "redis://127.0.0.1:1/0")
    columns = {"id": "string", "a": "long", "total": "decimal(38,2)"}
    found.declare(**columns)
    found.put("one", a={"N": str(2**62 + 1)}, total={"N": "-12345678901234567890.5"})
    run_until_caught_up(found.path)
    found.raw["schema_registry"] = {"url": schema_registry.url}
    found.declare(**columns, note="string")
    found.put("two", note={"S": "b"})
    run_until_caught_up(found.path)
    found.client.delete_item(TableName=found.name, Key={"id": {"S": "one"}})
    other = copy(found)
    other.path = folders[1] / "relay.yaml"
    other.raw = {key: each for key, each in found.raw.items() if key not in ("cache", "copy")}
    other.raw |= {"name": f"{found.name}-debezium", "envelope": "debezium"}
    other.declare(**columns, note="string")
    run_until_caught_up(other.path)
    yield found, other, schema_registry.url
    found.close()


@pytest.mark.faults("other languages: test_examples.py has one framing, and the test above the other")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_client_of_ones_own_reads_both_framings_and_debeziums_envelope(reframed: Any, program: str) -> None:
    """I8"""
    own, debezium, registry = reframed
    assert own.read_by(program, 2, registry) == [["INSERT", {"id": "one"}, ONE], ["INSERT", {"id": "two"}, TWO]]
    assert debezium.read_by(program, 3, registry) == [
        ["c", {"id": "one"}, {**ONE, "note": None}],
        ["c", {"id": "two"}, TWO],
        ["d", {"id": "one"}, None],
    ]


def _batches(process: RunningInSpark) -> Callable[[], int]:
    """Return a function that counts the rows a consumer has applied."""

    def count() -> int:
        assert process.is_running, process.log()
        return sum(line["rows"] for line in log_lines(process.log(), "batch"))

    return count
