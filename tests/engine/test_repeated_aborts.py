"""I10: transactions that are aborted again and again neither keep a processor busy nor go on for ever in silence."""

from __future__ import annotations

import re
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from relay.config import load
from relay.engine import repeated_aborts
from relay.engine.repeated_aborts import RepeatedAborts
from relay.errors import Unavailable
from relay.kafka.settings import KafkaSettings
from relay.observe.health import Liveness
from tests.command_line import run_until_caught_up
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.scripted_relay import published_versions, start_relay, write_config
from tests.kafka.transactional import create
from tests.listening import NOBODY
from tests.waiting import wait_until


def aborts(folder: Path, stream: ScriptedStream, bootstrap_servers: str) -> tuple[RepeatedAborts, list[float]]:
    """Also return the pauses that were taken, none of which takes any time."""
    settings = KafkaSettings.from_config(load(write_config(folder, stream, bootstrap_servers, "shop")))
    taken: list[float] = []
    return RepeatedAborts(settings, lambda: ["lost"], Liveness(), sleep=taken.append), taken


def test_the_first_abort_after_a_commit_is_followed_at_once_and_others_ever_later(
    tmp_path: Path, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_aborts, "_TIMEOUT", 0.1)
    repeated, pauses = aborts(tmp_path, stream, "127.0.0.1:1")
    for _ in range(2):
        repeated.aborted("by the test")
        assert pauses == []
        for _ in range(7):
            repeated.aborted("by the test")
        assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        pauses.clear()
        repeated._liveness.committed()


def test_aborts_go_on_while_no_broker_says_which_topics_there_are(
    tmp_path: Path, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_aborts, "_TIMEOUT", 0.1)
    repeated, pauses = aborts(tmp_path, stream, NOBODY)
    for _ in range(30):
        repeated.aborted("by the test")
    assert sum(pauses) > 20


@pytest.mark.services
def test_a_topic_that_does_not_exist_is_named_after_a_while(tmp_path: Path, stream: ScriptedStream, kafka: Any) -> None:
    repeated, pauses = aborts(tmp_path, stream, kafka.bootstrap_servers)
    for _ in range(10):
        repeated.aborted("by the test")
    assert sum(pauses) > 5
    with pytest.raises(Unavailable, match=r"topic 'lost' was deleted while the relay ran.*restart the relay"):
        repeated.aborted("by the test")
    assert 5 < sum(pauses) < 6


@pytest.mark.services
def test_it_is_named_although_transactions_of_other_topics_succeed(
    tmp_path: Path, stream: ScriptedStream, kafka: Any
) -> None:
    repeated, pauses = aborts(tmp_path, stream, kafka.bootstrap_servers)
    for _ in range(10):
        repeated.aborted("by the test")
        repeated._liveness.committed()
    assert pauses == []
    with pytest.raises(Unavailable, match="topic 'lost' was deleted"):
        repeated.aborted("by the test")


@pytest.mark.services
def test_too_few_replicas_in_sync_are_the_reason_of_what_is_not_acknowledged(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I10: the client repeats such writes without a word, and a slow connection would be blamed."""
    create({"bootstrap.servers": kafka.bootstrap_servers}, unique, **{"min.insync.replicas": "2"})
    settings = KafkaSettings.from_config(load(write_config(tmp_path, stream, kafka.bootstrap_servers, unique)))
    liveness = Liveness()
    repeated = RepeatedAborts(settings, lambda: [unique, "another"], liveness, sleep=lambda _: None)
    repeated.aborted("a rebalance")
    assert str(liveness.uncommitted).endswith("the last was aborted: a rebalance")
    said = (
        rf"nothing can be written to partition 0 of topic '{unique}': 1 of its 1 replicas is in sync, and "
        r"min\.insync\.replicas is 2\. Start the brokers that are away \(no answer\)$"
    )
    repeated.aborted("no answer", slow=True)
    assert re.search(f"the last was aborted: {said}", str(liveness.uncommitted))
    repeated.unanswered("no answer")
    assert re.search(f"3 attempts failed; the last was {said}", str(liveness.uncommitted))


class OfAnotherServer(AdminClient):
    """Asks a broker that does not report the setting, as others that speak Kafka's protocol may not."""

    def describe_configs(self, resources: Any, **options: Any) -> Any:  # type: ignore[override]
        answers = {}
        for resource in resources:
            answers[resource] = Future[Any]()
            answers[resource].set_result({})
        return answers


@pytest.mark.services
def test_a_broker_that_does_not_say_how_many_replicas_it_needs_is_taken_to_be_writable(
    kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the search for a reason never ends the relay."""
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    create(client, unique)
    assert repeated_aborts.shortage(client, [unique, f"{unique}.missing"]) == ""
    monkeypatch.setattr(repeated_aborts, "AdminClient", OfAnotherServer)
    assert repeated_aborts.shortage(client, [unique, f"{unique}.missing"]) == ""


@pytest.mark.services
def test_a_topic_that_is_deleted_under_a_running_relay_ends_it_and_the_next_run_goes_on(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I1: what was not in the topic is published by the next run."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    topic = load(path).topic(TABLE)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    stream.shard("root")
    stream.put("root", "k", 1)
    run_until_caught_up(path)
    assert published_versions(path)[0] == {"k": [1]}
    relay = start_relay(path)
    relay.wait_for("took over")
    stream.put("root", "k", 2, old=1)
    wait_until(lambda: published_versions(path)[0] == {"k": [1, 2]}, 60)
    admin.delete_topics([topic])[topic].result(120)
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, 60)
    stream.put("root", "k", 3, old=2)
    assert relay.wait(240) == 3, relay.log()
    assert relay.has_logged(f"topic '{topic}' was deleted while the relay ran")
    assert relay.log().count("aborted") < 60
    run_until_caught_up(path)
    assert published_versions(path)[0] == {"k": [3]}
