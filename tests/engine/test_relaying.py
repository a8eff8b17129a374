"""A relay that starts again in the same process."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from relay.config import Config, HttpConfig, load
from relay.engine.relaying import run
from relay.errors import NotDrained
from relay.kafka.freshness import MissedDeletions
from relay.process.managed import free_port
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.harness import Scene
from tests.faults.scripted_relay import write_config
from tests.kafka.clients import kafka_clients
from tests.observe.observed_relay import get

pytestmark = pytest.mark.services


def test_a_relay_that_starts_again_leaves_no_client_of_kafka_of_its_first_run(scene: Scene) -> None:
    before = kafka_clients()
    first: set[str] = set()
    left: list[set[str]] = []

    def probe(step: str) -> None:
        if not first:
            first.update(kafka_clients() - before)
            raise MissedDeletions("a partition was not read for too long")
        if step == "before_commit":
            left.append(kafka_clients() & first)

    run(scene.config, until_caught_up=True, probe=probe)
    assert first
    assert left
    assert left[-1] == set()


def test_a_relay_that_starts_again_and_again_is_red_and_counts_its_changes_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: each worker had a health of its own, and each was too young to be red."""
    monkeypatch.setenv("RELAY_STALLED_AFTER", "2")
    item = {"customer": {"S": "ada"}, "order_id": {"N": "7"}, "version": {"N": "1"}}
    scene.client.put_item(TableName=scene.table, Item=item)
    url = f"http://127.0.0.1:{free_port()}"
    config = scene.config.model_copy(update={"http": HttpConfig(address=url.removeprefix("http://"))})
    seen: list[str] = []
    published: list[str] = []
    starts: list[str] = []

    def probe(step: str) -> None:
        if step == "after_commit":
            published.extend(re.findall(r"^relay_changes_published_total.* (\S+)$", get(url, "/metrics")[1], re.M))
        if step != "before_commit" or seen or 'records_read_total{source="orders"} 0.0' in get(url, "/metrics")[1]:
            return
        code, health = get(url, "/healthz")
        if code == 503 and "no transaction" in health:
            seen.append(health)
        starts.append(step)
        assert len(starts) < 60, health
        raise MissedDeletions("a partition was not read for too long")

    run(config, until_caught_up=True, probe=probe)
    assert "the last was dropped with its worker: a partition was not read for too long" in seen[0]
    assert set(published) <= {"0.0", "1.0"}
    assert len(scene.events()) == 1


def test_a_reload_that_comes_just_before_a_relay_starts_again_is_applied(scene: Scene) -> None:
    config = scene.config
    read: list[Config] = []
    failed: list[str] = []

    def again() -> Config:
        read.append(config)
        return config

    def probe(step: str) -> None:
        if not failed:
            failed.append(step)
            os.kill(os.getpid(), signal.SIGHUP)
            raise MissedDeletions("a partition was not read for too long")

    run(config, until_caught_up=True, probe=probe, reload=again)
    assert failed
    assert read == [config]


def test_a_reload_that_comes_while_a_relay_connects_is_applied(tmp_path: Path, kafka: Any, unique: str) -> None:
    read: list[Config] = []
    with ScriptedStream() as stream:
        stream.shard("a")
        config = load(write_config(tmp_path, stream, kafka.bootstrap_servers, unique))

        def signal_once(operation: str) -> None:
            stream.before = lambda operation: None
            os.kill(os.getpid(), signal.SIGHUP)

        def again() -> Config:
            read.append(config)
            return config

        stream.before = signal_once
        run(config, until_caught_up=True, reload=again)
    assert read == [config]


def test_a_stop_just_before_a_relay_starts_again_ends_it(scene: Scene) -> None:
    def probe(step: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise MissedDeletions("a partition was not read for too long")

    with pytest.raises(NotDrained):
        run(scene.config, probe=probe)
