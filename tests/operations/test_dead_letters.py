"""Changes that cannot be published in full, through a real relay and broker, and ``relay dead-letters``."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from relay.config import load
from relay.errors import RelayError
from relay.kafka.committed import read_all_committed
from relay.kafka.topics import connect
from relay.operations.dead_letters import DeadLetters
from tests.clock import Clock
from tests.command_line import errors, relay, run_until_caught_up
from tests.dynamodb.endpoint import TABLE
from tests.faults.scripted_relay import start_relay, write_config
from tests.kafka.limited_topics import create, limit
from tests.operations.unpublishable import HALF, SMALL, StreamWithInvalidText, tail
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def stream() -> Iterator[StreamWithInvalidText]:
    with StreamWithInvalidText() as scripted:
        scripted.shard("root")
        yield scripted


def listed(path: Path) -> list[dict[str, Any]]:
    result = relay("dead-letters", "list", path, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def versions(path: Path, key: str) -> list[tuple[str, str | None]]:
    changes = [record["value"] for record in tail(path, load(path).topic(TABLE))]
    return [
        (change["images"], change["new"] and change["new"]["version"]["N"])
        for change in changes
        if change["key"]["id"] == key
    ]


def test_a_change_that_is_too_large_is_a_stub_and_is_complete_after_a_redrive(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    """I1, I2, I3: it is once on the topic and once a dead letter."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    topic = load(path).topic(TABLE)
    create(kafka.bootstrap_servers, topic, 6, max_message_bytes=str(SMALL))
    create(kafka.bootstrap_servers, f"{unique}.dead_letters", 1, max_message_bytes=str(SMALL))
    payload = "".join(chr(32 + n % 90) for n in range(3 * SMALL))
    stream.write("k", 1)
    stream.write("k", 2, payload={"S": payload})
    stream.write("k", 3)
    for n in range(200):
        stream.write(f"other-{n}", 1, payload={"S": "x" * 1000})
    run_until_caught_up(path)
    assert versions(path, "k") == [("NEW_AND_OLD", "1"), ("OMITTED", None), ("NEW_AND_OLD", "3")]
    (letter,) = listed(path)
    assert (letter["reason"], letter["key"], letter["whole"]) == ("too large", {"id": {"S": "k"}}, True)
    assert (letter["table"], letter["topic"], letter["chunks"], letter["redriven"]) == (TABLE, topic, 4, False)
    assert letter["size"] > 3 * SMALL
    line = relay("dead-letters", "list", path).stdout
    assert line.startswith(f"{letter['id']}  pending  too large: ")
    assert f"; {topic} takes {SMALL}  {letter['size']} bytes" in line
    shown = json.loads(relay("dead-letters", "show", path, letter["id"]).stdout)
    assert shown["change"]["new"]["payload"]["S"] == payload
    (line,) = relay("dead-letters", "show", path, letter["id"], "--json").stdout.splitlines()
    assert json.loads(line) == shown
    assert shown["change"]["old"]["version"]["N"] == "1"

    refused = relay("dead-letters", "redrive", path, letter["id"])
    assert refused.exit_code == 1
    assert f"topic {topic} allows {SMALL}: raise the topic's max.message.bytes" in errors(refused)[0]
    limit(kafka.bootstrap_servers, topic, 8 << 20)
    for options, count in ((["--since", "-2h", "--reason", "large", "--max", "1"], 1), (["--since", "2100-01-01"], 0)):
        would = relay("dead-letters", "redrive", path, "--all", "--dry-run", "--json", *options)
        assert would.exit_code == 0, would.output
        assert [json.loads(line) for line in would.stdout.splitlines()] == [{**letter, "sent": False}] * count
    other = relay("dead-letters", "redrive", path, "--all", "--reason", "odd")
    assert (other.exit_code, errors(other)) == (
        2,
        ["--reason odd: no pending dead letter has this reason; pending: too large"],
    )
    assert listed(path) == [letter]
    done = relay("dead-letters", "redrive", path, "--all")
    assert (done.exit_code, done.stdout) == (0, f"{letter['id']} sent to {topic}[{letter['partition']}]\n")
    assert versions(path, "k")[3:] == [("NEW_AND_OLD", "2")]
    stub, whole = (record for record in tail(path, topic) if record["value"]["event_id"] == letter["id"])
    assert (whole["key"], whole["partition"]) == (stub["key"], stub["partition"])
    assert whole["value"]["token"] == stub["value"]["token"]
    assert whole["value"]["attributes"]["redriven"] == "true"
    assert listed(path)[0]["redriven"] is True
    assert relay("dead-letters", "redrive", path, "--all").stdout == "no dead letters to redrive\n"
    assert relay("dead-letters", "redrive", path, "--all", "--json").stdout == ""


def test_a_change_that_cannot_be_encoded_stops_the_relay_or_becomes_a_dead_letter(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    """I8: half a surrogate pair is refused with key and position, or kept exactly in the dead letter."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    stream.write("k", 1)
    stream.write("k", 2, text={"S": HALF})
    stream.write("k", 3)
    log = run_until_caught_up(path, expected_code=1)
    assert "on_unencodable: dead_letter" in log
    assert f"the UPDATE of {TABLE}, key {{'id': 'k'}} at DynamoDB/" in log
    write_config(tmp_path, stream, kafka.bootstrap_servers, unique, on_unencodable="dead_letter")
    run_until_caught_up(path)
    assert versions(path, "k") == [("NEW_AND_OLD", "1"), ("OMITTED", None), ("NEW_AND_OLD", "3")]
    (letter,) = listed(path)
    assert (letter["reason"], letter["encoding"]) == ("not encodable", "json")
    shown = json.loads(relay("dead-letters", "show", path, letter["id"]).stdout)
    assert shown["change"]["new"] == {"id": {"S": "k"}, "version": {"N": "2"}, "text": {"S": "\ud83d"}}
    refused = relay("dead-letters", "redrive", path, "--all")
    assert refused.exit_code == 1
    assert "cannot be encoded" in errors(refused)[0]
    assert listed(path)[0]["redriven"] is False


def test_a_dead_letter_that_cannot_be_sent_again_waits_until_it_is_dismissed(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    """Else `redrive --all` fails for ever, and hides those of tomorrow."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique, on_unencodable="dead_letter")
    for version in (1, 2):
        stream.write("k", version, text={"S": HALF})
    run_until_caught_up(path)
    first, second = listed(path)

    def waiting() -> int:
        status = relay("status", path, "--json")
        return int(json.loads(status.stdout)["dead_letters"])

    assert waiting() == 2
    unknown = relay("dead-letters", "dismiss", path, first["id"], "x")
    assert (unknown.exit_code, errors(unknown)[0].split(" has ")[1].startswith("no dead letter 'x'")) == (2, True)
    assert listed(path) == [first, second]
    done = relay("dead-letters", "dismiss", path, first["id"])
    assert (done.exit_code, done.stdout) == (0, f"{first['id']} dismissed\n")
    assert listed(path) == [{**first, "dismissed": True}, second]
    assert relay("dead-letters", "list", path).stdout.startswith(f"{first['id']}  dismissed  not encodable: ")
    assert waiting() == 1
    (refused,) = errors(relay("dead-letters", "redrive", path, "--all"))
    assert f"dead letter {second['id']} was not redriven" in refused
    assert "relay dead-letters dismiss" in refused
    (line,) = relay("dead-letters", "dismiss", path, second["id"], "--json").stdout.splitlines()
    assert json.loads(line) == {**second, "dismissed": True}
    assert waiting() == 0
    again = relay("dead-letters", "redrive", path, "--all")
    assert (again.exit_code, again.stdout) == (0, "no dead letters to redrive\n")
    assert json.loads(relay("dead-letters", "show", path, first["id"]).stdout)["dismissed"] is True


def test_on_a_compacted_topic_a_redriven_change_does_not_replace_a_newer_one(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    """I1: under the key of its item, Kafka would delete the newer change. Each DELETE is followed by a tombstone."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique, key="item", tombstones=True)
    topic = load(path).topic(TABLE)
    create(kafka.bootstrap_servers, topic, 6, cleanup_policy="compact", max_message_bytes=str(SMALL))
    stream.write("k", 1, payload={"S": "x" * SMALL})
    stream.put("root", "k", 2, old=1, eventName="REMOVE")
    run_until_caught_up(path)
    (letter,) = listed(path)
    limit(kafka.bootstrap_servers, topic, 8 << 20)
    assert relay("dead-letters", "redrive", path, letter["id"]).exit_code == 0
    records = tail(path, topic)
    found = [(record["key"], record["value"] and record["value"]["operation"]) for record in records]
    item = '{"id":{"S":"k"}}'
    assert found == [(item, "INSERT"), (item, "DELETE"), (item, None), (letter["id"], "INSERT")]
    assert len({record["partition"] for record in records}) == 1


def test_a_dead_letter_of_a_consumer_is_sent_again_unchanged(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    run_until_caught_up(path)
    config = load(path)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    topic = config.topic(TABLE)
    producer.produce(topic, b"what is this", b"the key", 3, headers={"event_id": b"e1"})
    letters = config.internal("dead_letters")
    headers: dict[str, str | bytes | None] = {"reason": "unknown framing", "consumer": "copy"}
    for offset in (0, 99):  # the second record does not exist
        producer.produce(letters, b"what is this", f"{topic}/3/{offset}/copy", 0, headers=headers)
    producer.produce(letters, b"no letter", b"somebody else's", 0)
    assert producer.flush(30) == 0
    first, second, foreign = listed(path)
    assert (first["id"], first["offset"], first["table"]) == (f"{topic}/3/0/copy", 0, TABLE)
    assert foreign["reason"] == "not a dead letter"
    shown = json.loads(relay("dead-letters", "show", path, first["id"]).stdout)
    assert (shown["value"], "single-object encoding" in shown["error"]) == ("d2hhdCBpcyB0aGlz", True)
    done = relay("dead-letters", "redrive", path, "--all")
    assert done.exit_code == 1
    assert f"{foreign['id']} was not redriven" in errors(done)[0]
    assert [each["redriven"] for each in listed(path)] == [True, True, False]
    again = tail(path, topic)
    assert [record["key"] for record in again] == ["the key", "the key", second["id"]]
    assert {(record["partition"], record["value"]) for record in again} == {(3, "d2hhdCBpcyB0aGlz")}


def test_a_change_that_a_consumer_could_not_decode_is_marked_when_it_is_sent_again(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    """I7: it comes later than its place in the order, so a copy has to know that something newer may be stored."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    stream.write("k", 1)
    run_until_caught_up(path)
    config = load(path)
    topic, letters = config.topic(TABLE), config.internal("dead_letters")
    (record,) = read_all_committed(connect(config), config, topic)
    place = f"{topic}/{record.partition()}/{record.offset()}"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def redrive(value: bytes | None, consumer: str) -> dict[str, Any]:
        headers: dict[str, str | bytes | None] = {"reason": "unknown schema", "consumer": consumer}
        producer.produce(letters, value, f"{place}/{consumer}", 0, headers=headers)
        assert producer.flush(30) == 0
        done = relay("dead-letters", "redrive", path, "--all")
        assert done.exit_code == 0, done.output
        return tail(path, topic)[-1]

    first, again = tail(path, topic)[0], redrive(record.value(), "copy")
    attributes = {**first["value"]["attributes"], "redriven": "undecoded"}
    assert again == {**first, "offset": again["offset"], "value": {**first["value"], "attributes": attributes}}
    marked = max(read_all_committed(connect(config), config, topic), key=lambda each: each.offset() or 0)
    assert redrive(marked.value(), "log")["value"] == again["value"]


def test_a_change_that_may_be_older_than_a_deletion_that_the_copy_has_forgotten_is_not_sent_again(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    """I7: nothing would say that its row was deleted since."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    stream.write("k", 1)
    stream.put("root", "k", 2, old=1, eventName="REMOVE")
    run_until_caught_up(path)
    config = load(path)
    topic, letters = config.topic(TABLE), config.internal("dead_letters")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for record in read_all_committed(connect(config), config, topic):
        headers: dict[str, str | bytes | None] = {"reason": "unknown schema", "consumer": "log"}
        place = f"{topic}/{record.partition()}/{record.offset()}/log"
        producer.produce(letters, record.value(), place, 0, headers=headers)
    assert producer.flush(30) == 0
    copy = f"copy={{url: 'delta://{tmp_path}/copy', tombstone_retention: "
    for options, said in ((["--dry-run"], "would not be redriven"), ([], "was not redriven")):
        forgotten = relay("dead-letters", "redrive", path, "--all", *options, "--set", f"{copy}0.001s}}")
        assert forgotten.exit_code == 1
        (problem,) = errors(forgotten)
        assert f"{said}: it was relayed at 20" in problem
        assert "longer ago than nine tenths of `copy.tombstone_retention`" in problem
    # A DELETE restores no row.
    assert [(each["redriven"], each["offset"]) for each in listed(path)] == [(False, 0), (True, 1)]
    relayed_at = datetime.fromisoformat(tail(path, topic)[0]["value"]["relayed_at"]).timestamp()
    nearly = DeadLetters(load(path, [f"{copy}1000s}}"]), clock=Clock(relayed_at + 901))
    with pytest.raises(RelayError, match="nine tenths"):
        nearly.redrive(nearly.pending(), lambda letter: None)
    in_time = DeadLetters(load(path, [f"{copy}1000s}}"]), clock=Clock(relayed_at + 899))
    in_time.redrive(in_time.pending(), lambda letter: None, dry_run=True)
    remembered = relay("dead-letters", "redrive", path, "--all", "--set", f"{copy}1h}}")
    assert remembered.exit_code == 0, remembered.output
    assert [each["redriven"] for each in listed(path)] == [True, True]


def test_a_relay_whose_topic_limit_is_lowered_ends_with_the_reason(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    """I10: it does not retry the same batch for ever; the next start publishes a stub."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    assert relay("dead-letters", "list", path).exit_code == 3  # there is no topic yet
    stream.write("j", 1)
    process = start_relay(path)
    wait_until(lambda: (relay("dead-letters", "list", path).exit_code == 0 and versions(path, "j")) or None, 60)
    assert relay("dead-letters", "list", path).stdout == "no dead letters\n"
    limit(kafka.bootstrap_servers, load(path).topic(TABLE), SMALL)
    stream.write("k", 1, payload={"S": random.Random(1).randbytes(2 * SMALL).hex()})
    assert process.wait(60) == 1
    assert process.has_logged("the max.message.bytes of a topic was lowered")
    run_until_caught_up(path)
    assert versions(path, "k") == [("OMITTED", None)]
    assert relay("dead-letters", "show", path, "x").exit_code == 2


def test_a_redrive_needs_ids_or_all(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    assert relay("dead-letters", "redrive", path).exit_code == 2
    assert relay("dead-letters", "redrive", path, "x", "--all").exit_code == 2
    for options in (("--max", "1"), ("--since", "-2h"), ("--reason", "large")):
        result = relay("dead-letters", "redrive", path, "x", *options)
        assert result.exit_code == 2
        assert errors(result) == ["--since, --reason and --max only narrow down --all: omit the ids"]
    for since, chosen in product(("soon", "latest", "trim_horizon"), (["--all"], [], ["some-id"])):
        result = relay("dead-letters", "redrive", path, *chosen, "--since", since)
        assert result.exit_code == 2
        assert errors(result)[0].startswith(f"--since {since}: must be an ISO time")
