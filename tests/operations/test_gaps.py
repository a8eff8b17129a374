"""``relay gaps``: under ``on_gap: fail``, a gap waits for a decision and is then published once (I9)."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from relay.config import load
from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from relay.process.managed import free_port
from relay.records import Gap, SnapshotRequest
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream, full
from tests.faults.scripted_relay import start_relay
from tests.observe.observed_relay import get
from tests.operating import Operated
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def relay(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> Operated:
    return Operated(tmp_path, stream, kafka.bootstrap_servers, unique)


def lose(relay: Operated, stream: ScriptedStream) -> str:
    """Make the relay stop at a gap; return the gap's id."""
    stream.shard("root")
    stream.put("root", "k", 1, created=int(time.time()) - 3600)
    relay.run()
    for version in (2, 3, 4):
        stream.put("root", "k", version, old=version - 1, created=int(time.time()) - 3600)
    stream.trim("root", 3)
    said = relay.run(code=1).stderr
    (gap,) = relay.gaps()
    assert f"`relay gaps accept {relay.path} {gap['id']} skip|resnapshot`" in said
    assert f"`relay gaps accept {relay.path} ID skip|resnapshot`" in relay.command("gaps", "list", "CONFIG").stdout
    shown = relay.command("status", "CONFIG").stdout
    assert "\nStopped at a gap: A person has to decide" in shown
    assert f"relay gaps accept {relay.path} {gap['id']} skip" in shown
    assert (gap["state"], gap["decision"], gap["reason"]) == ("pending", None, "trimmed")
    assert gap["shard"] == full("root")
    return str(gap["id"])


def test_a_gap_stops_the_relay_until_it_is_accepted_and_is_then_published_once(
    relay: Operated, stream: ScriptedStream
) -> None:
    gap = lose(relay, stream)
    relay.run(code=1)
    assert [(g["id"], g["state"]) for g in relay.gaps()] == [(gap, "pending")]
    assert relay.gap_records() == []
    assert relay.versions() == [1]
    assert f"pending gaps: {gap}" in relay.command("gaps", "accept", "CONFIG", "0123", "skip", code=2).stderr
    relay.command("gaps", "accept", "CONFIG", gap, "resnapshot")
    said = relay.command("gaps", "accept", "CONFIG", gap, "skip").stdout
    assert "accepted: skip, which replaces the decision resnapshot. The relay continues." in said
    accepted = json.loads(relay.command("gaps", "accept", "CONFIG", gap, "skip", "--json").stdout)
    assert [accepted] == relay.gaps()
    assert [(g["id"], g["state"], g["decision"]) for g in relay.gaps()] == [(gap, "accepted", "skip")]
    relay.run()
    relay.run()
    assert relay.versions() == [1, 4]
    assert [record["id"] for record in relay.gap_records()] == [gap]
    assert [(g["id"], g["state"], g["decision"]) for g in relay.gaps()] == [(gap, "published", None)]
    assert "has already been published" in relay.command("gaps", "accept", "CONFIG", gap, "skip", code=2).stderr
    assert f"gap {gap} published: trimmed at {full('root')}" in relay.command("status", "CONFIG").stdout


def test_a_statement_about_a_table_is_forgotten_with_those_before_it_but_not_with_later_ones(
    relay: Operated, stream: ScriptedStream
) -> None:
    """I12"""
    relay.run()
    config = load(relay.path)
    (source,), producer = config.sources, Producer(config.kafka.client())
    gaps = [
        Gap(source.name, "s", None, "altered", {"gtid": f"0-1-{n}"}, None, float(n), "t", f"ADD c{n}")
        for n in (1, 2, 3)
    ]
    late = replace(gaps[1], found_at=2.5)  # of another shard
    for number, gap in enumerate([gaps[0], late, *gaps[1:]]):
        note = SnapshotRequest(source.name, f"{number}", ("t",), gap.found_at, after=int(gap.found_at), gap=gap)
        write_unfenced(KafkaSettings.from_config(config), note.key, note.to_json(), "")
        producer.produce(config.internal("gaps"), gap.to_json(), gap.id.encode(), partition=0)
    assert producer.flush(30) == 0

    def accept(gap: Gap) -> str:
        return relay.command("gaps", "accept", "CONFIG", gap.id, "skip").stdout

    said = f"statements about table t of source {source.name} up to {gaps[1].id} are forgotten"
    assert accept(gaps[1]) == f"{said}, but those of {gaps[2].id} are not: copies may differ since\n"
    assert [gap["id"] for gap in relay.source()["altered"]] == [gaps[2].id]
    assert accept(gaps[2]) == said.replace(gaps[1].id, gaps[2].id) + "\n"
    assert relay.source()["altered"] == []


def test_a_gap_accepted_with_resnapshot_is_followed_by_a_snapshot(relay: Operated, stream: ScriptedStream) -> None:
    gap = lose(relay, stream)
    relay.command("gaps", "accept", "CONFIG", gap, "resnapshot")
    relay.run()
    relay.run()
    rows = [change for change in relay.changes() if change["operation"] == "READ" and change["key"] is not None]
    assert [row["key"] for row in rows] == [{"id": "k"}]
    assert [g["state"] for g in relay.gaps()] == ["published"]
    assert relay.source()["snapshot"]["repairs"] == [gap]


def test_a_source_in_debeziums_envelope_is_not_read_again(relay: Operated, stream: ScriptedStream) -> None:
    """I7"""
    gap = lose(relay, stream)
    text = relay.configure(envelope="debezium").read_text()
    relay.path.write_text(text + "schema_registry: {url: 'http://127.0.0.1:1'}\n")
    for refused in (("gaps", "accept", "CONFIG", gap, "resnapshot"), ("snapshot", "CONFIG", "s")):
        assert "may come after a newer change of it" in relay.command(*refused, code=2).stderr
    assert [each["state"] for each in relay.gaps()] == ["pending"]


def test_several_workers_stop_at_one_gap_and_continue_after_one_decision(
    relay: Operated, stream: ScriptedStream
) -> None:
    """Whichever worker meets the gap, and whichever owns its record."""
    gap = lose(relay, stream)
    workers = [start_relay(relay.path, "--until-caught-up") for _ in range(2)]
    assert {worker.wait(60) for worker in workers} == {1}
    assert [(g["id"], g["state"]) for g in relay.gaps()] == [(gap, "pending")]
    relay.command("gaps", "accept", "CONFIG", gap, "skip")
    workers = [start_relay(relay.path, "--until-caught-up") for _ in range(2)]
    for worker in workers:
        assert worker.wait(60) == 0, worker.log()
    assert relay.versions() == [1, 4]
    assert [record["id"] for record in relay.gap_records()] == [gap]
    relay.run()
    assert [g["state"] for g in relay.gaps()] == ["published"]


def test_without_gaps_there_is_nothing_to_accept(relay: Operated, stream: ScriptedStream) -> None:
    assert relay.gaps() == []
    assert "no gap is pending" in relay.command("gaps", "accept", "CONFIG", "0123", "skip", code=2).stderr
    assert relay.command("gaps", "list", "CONFIG").stdout == "no changes were lost\n"


def test_a_repair_that_a_new_stream_interrupts_is_made_in_that_stream(relay: Operated, stream: ScriptedStream) -> None:
    """I1, I9: waiting for the end of a long snapshot, the relay would lose what the new stream drops meanwhile."""
    relay.command("gaps", "accept", "CONFIG", lose(relay, stream), "resnapshot")
    stream.replace("2026-01-02T00:00:00.000")
    stream.shard("again")

    reads_again = False

    def hold(operation: str) -> None:
        nonlocal reads_again
        reads_again |= stream.requests[-1].get("ShardId") == full("again")
        if operation == "Scan" and not reads_again:
            raise Refused("ProvisionedThroughputExceededException")

    stream.before = hold
    relay.run(code=1)
    (pending,) = [gap for gap in relay.gaps() if gap["state"] == "pending"]
    assert pending["reason"] == "new stream"
    relay.command("gaps", "accept", "CONFIG", pending["id"], "skip")
    relay.run()
    relay.run()
    snapshot = [change for change in relay.changes() if change["snapshot"] is not None]
    assert [change["key"] for change in snapshot if change["key"]] == [{"id": "k"}]


def test_a_relay_that_is_started_again_before_a_gap_shows_that_it_waits_for_a_decision(
    relay: Operated, stream: ScriptedStream
) -> None:
    """I9, I10: also in the time until it meets the gap again."""
    lose(relay, stream)
    port, seen = free_port(), threading.Event()
    config = yaml.safe_load(relay.path.read_text())
    relay.path.write_text(yaml.safe_dump({**config, "http": f"127.0.0.1:{port}"}))

    def hold(operation: str) -> None:
        if operation in ("GetShardIterator", "GetRecords"):
            seen.wait(600)

    stream.before = hold

    def pending() -> bool:
        try:
            return 'relay_pending_gaps{source="s"} 1.0' in get(f"http://127.0.0.1:{port}", "/metrics")[1]
        except OSError:  # it does not listen yet
            return False

    worker = start_relay(relay.path)
    try:
        wait_until(lambda: pending() or None, 60)
    finally:
        seen.set()
    assert worker.terminate() == 0, worker.log()
