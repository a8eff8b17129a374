"""``relay tail``: every record of the topics, decoded, or in base64 with an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from typer.testing import CliRunner

from relay.avro.encode import ChangeEncoder
from relay.avro.schema import change_schema
from relay.avro.topic_schemas import TopicSchemas
from relay.cli import app
from relay.commands.tail_text import json_line
from relay.config import Config, load
from relay.errors import ConfigError, Unavailable
from relay.kafka import topics
from relay.operations.tail import json_values, record_json, tail
from tests.listening import NOBODY
from tests.operations.tailed_records import BINARY, TABLE, KnownSchemas, change, encoder, message


def config(name: str = "shop", bootstrap_servers: str = "127.0.0.1:1", *tables: str) -> Config:
    return Config.model_validate(
        {
            "name": name,
            "kafka": {"bootstrap_servers": bootstrap_servers, "partitions": 2},
            "sources": [{"name": t, "type": "dynamodb", "table": t} for t in tables or ("orders",)],
        }
    )


def test_a_change_is_shown_with_its_images_parsed_and_its_times_in_utc() -> None:
    shown = record_json(message(encoder().encode(change())), KnownSchemas(TABLE))
    assert list(shown) == ["topic", "partition", "offset", "key", "value"]
    assert (shown["topic"], shown["partition"], shown["offset"], shown["key"]) == ("shop.orders", 3, 17, "o-1")
    value = shown["value"]
    assert value["old"]["total"] == {"N": "10.50"}
    assert value["new"]["lines"] == {"L": [{"M": {"n": {"N": "1"}}}, {"NULL": True}]}
    assert value["committed_at"] == "2027-01-15T08:00:00Z"
    assert value["relayed_at"] == "2027-01-15T08:00:00.250000Z"
    assert value["token"] == {
        "timestamp": 1_800_000_000,
        "shard": "shop/label/shard-1",
        "position": "DynamoDB/100",
        "origin": None,
    }
    assert json.loads(json_line(shown)) == shown


def test_bytes_are_shown_in_base64_in_keys_too() -> None:
    value = encoder(BINARY).encode(change(key={"id": b"\xff\x00", "line": "7"}, old=None, new=None))
    shown = record_json(message(value, key=b"\xff\x00"), KnownSchemas(BINARY))
    assert shown["key"] == "/wA="
    assert shown["value"]["key"] == {"id": "/wA=", "line": "7"}
    assert (shown["value"]["old"], shown["value"]["new"]) == (None, None)


def test_a_deleted_key_is_shown_as_null() -> None:
    assert record_json(message(None, key=b"x"), KnownSchemas(TABLE))["value"] is None
    assert record_json(message(None, key=None), None)["key"] is None


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"hello", "neither in Avro"),
        (b"", "neither in Avro"),
        (b"\xc3\x01" + b"\x01" * 12, "no schema is known"),
        (b"\x00\x00\x00\x00\x01abc", "no schema is known"),
        (encoder().encode(change())[:-4], "damaged"),
    ],
)
def test_a_value_that_cannot_be_decoded_is_shown_with_the_error(value: bytes, error: str) -> None:
    """I8."""
    shown = record_json(message(value), KnownSchemas(TABLE))
    assert json_values(value) == shown["value"]
    assert error in shown["error"]


def test_records_of_internal_topics_are_shown_as_json() -> None:
    shown = record_json(message(b'{"state":"reading","updated_at":1.5}', key=b'["v1","shop"]'), None)
    assert shown["value"] == {"state": "reading", "updated_at": 1.5}
    assert shown["key"] == '["v1","shop"]'
    broken = record_json(message(b"\xff"), None)
    assert (broken["value"], broken["error"][:14]) == ("/w==", "not valid JSON")


def test_no_number_is_rounded() -> None:
    """I8."""
    exact = Decimal("12345678901234567890123456789012345678")
    assert json_values({"d": exact, "i": 2**70, "f": 0.1}) == {"d": str(exact), "i": 2**70, "f": 0.1}
    assert json_values([float("nan"), float("-inf")]) == ["nan", "-inf"]
    assert json.loads(json_line({"i": 2**70})) == {"i": 2**70}


def test_times_of_any_zone_are_shown_in_utc() -> None:
    time_there = datetime(2026, 11, 21, 8, tzinfo=timezone(timedelta(hours=2)))
    assert json_values((time_there,)) == ["2026-11-21T06:00:00Z"]
    assert json_values(datetime(2026, 11, 21, tzinfo=UTC)) == "2026-11-21T00:00:00Z"


@pytest.mark.services
class TestOnABroker:
    @pytest.fixture
    def relayed(self, kafka: Any, unique: str) -> Config:
        relayed = config(unique, kafka.bootstrap_servers)
        topics.create_missing(topics.connect(relayed), relayed, ["orders"])
        return relayed

    @pytest.fixture
    def values(self, relayed: Config) -> Iterator[Callable[[int], bytes]]:
        schemas = TopicSchemas(relayed.kafka.client(), relayed.internal("schemas"))
        schema = change_schema(TABLE)
        encode = ChangeEncoder(schema, schemas.register(relayed.topic("orders"), schema)).encode
        yield lambda number: encode(change(number))
        schemas.close()

    @pytest.fixture
    def producer(self, relayed: Config, unique: str) -> Producer:
        settings = {**relayed.kafka.client(), "transactional.id": unique, "linger.ms": 0}
        producer = Producer({**settings, "transaction.timeout.ms": 600_000})
        producer.init_transactions(60)
        return producer

    @pytest.fixture
    def file(self, relayed: Config, tmp_path: Path) -> Path:
        file = tmp_path / "relay.yaml"
        file.write_text(yaml.safe_dump(relayed.model_dump(by_alias=True, exclude_none=True)))
        assert load(file) == relayed
        return file

    def publish(self, producer: Producer, topic: str, *values: bytes, commit: bool = True) -> None:
        producer.begin_transaction()
        for i, value in enumerate(values):
            producer.produce(topic, key=b"o-1", value=value, partition=i % 2)
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)

    def shown(self, relayed: Config, *names: str, start: str = "earliest") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        tail(relayed, names, found.append, flush=bool, start=start, exit_at_end=True)
        return found

    def ids(self, shown: list[dict[str, Any]]) -> list[str]:
        return sorted(record["value"]["event_id"] for record in shown)

    def test_it_exits_at_once_on_an_empty_topic(self, relayed: Config) -> None:
        assert self.shown(relayed) == []

    def test_it_exits_at_the_end_although_a_transaction_marker_is_last(
        self, relayed: Config, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        self.publish(producer, relayed.topic("orders"), values(1), values(2), values(3))
        self.publish(producer, relayed.topic("orders"), values(4), values(5))
        assert self.ids(self.shown(relayed)) == [f"event-{n}" for n in range(1, 6)]

    def test_only_committed_records_are_shown(
        self, relayed: Config, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        """I3: neither those of an aborted transaction nor of an open one, for which it does not wait."""
        topic = relayed.topic("orders")
        self.publish(producer, topic, values(1), commit=False)
        producer.abort_transaction(30)
        assert self.shown(relayed) == []
        self.publish(producer, topic, values(2), values(3))
        self.publish(producer, topic, values(4), commit=False)
        assert self.ids(self.shown(relayed)) == ["event-2", "event-3"]
        producer.commit_transaction(30)  # it is still open
        assert self.ids(self.shown(relayed)) == ["event-2", "event-3", "event-4"]

    def test_by_default_it_starts_at_the_end(
        self, relayed: Config, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        self.publish(producer, relayed.topic("orders"), values(1))
        assert self.shown(relayed, start="latest") == []

    def test_it_starts_where_it_is_told_to(
        self, relayed: Config, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        topic = relayed.topic("orders")
        self.publish(producer, topic, values(1), values(2), values(3), values(4))
        assert self.ids(self.shown(relayed, start="-1h")) == [f"event-{n}" for n in range(1, 5)]
        later = datetime.now(UTC) + timedelta(hours=1)
        assert self.shown(relayed, start=later.isoformat()) == []
        assert self.ids(self.shown(relayed, start=json.dumps({topic: {"0": 1, "1": -1}}))) == ["event-3"]
        assert self.shown(relayed, start=json.dumps({topic: {"0": 1000, "1": 1000}})) == []
        with pytest.raises(ConfigError, match=r"group .*\.mailer has no committed offsets"):
            self.shown(relayed, start=f"committed:{relayed.name}.mailer")

    def test_foreign_records_are_shown_among_the_changes(
        self, relayed: Config, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        self.publish(producer, relayed.topic("orders"), values(1), b"hello")
        good, bad = sorted(self.shown(relayed), key=lambda record: "error" in record)
        assert good["value"]["event_id"] == "event-1"
        assert (bad["value"], "neither in Avro" in bad["error"]) == ("aGVsbG8=", True)

    def test_internal_topics_are_shown_when_named(self, relayed: Config, values: Callable[[int], bytes]) -> None:
        (schema,) = self.shown(relayed, "schemas")
        assert schema["topic"] == relayed.internal("schemas")
        assert schema["value"]["name"] == "Change"

    def test_a_topic_that_does_not_exist_yet_is_reported(self, kafka: Any, unique: str) -> None:
        with pytest.raises(Unavailable, match=f"topic '{unique}.orders' does not exist at .*`relay run` creates it"):
            self.shown(config(unique, kafka.bootstrap_servers))

    def test_a_topic_that_does_not_exist_yet_hides_no_other(
        self, relayed: Config, values: Callable[[int], bytes], producer: Producer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """I12."""
        entry = relayed.sources[0]
        both = relayed.model_copy(update={"sources": [entry, entry.model_copy(update={"name": "new", "table": "new"})]})
        self.publish(producer, relayed.topic("orders"), values(1))
        assert self.ids(self.shown(both)) == ["event-1"]
        assert f"topic '{relayed.topic('new')}' does not exist" in caplog.text
        with pytest.raises(Unavailable, match=f"topic '{relayed.topic('new')}' does not exist"):
            self.shown(both, "orders", "new")

    def test_the_command_prints_one_json_object_per_line(
        self, relayed: Config, file: Path, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        self.publish(producer, relayed.topic("orders"), values(1), b"\xff")
        result = CliRunner().invoke(app, ["tail", str(file), "--from", "-1h", "--exit-at-end", "--json"])
        assert result.exit_code == 0, result.output
        records = [json.loads(text) for text in result.stdout.splitlines()]
        assert {(r["partition"], r["offset"], r["key"]) for r in records} == {(0, 0, "o-1"), (1, 0, "o-1")}

    def test_the_output_for_people_shows_the_changed_attributes(
        self, relayed: Config, file: Path, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        self.publish(producer, relayed.topic("orders"), values(1), b"\xff")
        result = CliRunner().invoke(app, ["tail", str(file), "orders", "--from-beginning", "--exit-at-end"])
        assert result.exit_code == 0, result.output
        assert f"{relayed.name}.orders[0]@0  2027-01-15T08:00:00Z  UPDATE   orders order_id=o-1" in result.stdout
        assert '  ~ total: 10.50 → 12\n  + lines: [{"n": "1"}, null]\n  - note: soon\n' in result.stdout
        assert f"{relayed.name}.orders[1]@0  cannot be decoded" in result.stdout

    def test_it_follows_new_changes_until_it_is_interrupted(
        self, relayed: Config, file: Path, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        with self.command(file) as process:
            assert process.stdout is not None
            # The first changes may be published before the tail has looked up the end offsets.
            for number in range(1000):
                self.publish(producer, relayed.topic("orders"), values(number))
                os.set_blocking(process.stdout.fileno(), False)
                if process.stdout.read(1):
                    break
                time.sleep(0.2)
            else:
                process.kill()
                pytest.fail("nothing was shown")
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
            assert process.stderr is not None
            assert process.stderr.read() == b""

    def test_it_ends_quietly_when_its_output_is_closed(
        self, relayed: Config, file: Path, values: Callable[[int], bytes], producer: Producer
    ) -> None:
        self.publish(producer, relayed.topic("orders"), *[values(number) for number in range(200)])
        with self.command(file, "--from-beginning") as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.stdout.close()
            self.publish(producer, relayed.topic("orders"), values(1))
            assert process.wait(120) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""

    def command(self, file: Path, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "relay.cli", "tail", str(file), "--json", *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("names", [[], ["orders"], ["shop.gaps", "orders"]])
def test_records_in_debeziums_envelope_are_refused_before_anything_is_connected_to(names: list[str]) -> None:
    config = Config.model_validate(
        {
            "name": "shop",
            "envelope": "debezium",
            "kafka": {"bootstrap_servers": NOBODY},
            "schema_registry": {"url": f"http://{NOBODY}"},
            "sources": [{"name": "orders", "type": "dynamodb", "table": "orders"}],
        }
    )
    with pytest.raises(ConfigError, match="source orders has `envelope: debezium`"):
        tail(config, names, print, flush=lambda: None)
