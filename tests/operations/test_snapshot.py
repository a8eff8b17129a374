"""``relay snapshot``: on demand, beside the running relay or before its next start; stopped and resumed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.change import MARK
from relay.config import load
from relay.kafka.checkpoints import read_checkpoints
from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from relay.operations import snapshot
from relay.operations.snapshot import request as request_snapshot
from relay.records import SnapshotRequest
from relay.snapshots.control import requested
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.harness import Relay
from tests.faults.scripted_relay import start_relay
from tests.operating import Operated
from tests.waiting import wait_until

pytestmark = pytest.mark.services

ITEMS = 40


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    """Items from before the relay, which a snapshot reads in pages of three."""
    with ScriptedStream(page=3) as scripted:
        scripted.shard("root")
        for number in range(ITEMS):
            scripted.put("root", f"item-{number}", 1, created=int(time.time()) - 3600)
        yield scripted


@pytest.fixture
def relay(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch) -> Operated:
    monkeypatch.setenv("COLUMNS", "200")
    return Operated(tmp_path, stream, kafka.bootstrap_servers, unique)


def reads(relay: Operated) -> Counter[str]:
    return Counter(change["key"]["id"] for change in relay.changes() if change["operation"] == "READ" and change["key"])


def marks(relay: Operated) -> Counter[str]:
    return Counter(change["attributes"][MARK] for change in relay.changes() if MARK in change["attributes"])


def once(times: int = 1) -> dict[str, int]:
    return {f"item-{number}": times for number in range(ITEMS)}


@contextmanager
def running(relay: Operated) -> Iterator[Relay]:
    worker = start_relay(relay.path)
    try:
        wait_until(lambda: any(shard["owner"] for shard in relay.source()["shards"]) or None, 60)
        yield worker
    finally:
        assert worker.terminate() == 0, worker.log()


def state(relay: Operated) -> str | None:
    found = relay.source()["snapshot"]
    return None if found is None else str(found["state"])


def requests(relay: Operated) -> list[SnapshotRequest]:
    settings = KafkaSettings.from_config(load(relay.path))
    return read_checkpoints(settings.client, settings.checkpoints).requests_of("s")


class Pace:
    """Lets a table be read page by page. ``pages``: how many more may be read."""

    def __init__(self, stream: ScriptedStream) -> None:
        self.pages = self.read = 0
        stream.before = self._before

    def has_read(self, pages: int) -> bool | None:
        return self.read >= pages or None

    def _before(self, operation: str) -> None:
        if operation != "Scan":
            return
        if not self.pages:
            raise Refused("ProvisionedThroughputExceededException")
        self.pages -= 1
        self.read += 1


def test_a_snapshot_is_taken_beside_the_running_relay_and_shown_by_status(
    relay: Operated, stream: ScriptedStream
) -> None:
    pace = Pace(stream)
    relay.run()
    with running(relay):
        said = relay.command("snapshot", "CONFIG", "s").stdout
        assert "source s: a snapshot of all tables was requested (request " in said
        assert "no worker" not in said
        wait_until(lambda: state(relay) == "reading" or None, 60)
        found = relay.source()
        (request,) = found["snapshot_requests"]
        assert (found["snapshot"]["requests"], found["snapshot"]["stopped"]) == ([request["id"]], False)
        assert "of all tables reading: 0 of 3 segments" in relay.command("status", "CONFIG").stdout
        assert "waits until snapshot" in relay.command("snapshot", "CONFIG", "s", TABLE).stdout
        assert ": waiting" in relay.command("status", "CONFIG").stdout
        stream.put("root", "item-1", 2, old=1)
        pace.pages = 1000
        wait_until(lambda: relay.source()["snapshot_requests"] == [] or None, 120)
        wait_until(lambda: state(relay) == "finished" or None)  # in another partition, whose marker may come later
    assert reads(relay) == once(2)
    assert relay.versions("item-1").count(2) == 3
    partitions = load(relay.path).kafka.partitions
    assert marks(relay) == {"begin": 2 * partitions, "end": 2 * partitions}


def test_a_request_that_is_made_while_the_relay_is_down_is_served_when_it_starts(
    relay: Operated, stream: ScriptedStream
) -> None:
    relay.run()
    assert "no worker is running: it begins with the next" in relay.command("snapshot", "CONFIG", "s").stdout
    assert len(relay.source()["snapshot_requests"]) == 1
    relay.run()
    relay.run()
    assert reads(relay) == once()
    assert (state(relay), relay.source()["snapshot_requests"]) == ("finished", [])


def test_a_snapshot_that_is_stopped_goes_on_where_it_was(relay: Operated, stream: ScriptedStream) -> None:
    """I3: each row is read once, however quickly it goes on."""
    pace = Pace(stream)
    relay.run()
    with running(relay):
        relay.command("snapshot", "CONFIG", "s", TABLE)
        for pages in (3, 6):
            pace.pages = 3
            wait_until(partial(pace.has_read, pages), 60)
            said = relay.command("snapshot", "CONFIG", "s", "--stop").stdout
            assert "of all tables is stopping where it is" in said
            assert "of all tables stopped: 0 of 3 segments" in relay.command("status", "CONFIG").stdout
            assert relay.source()["snapshot"]["stopped"]
            assert "all tables resumes" in relay.command("snapshot", "CONFIG", "s").stdout
        relay.command("snapshot", "CONFIG", "s", "--stop")
    relay.run()  # ends although it is stopped
    assert 0 < len(reads(relay)) < ITEMS
    relay.command("snapshot", "CONFIG", "s")
    pace.pages = 1000
    relay.run()
    assert reads(relay) == once()
    partitions = load(relay.path).kafka.partitions
    assert marks(relay) == {"begin": partitions, "end": partitions}
    assert (state(relay), relay.source()["snapshot_requests"]) == ("finished", [])


def test_requests_that_have_not_begun_are_withdrawn(relay: Operated) -> None:
    relay.run()
    relay.command("snapshot", "CONFIG", "s")
    assert "of all tables was withdrawn" in relay.command("snapshot", "CONFIG", "s", "--stop").stdout
    asked = json.loads(relay.command("snapshot", "CONFIG", "s", TABLE, "--json").stdout)
    (request,) = relay.source()["snapshot_requests"]
    named = {"request": request["id"], "tables": request["tables"]}
    assert asked == {"source": "s", **named, "resumed": False, "behind": None, "workers": 0}
    stopped = json.loads(relay.command("snapshot", "CONFIG", "s", "--stop", "--json").stdout)
    assert stopped == {"source": "s", "snapshot": None, "stopped": [], "withdrawn": [named]}
    relay.run()
    assert reads(relay) == {}
    said = relay.command("snapshot", "CONFIG", "s", "--stop", code=1).stderr
    assert "there is no requested snapshot to stop: none is running or waiting" in said


def test_a_snapshot_that_fulfils_several_requests_stops_and_goes_on_as_one(
    relay: Operated, stream: ScriptedStream
) -> None:
    """I1: also one that was asked for twice, whichever of the requests is repeated."""
    pace = Pace(stream)
    relay.run()
    for _ in range(2):
        relay.command("snapshot", "CONFIG", "s")
    with running(relay):
        wait_until(lambda: state(relay) == "reading" or None, 60)
        assert len(relay.source()["snapshot"]["requests"]) == 2
        for _ in range(2):
            said = relay.command("snapshot", "CONFIG", "s", "--stop").stdout
            assert "is stopping where it is" in said
            assert "withdrawn" not in said
            assert relay.source()["snapshot"]["stopped"]
            assert "all tables resumes" in relay.command("snapshot", "CONFIG", "s", TABLE).stdout
            assert not relay.source()["snapshot"]["stopped"]
        pace.pages = 1000
        wait_until(lambda: relay.source()["snapshot_requests"] == [] or None, 120)
    assert reads(relay) == once()


class TakenMeanwhile:
    """Lets a worker take a request while `relay snapshot --stop` runs: after it has read what there is.

    ``late``: the worker's record is not there before the command has ended.
    """

    def __init__(self, relay: Operated, monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
        self._relay = relay
        self._late = late
        self._withdraw = snapshot._withdraw
        monkeypatch.setattr(snapshot, "_withdraw", self.withdraw)

    def withdraw(self, settings: KafkaSettings, request: SnapshotRequest) -> None:
        self._withdraw(settings, request)
        if not self._late:
            self.take(request)

    def take(self, request: SnapshotRequest) -> None:
        """Write what the owner of the control record writes."""
        settings = KafkaSettings.from_config(load(self._relay.path))
        read = read_checkpoints(settings.client, settings.checkpoints).newest("s")
        assert read is not None
        control = requested(None, request.tables, [request.id], set(), 0, time.time())
        write_unfenced(settings, read.stream.snapshot_key, control.to_json(), "relay status")


@pytest.mark.parametrize("late", [False, True])
def test_a_request_that_a_worker_takes_while_it_is_withdrawn_can_be_stopped_and_resumed(
    relay: Operated, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """I1, I3: the worker died after that, before any segment was planned. Nobody is told that nothing runs."""
    relay.run()
    asked = json.loads(relay.command("snapshot", "CONFIG", "s", "--json").stdout)
    (request,) = requests(relay)
    meanwhile = TakenMeanwhile(relay, monkeypatch, late=late)
    said = relay.command("snapshot", "CONFIG", "s", "--stop").stdout
    if late:
        assert f"the request {asked['request']} of all tables was withdrawn" in said
        meanwhile.take(request)
        said = relay.command("snapshot", "CONFIG", "s", "--stop").stdout
    assert "of all tables is stopping where it is" in said
    assert "withdrawn" not in said
    found = relay.source()
    assert (found["snapshot"]["stopped"], [each["id"] for each in found["snapshot_requests"]]) == (True, [request.id])
    relay.run()
    assert reads(relay) == {}
    assert "all tables resumes" in relay.command("snapshot", "CONFIG", "s").stdout
    relay.run()
    assert reads(relay) == once()
    assert (state(relay), relay.source()["snapshot_requests"]) == ("finished", [])


def test_the_initial_snapshot_cannot_be_stopped_and_what_two_ask_for_at_once_is_served_after_it(
    relay: Operated, stream: ScriptedStream
) -> None:
    """I1, I3: one snapshot after the initial one fulfils all requests, since they ask for the same."""
    pace = Pace(stream)
    relay.configure(snapshot="initial")
    with running(relay):
        wait_until(lambda: state(relay) == "reading" or None, 60)
        said = relay.command("snapshot", "CONFIG", "s", "--stop", code=1).stderr
        assert "is the initial one or repairs a gap" in said
        config = load(relay.path)
        with ThreadPoolExecutor(2) as pool:
            asked = list(pool.map(lambda tables: request_snapshot(config, "s", tables), ([], [TABLE])))
        assert all(each.behind is not None for each in asked)
        assert len(requests(relay)) == 2
        assert "it waits until snapshot" in relay.command("snapshot", "CONFIG", "s").stdout
        pace.pages = 1000
        wait_until(lambda: (state(relay) == "finished" and not requests(relay)) or None, 120)
    assert reads(relay) == once(2)
    partitions = load(relay.path).kafka.partitions
    assert marks(relay) == {"begin": 2 * partitions, "end": 2 * partitions}


def test_a_snapshot_that_reads_a_table_again_cannot_be_stopped_and_the_reason_is_said(relay: Operated) -> None:
    relay.run()
    settings = KafkaSettings.from_config(load(relay.path))
    read = read_checkpoints(settings.client, settings.checkpoints).newest("s")
    assert read is not None
    control = replace(requested(None, (TABLE,), (), set(), 0, time.time()), repetitions=1)
    write_unfenced(settings, read.stream.snapshot_key, control.to_json(), "relay status")
    said = relay.command("snapshot", "CONFIG", "s", "--stop", code=1).stderr
    assert "reads again what was emptied or renamed during the one before it, and copies wait for it" in said


def test_what_cannot_be_snapshotted_is_refused(relay: Operated) -> None:
    assert f"relay {relay.name} has not run yet" in relay.command("snapshot", "CONFIG", "s", code=1).stderr
    relay.run()
    assert "the sources are s" in relay.command("snapshot", "CONFIG", "t", code=2).stderr
    said = relay.command("snapshot", "CONFIG", "s", "orders", code=2).stderr
    assert f"source s has no table orders; its tables are {TABLE}" in said
    content = yaml.safe_load(relay.path.read_text())
    vitess = {"name": "v", "type": "vitess", "vtgate": "127.0.0.1:1", "keyspace": "k", "tables": ["a"]}
    relay.path.write_text(yaml.safe_dump({**content, "sources": [vitess]}))
    said = relay.command("snapshot", "CONFIG", "v", "b", code=2).stderr
    assert "source v has no table b; its tables are a" in said
    assert relay.status()["sources"][0]["snapshot_requests"] == []
