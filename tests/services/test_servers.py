"""The embedded services do what the tests and the demo need, and clean up."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import boto3
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from redis import Redis

from relay.errors import Unavailable
from relay.process.managed import HOST, accepts
from relay.services.dynamodb import DynamoDBLocal
from relay.services.kafka import KafkaBroker
from relay.services.memcached import MemcachedServer
from relay.services.redis import RedisServer
from relay.services.server import EmbeddedServer
from tests.process.processes import gone

pytestmark = pytest.mark.services


def create_topic(bootstrap_servers: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(120)


def cluster_of(bootstrap_servers: str) -> str | None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    found: str | None = admin.describe_cluster().result(120).cluster_id
    return found


def produce(bootstrap_servers: str, topic: str, *values: bytes, commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.flush(30)
        producer.abort_transaction(30)


def consume(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, "group.id": topic}
    consumer = Consumer(settings | {"isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 600
    try:
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values.append(bytes(message.value() or b""))
    finally:
        consumer.close()
    return values


class TestTheServices:
    def test_kafka_hides_aborted_records_and_shows_committed_ones(self, kafka: Any, unique: str) -> None:
        create_topic(kafka.bootstrap_servers, unique)
        produce(kafka.bootstrap_servers, unique, b"never", commit=False)
        produce(kafka.bootstrap_servers, unique, b"one", b"two")
        assert consume(kafka.bootstrap_servers, unique, 2) == [b"one", b"two"]

    def test_kafka_does_not_create_a_topic_when_it_is_written_to(self, kafka: Any, unique: str) -> None:
        failed: list[object] = []
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 3000})
        producer.produce(unique, b"x", on_delivery=lambda error, _: failed.append(error))
        producer.flush(60)
        assert failed[0] is not None

    def test_dynamodb_streams_return_what_was_put(self, dynamodb: Any, unique: str) -> None:
        arguments: dict[str, Any] = {"endpoint_url": dynamodb.endpoint_url, "region_name": "us-east-1"}
        client, streams = boto3.client("dynamodb", **arguments), boto3.client("dynamodbstreams", **arguments)
        table = client.create_table(
            TableName=unique,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )["TableDescription"]
        client.put_item(TableName=unique, Item={"id": {"S": "a"}, "n": {"N": "1"}})
        arn = table["LatestStreamArn"]
        (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        iterator = streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        (record,) = streams.get_records(ShardIterator=iterator)["Records"]
        assert record["eventName"] == "INSERT"
        assert record["dynamodb"]["NewImage"] == {"id": {"S": "a"}, "n": {"N": "1"}}

    def test_redis_stores_values_and_runs_scripts(self, redis_server: Any, unique: str) -> None:
        with Redis.from_url(redis_server.url) as client:
            assert client.set(unique, b"1")
            assert client.get(unique) == b"1"
            assert client.eval("return redis.call('GET', KEYS[1])", 1, unique) == b"1"
            assert client.config_get("save")["save"] == ""

    def test_memcached_stores_items_and_knows_the_meta_commands(self, memcached_server: Any, unique: str) -> None:
        with socket.create_connection((HOST, urlsplit(memcached_server.url).port), timeout=60) as connection:
            connection.sendall(b"ms %b 1 T60\r\n1\r\nmg %b v\r\n" % (unique.encode(), unique.encode()))
            with connection.makefile("rb") as reader:
                assert [reader.readline() for _ in range(3)] == [b"HD\r\n", b"VA 1\r\n", b"1\r\n"]

    def test_the_registry_returns_registered_schemas(self, schema_registry: Any, unique: str) -> None:
        schema = {"type": "record", "name": unique, "fields": [{"name": "a", "type": "long"}]}
        with SchemaRegistryClient({"url": schema_registry.url}) as client:
            number = client.register_schema(f"{unique}-value", Schema(json.dumps(schema), "AVRO"))
            assert client.register_schema(f"{unique}-value", Schema(json.dumps(schema), "AVRO")) == number
        with SchemaRegistryClient({"url": schema_registry.url}) as other:
            found = other.get_schema(number).schema_str
        assert found is not None
        assert json.loads(found) == schema


class TestAKilledKafka:
    @pytest.fixture
    def broker(self) -> Iterator[KafkaBroker]:
        with KafkaBroker() as broker:
            yield broker

    def test_it_restarts_at_the_same_address_with_its_data_and_is_the_same_cluster(
        self, broker: KafkaBroker, kafka: Any, unique: str
    ) -> None:
        address = broker.bootstrap_servers
        cluster = cluster_of(address)
        assert cluster != cluster_of(kafka.bootstrap_servers)
        create_topic(address, unique)
        produce(address, unique, b"kept")
        broker.kill()
        assert not accepts(broker.port)
        broker.restart()
        assert (broker.bootstrap_servers, cluster_of(address)) == (address, cluster)
        assert consume(address, unique, 1) == [b"kept"]
        produce(address, unique, b"more")
        assert consume(address, unique, 2) == [b"kept", b"more"]


class TestCleaningUp:
    @pytest.mark.parametrize("service", [RedisServer, MemcachedServer, DynamoDBLocal])
    def test_a_stopped_server_leaves_no_process_and_no_files_and_can_be_started_again(
        self, service: type[EmbeddedServer]
    ) -> None:
        server = service()
        for _ in range(2):
            with server:
                pid, folder, port = server.process.pid, server.folder, server.port
                assert accepts(port)
            assert not server.alive
            assert gone(pid)
            assert not folder.exists()
            assert not accepts(port)

    def test_servers_die_with_a_killed_parent(self, tmp_path: Path) -> None:
        program = """
            import threading, time
            from relay.services.memcached import MemcachedServer
            from relay.services.redis import RedisServer

            servers = [RedisServer(), MemcachedServer()]
            threads = [threading.Thread(target=server.start) for server in servers]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            # The threads that started them are gone, and still they run.
            time.sleep(0.5)
            print(*[server.process.pid for server in servers], all(server.alive for server in servers), flush=True)
            time.sleep(300)
        """
        parent = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
        with parent:
            assert parent.stdout is not None
            redis, memcached, alive = parent.stdout.readline().split()
            assert alive == "True"
            assert not gone(int(redis), within=0)
            assert not gone(int(memcached), within=0)
            parent.send_signal(signal.SIGKILL)
        assert gone(int(redis))
        assert gone(int(memcached))

    def test_a_server_that_is_not_ready_in_time_is_stopped_and_its_log_shown(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(DynamoDBLocal, "start_timeout", 0.0)
        server = DynamoDBLocal()
        with pytest.raises(Unavailable, match="dynamodb was not ready after 0 s"):
            server.start()
        assert not server.alive

    def test_a_server_whose_port_somebody_had_for_a_moment_is_started_on_another(self) -> None:
        class Robbed(RedisServer):
            thief = socket.socket()

            def _prepare(self) -> None:
                super()._prepare()
                if not self.lost:
                    self.lost.append(self.port)
                    self.thief.bind((HOST, self.port))
                    self.thief.listen()

            def kill(self) -> None:
                self.thief.close()
                super().kill()

            lost: ClassVar[list[int]] = []

        with Robbed() as server:
            assert server.alive
            assert server.port not in server.lost

    def test_many_servers_can_be_started_at_the_same_time(self) -> None:
        servers = [RedisServer() for _ in range(8)]
        threads = [threading.Thread(target=server.start) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        try:
            assert len({server.port for server in servers}) == 8
            assert all(server.alive for server in servers)
        finally:
            for server in servers:
                server.stop()
