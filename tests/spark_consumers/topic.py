"""A topic with changes made up by a test, and the consumers that run on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from relay.avro.registry import open_schemas
from relay.change import MARK, Change, Images, Operation, Snapshot, event_id
from relay.config import Config, load
from relay.dynamodb.values import image_json
from relay.kafka import topics
from relay.kafka.dead_letters import DeadLetterWriter
from relay.kafka.group_offsets import group
from relay.kafka.limits import Headers
from relay.kafka.partition_offsets import offset_bounds
from relay.kafka.topic_writer import TopicWriter
from relay.kafka.topics import LARGEST_MESSAGE
from relay.services.postgres import execute
from relay.table import KeyColumn, TableSchema
from relay.token import EventToken
from spark_consumers.locations import local_folder, table_folder
from tests.command_line import relay
from tests.faults.harness import Relay
from tests.spark_consumers import delta_rows
from tests.spark_consumers.spark_process import RunningInSpark, SparkProcess
from tests.traces import no_traces_left
from tests.waiting import wait_until

TABLE = TableSchema("orders", "orders", (KeyColumn("customer", "S"), KeyColumn("order_id", "N")), 1)
SHARD = "orders/2026-01-01T00:00:00.000/shardId-0001"


def change(customer: str, version: int, operation: Operation = Operation.UPDATE) -> Change:
    """Return the change of order 1 of ``customer`` to ``version``."""
    position = f"DynamoDB/{10**20 + version}"
    images = [
        image_json({"customer": {"S": customer}, "order_id": {"N": "1"}, "version": {"N": str(number)}})
        for number in (version - 1, version)
    ]
    return Change(
        event_id=event_id(SHARD, position, "orders", customer.encode(), 0),
        operation=operation,
        source="orders",
        table="orders",
        key={"customer": customer, "order_id": "1"},
        old=None if operation is Operation.INSERT else images[0],
        new=None if operation is Operation.DELETE else images[1],
        images=Images.NEW_AND_OLD,
        token=EventToken(1_700_000_000 + version, SHARD, position),
        committed_at=1_700_000_000_000_000,
    )


def read(customer: str, version: int, as_of: int) -> Change:
    """Return a row of a snapshot: order 1 of ``customer``, read at ``version``."""
    row = change(customer, version)
    row.operation, row.old, row.token, row.images = Operation.READ, None, None, Images.NEW
    row.event_id, row.snapshot = event_id(SHARD, f"read-{as_of}", "orders", customer.encode(), 0), Snapshot("s", as_of)
    return row


def mark(kind: str, as_of: int) -> Change:
    """Return the beginning or the end of a snapshot, whose beginning is at ``as_of``."""
    row = read("nobody", 1, as_of)
    row.key, row.new, row.images, row.attributes = None, None, Images.KEYS_ONLY, {MARK: kind}
    row.event_id = event_id(SHARD, kind, "orders", b"", 0)
    return row


def truncation(version: int) -> Change:
    """Return the truncation of the table just before ``version`` of any row."""
    truncated = change("nobody", version)
    truncated.operation = Operation.TRUNCATE
    truncated.key = truncated.old = truncated.new = None
    return truncated


class Topic:
    """The topics of ``orders`` and ``lines``, or their ``shared`` one, and a config for all three consumers."""

    def __init__(
        self,
        folder: Path,
        name: str,
        bootstrap_servers: str,
        redis_url: str,
        spark: SparkProcess | None = None,
        *,
        partitions: int = 2,
        shared: bool = False,
    ) -> None:
        self.folder = folder
        self.spark = spark
        self.partitions = partitions
        self.path = folder / "relay.yaml"
        raw = {
            "name": name,
            "kafka": {"bootstrap_servers": bootstrap_servers, "partitions": partitions},
            "sources": [
                {"name": each, "type": "dynamodb", "table": each, "region": "us-east-1"} for each in ("orders", "lines")
            ],
            "cache": {"url": redis_url, "namespace": name, "keys": {"orders": ["order:{customer}"]}},
            "log": {"path": f"file://{folder}/log"},
            "copy": {"url": f"delta://{folder}/copy"},
        }
        if shared:
            raw["topics"] = f"{name}.all"
        self.path.write_text(yaml.safe_dump(raw))
        self.config: Config = load(self.path)
        self.name = self.config.topic("orders")
        self._create()
        self._client = self.config.kafka.client()
        self.redis_url = redis_url
        self._runs = 0
        self._checkpoint: str | None = None

    def _create(self) -> None:
        """Create what is missing of the topics that consumers read.

        They read no checkpoints, whose topic has 64 partitions, which take a broker 0.2 s of CPU.
        """
        admin = topics.connect(self.config)
        unwanted = {*topics.list_topics(admin, self.config), self.config.internal("checkpoints")}
        missing = [each for each in topics.required(self.config, ["orders", "lines"]) if each.name not in unwanted]
        for created in admin.create_topics([each.request() for each in missing]).values():
            created.result(120)
        # They have leaders only after that.
        offset_bounds(admin, [(each.name, number) for each in missing for number in range(each.partitions)])

    def create_again(self) -> None:
        """Delete the topic of ``orders`` with all that is on it, and create it again."""
        admin = topics.connect(self.config)
        admin.delete_topics([self.name])[self.name].result(120)
        wait_until(lambda: self.name not in topics.list_topics(admin, self.config))
        self._create()

    def reported(self, consumer: str) -> list[TopicPartition]:
        """Return the offsets of ``orders`` that a consumer has reported to its group."""
        client = Consumer({**self._client, "group.id": group(self.config, consumer)})
        wanted = [TopicPartition(self.name, partition) for partition in range(self.partitions)]
        found: list[TopicPartition] = client.committed(wanted, timeout=60)
        client.close()
        return found

    def report(self, consumer: str, offsets: list[TopicPartition]) -> None:
        """Report offsets again, which a broker forgets with a topic, as a consumer does that has not noticed."""
        client = Consumer({**self._client, "group.id": group(self.config, consumer)})
        client.commit(offsets=offsets, asynchronous=False)
        client.close()

    def set_cache_keys(self, *templates: str, table: str = "orders") -> None:
        """Change the cache keys of a table in the config file."""
        raw = yaml.safe_load(self.path.read_text())
        raw["cache"]["keys"][table] = list(templates)
        self.path.write_text(yaml.safe_dump(raw))

    def leave_out(self, table: str) -> None:
        """Take a table out of the config file, as one that was dropped where tables are looked up."""
        raw = yaml.safe_load(self.path.read_text())
        raw["sources"] = [source for source in raw["sources"] if source["table"] != table]
        raw["cache"]["keys"].pop(table, None)
        self.path.write_text(yaml.safe_dump(raw))

    def set_copy_url(self, url: str) -> None:
        """Keep the copy elsewhere."""
        raw = yaml.safe_load(self.path.read_text())
        raw["copy"]["url"] = url
        self.path.write_text(yaml.safe_dump(raw))

    def set_log_path(self, path: str) -> None:
        """Keep the log elsewhere."""
        raw = yaml.safe_load(self.path.read_text())
        self.path.write_text(yaml.safe_dump(raw | {"log": {"path": path}}))

    def set_spark(self, **section: Any) -> None:
        """Set the Spark that the consumers run on."""
        raw = yaml.safe_load(self.path.read_text())
        self.path.write_text(yaml.safe_dump(raw | {"spark": section}))

    def use_registry(self, url: str) -> None:
        """Publish with the framing of a schema registry from now on."""
        raw = yaml.safe_load(self.path.read_text())
        self.path.write_text(yaml.safe_dump(raw | {"schema_registry": {"url": url}}))
        self.config = load(self.path)

    def publish(
        self, changes: Sequence[Change], *, largest: int = LARGEST_MESSAGE, dead_letters: DeadLetterWriter | None = None
    ) -> None:
        schemas = open_schemas(self.config)
        limits: dict[str, Any] = {"largest": largest, "dead_letters": dead_letters}
        writers: dict[str, TopicWriter] = {}
        producer = Producer({**self._client, "enable.idempotence": True})
        sending = _Sending(producer)
        for one in changes:
            if (name := one.table) not in writers:
                table = replace(TABLE, source=one.source, table=name)
                writers[name] = TopicWriter(table, self.config.topic(name), self.partitions, "hash", schemas, **limits)
            if one.key is None:
                writers[name].send_to_all_partitions(sending, one, 1_700_000_000)
            else:
                writers[name].send_page(sending, [one], 1_700_000_000)
        assert producer.flush(30) == 0
        schemas.close()

    def publish_rows(self, table: TableSchema, *rows: Change) -> None:
        """Publish changes of the topic's table, which has these columns now."""
        schemas = open_schemas(self.config)
        writer = TopicWriter(table, self.name, self.partitions, "hash", schemas)
        producer = Producer({**self._client, "enable.idempotence": True})
        writer.send_page(_Sending(producer), list(rows), 1_700_000_000)
        assert producer.flush(30) == 0
        schemas.close()

    def publish_raw(self, *values: bytes) -> None:
        producer = Producer({**self._client, "enable.idempotence": True})
        for value in values:
            producer.produce(self.name, value, b"somebody", partition=0)
        assert producer.flush(30) == 0

    def publish_watermark(self, seconds: float) -> None:
        """Publish how far all topics are complete."""
        producer = Producer({**self._client, "enable.idempotence": True})
        value = json.dumps({"watermark": seconds, "finished": False, "updated_at": seconds}).encode()
        producer.produce(self.config.internal("watermarks"), value, b'["v1"]')
        assert producer.flush(30) == 0

    def ends(self) -> dict[str, int]:
        """Return where each partition of the topic of ``orders`` ends."""
        consumer = Consumer({**self._client, "group.id": f"{self.name}.test"})
        places = [TopicPartition(self.name, partition) for partition in range(self.partitions)]
        found = {str(place.partition): consumer.get_watermark_offsets(place, timeout=60)[1] for place in places}
        consumer.close()
        return found

    def remove_all(self, table: str = "orders") -> None:
        """Remove what is on the topic of a table, as its retention does."""
        admin, name = topics.connect(self.config), self.config.topic(table)
        places = [TopicPartition(name, partition, -1) for partition in range(self.partitions)]
        for done in admin.delete_records(places).values():
            done.result(60)

    def records(self) -> list[Message]:
        """Return all records on the topic of ``orders``."""
        wanted = sum(self.ends().values())
        consumer = Consumer({**self._client, "group.id": f"{self.name}.test", "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(self.name, partition, 0) for partition in range(self.partitions)])
        found: list[Message] = []
        while len(found) < wanted:
            message = consumer.poll(120)
            assert message is not None
            assert message.error() is None
            found.append(message)
        consumer.close()
        return found

    def dead_letters(self) -> list[tuple[bytes, bytes, str]]:
        """Return key, value and reason of every dead letter."""
        name = self.config.internal("dead_letters")
        consumer = Consumer({**self._client, "group.id": f"{name}.test", "isolation.level": "read_committed"})
        end = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=60)[1]
        consumer.assign([TopicPartition(name, 0, 0)])
        letters: list[tuple[bytes, bytes, str]] = []
        while len(letters) < end:
            message = consumer.poll(120)
            assert message is not None
            assert message.error() is None
            headers: dict[str, Any] = dict(message.headers() or [])
            letters.append((message.key() or b"", message.value() or b"", headers["reason"].decode()))
        consumer.close()
        return letters

    def consume(self, consumer: str, *arguments: str, checkpoint: str, engine: str = "spark") -> Mapping[str, int]:
        """Run ``consumer``, or several, to the end of the topic; return the totals of the batches' counts."""
        self._consume(consumer, *arguments, checkpoint=checkpoint, engine=engine, code=0)
        return self.counts()

    def refuse(self, consumer: str, *arguments: str, checkpoint: str, engine: str = "spark", code: int = 2) -> None:
        """Run ``consumer``, which ends with this exit code: by default it takes what it finds for a mistake."""
        self._consume(consumer, *arguments, checkpoint=checkpoint, engine=engine, code=code)

    def _consume(self, consumer: str, *arguments: str, checkpoint: str, engine: str, code: int) -> None:
        command = self._command(consumer, ("--until-caught-up", *arguments), checkpoint, engine)
        if engine == "spark":
            assert self.spark is not None
            self.spark.relay(*command, log=self.log, code=code)
            return
        with no_traces_left():  # in this process, since another one takes a second of CPU to start
            result = relay(*command)
            self.log.write_text(result.output)
            assert result.exit_code == code, (result.output, repr(result.exception))
            del result  # its exception would have the clients of Kafka

    def start_in_spark(self, consumer: str, *arguments: str, checkpoint: str) -> RunningInSpark:
        """Start ``consumer`` in the Spark of other tests: it takes a third of the CPU that it takes with a new one."""
        assert self.spark is not None
        return self.spark.start_relay(*self._command(consumer, arguments, checkpoint, "spark"), log=self.log)

    def start(self, consumer: str, *arguments: str, checkpoint: str, engine: str = "spark") -> Relay:
        """Start ``consumer``; without Spark, another ``checkpoint`` than the last one is a group that has nothing."""
        command = self._command(consumer, arguments, checkpoint, engine)
        return Relay([sys.executable, "-m", "relay.cli", *command], self.log)

    def _command(self, consumer: str, arguments: Sequence[str], checkpoint: str, engine: str) -> list[str]:
        self._runs += 1
        command = ["consume", *consumer.split(), str(self.path)]
        if engine == "spark":
            command += ["--checkpoint", str(self._checkpoint_folder(checkpoint))]
        else:
            command += ["--engine", engine]
            if self._checkpoint not in (None, checkpoint) and "committed" not in arguments:
                admin = topics.connect(self.config)
                admin.delete_consumer_groups([group(self.config, consumer)])[group(self.config, consumer)].result()
            self._checkpoint = checkpoint
        return [*command, *arguments]

    def _checkpoint_folder(self, checkpoint: str) -> Path:
        return self.folder / "checkpoints" / checkpoint

    @property
    def log(self) -> Path:
        return self.folder / f"consumer-{self._runs}.log"

    def counts(self) -> Mapping[str, int]:
        sums: dict[str, int] = {}
        for line in self.log.read_bytes().splitlines():
            if line.startswith(b"{") and b'"batch"' in line:
                for name, value in json.loads(line).items():
                    if isinstance(value, int):
                        sums[name] = sums.get(name, 0) + value
        return sums

    def apply(self, *steps: tuple[str, str]) -> dict[str, Any]:
        """Run consumers one after the other, each with a checkpoint; return the copy's and the log's rows.

        A table of the copy, or a log, that is not there has none.
        """
        script = f"""
import pathlib
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark

config, folder = load(pathlib.Path({str(self.path)!r})), pathlib.Path({str(self.folder / "checkpoints")!r})
with spark():
    for consumer, checkpoint in {steps!r}:
        spark_consumers.run(consumer, config, until_caught_up=True, checkpoint=folder / checkpoint)
"""
        if steps:
            assert self.spark is not None
            self.spark.run(script)
        config = load(self.path)
        return {"copy": copied(config, "orders"), "log": logged(config), "lines": copied(config, "lines")}


def logged(config: Config) -> list[str]:
    """Return the event ids of all rows of the log, in their order."""
    assert config.log is not None
    path = config.log.path.removeprefix("file://")
    return [event_id for (event_id,) in delta_rows.rows(path, ["event_id"])] if delta_rows.is_there(path) else []


def copied(config: Config, table: str, *, prefix: str = "") -> dict[str, int] | None:
    """Return the version of each customer's order in the copy, wherever it is; None if it has no such table.

    ``prefix``: of its schemas in PostgreSQL.
    """
    assert config.copy_ is not None
    if config.copy_.url.startswith("postgresql"):
        rows = execute(config.copy_.url, f"SELECT customer, item FROM {prefix}{table}.{table}")
        return {customer: int(item["version"]["N"]) for customer, item in rows}
    path = table_folder(str(local_folder(config.copy_.url)), table, table)
    if not delta_rows.is_there(path):
        return None
    found = delta_rows.rows(path, ["customer", "item"])
    return {customer: int(json.loads(item)["version"]["N"]) for customer, item in found}


class NoSchemas:
    """Knows no schema."""

    def lookup(self, header: bytes) -> None: ...


class _Sending:
    """Sends without a transaction, which makes no difference to readers."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Headers) -> None:
        self._producer.produce(topic, value, key, partition, headers=headers)
