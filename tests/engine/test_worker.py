"""``relay run`` against real services: what reaches the topic, how it is keyed and framed, how it stops."""

from __future__ import annotations

import logging
import signal
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from relay.avro.registry import open_schemas
from relay.change import Change
from relay.config import Config
from relay.demo.truth import changed_item
from relay.errors import NotDrained, RelayError, Unavailable
from relay.kafka import bounded_call
from relay.kafka.checkpoints import CheckpointView, partition_of
from relay.kafka.dead_letters import RecordSender
from relay.kafka.keys import partition
from relay.kafka.publisher import Aborted
from relay.kafka.settings import KafkaSettings
from relay.kafka.topic_writer import TopicWriter
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.reading.reader_pool import LARGEST_PAGE
from relay.records import Plan, ShardCheckpoint, ShardState, partitions_key
from relay.source import Opening, ReadResult, ShardReader
from tests.command_line import run_until_caught_up
from tests.faults.harness import Scene
from tests.kafka.proxy import Api, ProxiedBroker, passing
from tests.scripted_source import ScriptedReader, ScriptedSource, config_of, open_schemas_of, running, worker_of
from tests.topic_changes import read_changes
from tests.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from relay.native._core import ChangeBlock

pytestmark = pytest.mark.services


def configure(scene: Scene, source: dict[str, Any] | None = None, **more: Any) -> None:
    raw = yaml.safe_load(scene.path.read_text())
    raw["sources"][0] |= source or {}
    scene.path.write_text(yaml.safe_dump(raw | more))


def relay_all(scene: Scene) -> None:
    run_until_caught_up(scene.path)


def put(scene: Scene, customer: str, order: int, **attributes: Any) -> None:
    item = {"customer": {"S": customer}, "order_id": {"N": str(order)}, "version": {"N": "1"}, **attributes}
    scene.client.put_item(TableName=scene.table, Item=item)


def changes(scene: Scene) -> list[dict[str, Any]]:
    config = scene.config
    with closing(open_schemas(config)) as schemas:
        return [found[2] for found in read_changes(config.kafka.client(), config.topic(scene.table), schemas)]


def raw_records(scene: Scene) -> list[tuple[int, bytes, bytes]]:
    """Return partition, key and value of every record of the topic."""
    config = scene.config
    topic = config.topic(scene.table)
    count = len(changes(scene))
    consumer = Consumer({**config.kafka.client(), "group.id": f"{topic}.raw", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(config.kafka.partitions)])
    records: list[tuple[int, bytes, bytes]] = []
    while len(records) < count:
        message = consumer.poll(120.0)
        assert message is not None
        assert message.error() is None
        records.append((message.partition() or 0, message.key() or b"", message.value() or b""))
    consumer.close()
    return records


def checkpoints_of(config: Config) -> CheckpointView:
    view = CheckpointView(config.kafka.client(), config.internal("checkpoints"))
    view.require_end(range(CHECKPOINT_PARTITIONS), PATIENCE)
    return view


def test_a_change_is_keyed_by_its_hash_key_and_framed_as_single_object_avro(scene: Scene) -> None:
    """I2"""
    put(scene, "ada", 7)
    relay_all(scene)
    [(where, key, value)] = raw_records(scene)
    assert key == b"ada"
    assert where == partition(b"ada", scene.config.kafka.partitions)
    assert value[:2] == b"\xc3\x01"


def test_keyed_by_item_a_change_stays_in_the_partition_of_its_hash_key(scene: Scene) -> None:
    """I2"""
    configure(scene, {"key": "item"})
    for order in range(5):
        put(scene, "ada", order)
    relay_all(scene)
    records = raw_records(scene)
    assert {where for where, _, _ in records} == {partition(b"ada", scene.config.kafka.partitions)}
    assert [key for _, key, _ in records] == [
        b'{"customer":{"S":"ada"},"order_id":{"N":"%d"}}' % order for order in range(5)
    ]


def test_what_an_item_holds_arrives_exactly(scene: Scene) -> None:
    """I8"""
    number = "1234567890123456789012345678901234567.8"
    put(scene, "ada", 7, exact={"N": number}, raw={"B": b"\x00\xff"}, tags={"NS": ["1", "2"]}, no={"NULL": True})
    relay_all(scene)
    [change] = changes(scene)
    assert f'"exact":{{"N":"{number}"}}' in change["new"]
    assert '"raw":{"B":"AP8="}' in change["new"]
    assert '"no":{"NULL":true}' in change["new"]


def test_a_second_run_publishes_nothing_again(scene: Scene) -> None:
    """I3"""
    put(scene, "ada", 7)
    relay_all(scene)
    put(scene, "ada", 8)
    relay_all(scene)
    assert [changed_item(event)[1] for event in scene.events()] == ["7", "8"]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_stopped_relay_has_finished_its_transaction(scene: Scene, signum: signal.Signals, code: int) -> None:
    put(scene, "ada", 7)
    relay = scene.relay()
    scene.wait_for_more(0)
    assert relay.stop(signum) == code, relay.log()
    assert not relay.has_logged("Traceback")
    put(scene, "ada", 8)
    relay_all(scene)
    assert [changed_item(event)[1] for event in scene.events()] == ["7", "8"]


def test_an_idle_shard_writes_down_how_far_it_has_come(kafka: Any, unique: str) -> None:
    """I10: progress is seen although nothing changes."""
    source = ScriptedSource("orders")
    config = config_of(unique, kafka.bootstrap_servers, [source])
    with running(config, [source]), closing(checkpoints_of(config)) as view:

        def progress() -> float | None:
            view.poll(0.1)
            return next((each.progress for each in view.of(source.stream).checkpoints.values() if each.progress), None)

        first = wait_until(progress)
        assert wait_until(lambda: later if (later := progress() or 0) > first else None) > first


def test_pages_that_wait_to_be_published_count_against_the_budget_of_the_readers(kafka: Any, unique: str) -> None:
    """I11: no more are read until those that were taken are published."""
    source = ScriptedSource("orders", shards=300)
    config = config_of(unique, kafka.bootstrap_servers, [source])
    waiting: list[int] = []

    class Slow(TopicWriter):
        def send_page(self, publisher: RecordSender, changes: list[Change] | ChangeBlock, resume_timestamp: int) -> int:
            waiting.append(len(worker._inbox))
            time.sleep(0.005)
            return super().send_page(publisher, changes, resume_timestamp)

    with closing(open_schemas_of(config)) as schemas:
        worker = worker_of(config, [source], schemas)
        place = config.topic("orders"), config.kafka.partitions, "hash"
        worker._publishing.writers["orders", "orders"] = Slow(source.table, *place, schemas)  # type: ignore[arg-type]
        relaying = threading.Thread(target=worker.run)
        relaying.start()
        try:
            wait_until(lambda: len(waiting) >= 300)
        finally:
            worker.stop()
            relaying.join(600)
    assert len(waiting) >= 300  # pages of an aborted transaction are published again
    assert max(waiting) <= (64 << 20) // LARGEST_PAGE


def test_a_shard_is_opened_only_when_the_transaction_of_its_previous_owner_has_ended(
    kafka: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I3: the checkpoint in that transaction covers what would be published again."""
    opened: list[Any] = []

    class Opened(ScriptedSource):
        def open(self, opening: Opening) -> ShardReader:
            opened.append(opening.position)
            return super().open(opening)

    source = Opened("orders")
    config = config_of(unique, kafka.bootstrap_servers, [source])
    settings = KafkaSettings.from_config(config)
    stream = source.connect()
    before, position = ({"type": "scripted", "sequence": sequence} for sequence in (0, 1))
    starts, keys = {"shard-00000": {"type": "trim_horizon"}}, {"orders": (("id", "S"),)}
    plan = Plan(source.start, time.time(), starts, keys, source.config_hash())
    open_schemas_of(config).close()
    previous = Producer({**config.kafka.client(), "transactional.id": unique})
    previous.init_transactions(30)
    key, topic = stream.shard_key("shard-00000"), settings.checkpoints

    def send_checkpoint(position: Any) -> None:
        value = ShardCheckpoint(ShardState.READING, position, progress=time.time()).to_json()
        previous.produce(topic, key=key, value=value, partition=partition_of(key))

    previous.begin_transaction()
    previous.produce(topic, key=stream.plan_key, value=plan.to_json(), partition=partition_of(stream.plan_key))
    send_checkpoint(before)
    previous.commit_transaction(30)
    previous.begin_transaction()
    with closing(Consumer({**config.kafka.client(), "group.id": settings.group})) as member:
        offsets = [TopicPartition(topic, partition_of(key), 0)]
        previous.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), 30)

    def is_at_the_fence() -> bool | None:
        waits = caplog.text.count("waiting for the transaction of the partitions' previous owner to end")
        return bool(opened) or waits >= 2 or None

    with caplog.at_level(logging.INFO), running(config, [source]):
        wait_until(is_at_the_fence, 60)
        send_checkpoint(position)
        previous.commit_transaction(30)
        wait_until(lambda: bool(opened) or None, 60)
    assert opened == [position] * len(opened)  # a worker that loses the shard opens it again


def test_what_a_reader_refuses_is_seen_even_while_every_transaction_is_aborted(kafka: Any, unique: str) -> None:
    """I8, I12: also if it is read late, when the shards are listed again after each abort and nothing is committed."""
    aborted: list[str] = []

    class Refused(ScriptedSource):
        has_journals = True

        def open(self, opening: Opening) -> ShardReader:
            return RefusedReader(self, opening)

    class RefusedReader(ScriptedReader):
        def read(self) -> ReadResult:
            if not self._is_read:
                return super().read()
            wait_until(lambda: len(aborted) >= 5, 60)
            raise RelayError("a statement that is refused")

    def probe(step: str) -> None:
        if step == "before_commit" and worker._publishing._unconfirmed:
            aborted.append(step)
            raise Aborted("by the test")

    source = Refused("orders")
    config = config_of(unique, kafka.bootstrap_servers, [source])
    with closing(open_schemas_of(config)) as schemas:
        worker = worker_of(config, [source], schemas, probe=probe)

        def run() -> None:
            with pytest.raises(NotDrained):
                worker.run()

        def is_seen() -> bool:
            return "a statement that is refused" in [
                each.error for each in worker._sources[source.name].shards.open.values()
            ]

        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_until(is_seen)
        finally:
            worker.stop()
            thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_worker_that_keeps_too_many_clients_without_an_answer_ends_and_its_successor_goes_on(
    broker: ProxiedBroker, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, I11: freeing one of them would corrupt memory. A supervisor starts the process again."""
    kept: list[str] = []
    monkeypatch.setattr(bounded_call, "_kept", kept)
    monkeypatch.setattr(bounded_call, "_MOST_KEPT", 1)
    config = config_of(unique, broker.bootstrap_servers, [ScriptedSource("orders")])
    kafka = config.kafka.model_copy(update={"producer": {"transaction.timeout.ms": 2000}})
    config = config.model_copy(update={"kafka": kafka})
    broker.proxy.lose(Api.TXN_OFFSET_COMMIT)
    with (
        pytest.raises(Unavailable, match=r"2 Kafka clients got no answer and cannot be freed: restart this process"),
        running(config, [ScriptedSource("orders", shards=4)]),
    ):
        wait_until(lambda: len(kept) == 2 or None, 120)
    broker.proxy.rule = passing
    with running(config, [ScriptedSource("orders", shards=4)]) as worker:
        state = worker._sources["orders"]
        wait_until(
            lambda: len([each for each in state.committed.checkpoints.values() if each.position]) == 4 or None, 60
        )
    with closing(open_schemas(config)) as schemas:
        found = read_changes(config.kafka.client(), config.topic("orders"), schemas)
    assert sorted(change["key"]["id"] for _, _, change in found) == [f"shard-{number:05}" for number in range(4)]


def test_who_takes_over_knows_the_requested_partitions_before_it_reads_anything(
    kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: the former owner may have said that it waits for them."""
    required: list[set[int]] = []
    read = CheckpointView.require_end

    def require_end(view: CheckpointView, partitions: Any, patience: float) -> None:
        required.append(set(partitions))
        read(view, partitions, patience)

    monkeypatch.setattr(CheckpointView, "require_end", require_end)
    source = ScriptedSource("orders")
    config = config_of(unique, kafka.bootstrap_servers, [source])
    with running(config, [source]) as worker:
        wait_until(lambda: worker._group.view.partitions_of("orders") or None, PATIENCE)
    required.clear()
    with running(config, [source]) as worker:
        wait_until(lambda: worker._sources["orders"].shards.open or None, PATIENCE)
    plan_key = worker._sources["orders"].stream.plan_key  # it says whether a table has moved to another topic
    assert {partition_of(key) for key in (partitions_key("orders", config.topic("orders")), plan_key)} in required
