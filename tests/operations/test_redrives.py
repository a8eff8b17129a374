"""Dead letters that are sent again twice at once, again and again, or by a command that is killed: I3."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from relay.config import load
from relay.errors import Unavailable
from relay.operations.dead_letters import DeadLetter, DeadLetters
from tests.command_line import relay, run_until_caught_up
from tests.dynamodb.endpoint import TABLE
from tests.faults.scripted_relay import write_config
from tests.kafka.limited_topics import create, limit
from tests.operations.unpublishable import SMALL, StreamWithInvalidText, tail

pytestmark = pytest.mark.services


@pytest.fixture
def stream() -> Iterator[StreamWithInvalidText]:
    with StreamWithInvalidText() as scripted:
        scripted.shard("root")
        yield scripted


class Redriven:
    """A relay with dead letters that can be sent by now."""

    def __init__(self, folder: Path, stream: StreamWithInvalidText, servers: str, name: str, count: int) -> None:
        # A transaction that times out would be ended without another redrive.
        self.path = write_config(folder, stream, servers, name, transaction_timeout=30_000)
        self.config = load(self.path)
        self.topic = self.config.topic(TABLE)
        create(servers, self.topic, 6, max_message_bytes=str(SMALL))
        for n in range(count):
            stream.write(f"k{n}", 1, payload={"S": "x" * 2 * SMALL})
        run_until_caught_up(self.path)
        limit(servers, self.topic, 8 << 20)

    def times(self) -> Counter[int]:
        """How many changes are on the topic once, twice and so on, their stubs included."""
        sent = Counter(record["value"]["event_id"] for record in tail(self.path, self.topic))
        return Counter(sent.values())


@pytest.fixture
def redriven(tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str) -> Redriven:
    return Redriven(tmp_path, stream, kafka.bootstrap_servers, unique, 5)


def test_a_redrive_leaves_out_what_another_has_sent_since_it_read_the_dead_letters(redriven: Redriven) -> None:
    """I3"""
    first, second = DeadLetters(redriven.config), DeadLetters(redriven.config)
    sent: list[str] = []
    first.redrive(first.pending(at_most=3), lambda letter: sent.append(letter.id))
    second.redrive(second.pending(), lambda letter: sent.append(letter.id))
    assert len(set(sent)) == len(sent) == 5
    assert redriven.times() == {2: 5}
    # One that is named although it was sent before is sent once more.
    third = DeadLetters(redriven.config)
    third.redrive([third.find(sent[0])], lambda letter: None)
    assert redriven.times() == {2: 4, 3: 1}


def test_of_two_redrives_that_send_the_same_at_once_one_ends_and_the_other_goes_on(
    redriven: Redriven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: the second begins after the first has read that nobody has sent the third."""
    first, second = DeadLetters(redriven.config), DeadLetters(redriven.config)
    sent: list[str] = []
    mark = first._mark

    def overtaken(letter: DeadLetter, suffix: bytes) -> Any:
        if len(sent) == 2:
            second.redrive(second.pending(), lambda other: sent.append(other.id))
        return mark(letter, suffix)

    monkeypatch.setattr(first, "_mark", overtaken)
    with pytest.raises(
        Unavailable, match=r"may not have been redriven: another `dead-letters` command has since begun"
    ):
        first.redrive(first.pending(), lambda letter: sent.append(letter.id))
    assert len(set(sent)) == len(sent) == 5
    assert redriven.times() == {2: 5}


def test_a_redrive_leaves_out_what_another_sends_meanwhile(redriven: Redriven) -> None:
    """I3"""
    first, second = DeadLetters(redriven.config), DeadLetters(redriven.config)
    sent: list[str] = []

    def go_on(letter: DeadLetter) -> None:
        sent.append(letter.id)
        if len(sent) == 2:
            second.redrive(second.pending(), lambda other: sent.append(other.id))

    first.redrive(first.pending(), go_on)
    assert len(set(sent)) == len(sent) == 5
    assert redriven.times() == {2: 5}


def test_a_redrive_waits_for_an_open_transaction_that_hides_what_another_has_sent(
    redriven: Redriven, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: a worker may have dead letters in its transaction, before the mark of the other redrive."""
    worker = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": redriven.config.name})
    worker.init_transactions(30)
    first, second = DeadLetters(redriven.config), DeadLetters(redriven.config)
    mark = first._mark

    def after_worker(letter: DeadLetter, suffix: bytes) -> Any:
        worker.begin_transaction()
        worker.produce(redriven.config.internal("dead_letters"), b"", b"x", 0)
        assert worker.flush(30) == 0
        return mark(letter, suffix)

    monkeypatch.setattr(first, "_mark", after_worker)
    first.redrive(first.pending(at_most=1), lambda letter: None)
    end = threading.Timer(3.0, worker.abort_transaction, [30])
    end.start()
    second.redrive(second.pending(at_most=1), lambda letter: pytest.fail(f"{letter.id} was sent again"))
    end.join()
    assert redriven.times() == {1: 4, 2: 1}


def test_a_redrive_that_is_killed_sends_nothing_twice(
    tmp_path: Path, stream: StreamWithInvalidText, kafka: Any, unique: str
) -> None:
    """I3: whenever it is killed, also between sending a change and committing it."""
    redriven = Redriven(tmp_path, stream, kafka.bootstrap_servers, unique, 40)
    chosen = random.Random(1)
    for _ in range(4):
        command = [sys.executable, "-m", "relay.cli", "dead-letters", "redrive", str(redriven.path), "--all"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(chosen.randint(1, 6)):
                process.stdout.readline()
            time.sleep(chosen.random() / 50)
            process.kill()
    assert relay("dead-letters", "redrive", redriven.path, "--all").exit_code == 0
    assert redriven.times() == {2: 40}
