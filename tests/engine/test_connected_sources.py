"""I12: a source that cannot be read stops only itself, is tried again, and is validated when it comes back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import orjson
import pytest
import yaml

from relay.config import Config, load
from relay.engine import connected_sources
from relay.engine.config_reload import ReloadedConfig
from relay.engine.connected_sources import ConnectedSources
from relay.errors import ConfigError, NoAnswer, RelayError, Unavailable
from tests.clock import Clock
from tests.command_line import run_until_caught_up
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.scripted_relay import tail_topic
from tests.observe.observed_relay import ObservedRelay
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def others() -> Iterator[ScriptedStream]:
    with ScriptedStream(table="others") as scripted:
        yield scripted


@pytest.fixture
def path(tmp_path: Path, stream: ScriptedStream, others: ScriptedStream, unique: str) -> Path:
    """The config of two sources, ``one`` and ``other``, without a broker."""
    sources = [
        {"name": name, "type": "dynamodb", "table": each.table, "region": "us-east-1", "endpoint_url": each.url}
        for name, each in (("one", stream), ("other", others))
    ]
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump({"name": unique, "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "sources": sources}))
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def config(path: Path) -> Config:
    return load(path)


@pytest.fixture
def connections(config: Config, clock: Clock) -> ConnectedSources:
    return ConnectedSources(ReloadedConfig(config, lambda: config), clock=clock)


@pytest.fixture
def third() -> Iterator[ScriptedStream]:
    with ScriptedStream(table="thirds") as scripted:
        yield scripted


@pytest.fixture
def three(path: Path, third: ScriptedStream, clock: Clock) -> ConnectedSources:
    """Connects to ``third``, too."""
    entry = {"name": "third", "type": "dynamodb", "table": "thirds", "region": "us-east-1", "endpoint_url": third.url}
    change(path, lambda raw: raw["sources"].append(entry))
    config = load(path)
    return ConnectedSources(ReloadedConfig(config, lambda: config), clock=clock)


def refuse(operation: str) -> None:
    raise Refused("AccessDeniedException", message="no right")


def answer(operation: str) -> None:
    pass


def until(event: Event) -> Callable[[str], None]:
    def wait(operation: str) -> None:
        assert event.wait(PATIENCE)

    return wait


def connected(connections: ConnectedSources) -> set[str]:
    connections.begin()
    sources = connections.connect()
    for source in sources.values():
        source.close()
    return {stream.source for stream in sources}


def ended(connections: ConnectedSources) -> Callable[[], bool]:
    """Return what says whether the attempts that are due have ended."""
    return lambda: connections.is_one_back() or not connections.is_connecting


def test_a_source_that_is_refused_is_left_out_and_tried_again_until_it_is_back(
    connections: ConnectedSources, others: ScriptedStream, clock: Clock
) -> None:
    others.before = refuse
    assert connected(connections) == {"one"}
    refused = connections.refusals["other"]
    assert refused.since == clock()
    assert "no right" in str(refused.error)
    clock.now = refused.again_at
    wait_until(ended(connections))
    again = connections.refusals["other"]
    assert again.since == refused.since  # I10: another attempt does not reset what health shows
    assert clock() < again.again_at <= clock() + 30
    others.before = answer
    assert not connections.is_one_back()  # not due
    clock.now = again.again_at
    wait_until(connections.is_one_back)
    assert connected(connections) == {"one", "other"}
    assert not connections.refusals


def test_the_relay_ends_with_the_first_reason_if_no_source_can_be_read(
    connections: ConnectedSources, stream: ScriptedStream, others: ScriptedStream
) -> None:
    stream.before = others.before = refuse
    connections.begin()
    with pytest.raises(Unavailable, match="no right"):
        connections.connect()


def is_tried(connections: ConnectedSources, name: str) -> Callable[[], bool]:
    return lambda: connections._calls[name].done()


def test_a_source_that_was_read_is_waited_for_when_another_is_back_however_slow_it_is(
    connections: ConnectedSources, stream: ScriptedStream, others: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: two slow sources would evict each other for ever."""
    monkeypatch.setattr(connected_sources, "_PATIENCE", 0.0)
    goes_on = Event()
    others.before = until(goes_on)
    assert connected(connections) == {"one"}
    assert "has not answered" in str(connections.refusals["other"].error)
    goes_on.set()
    wait_until(connections.is_one_back)
    stream.before = lambda operation: time.sleep(0.3)
    assert connected(connections) == {"one", "other"}
    others.before = stream.before
    assert connected(connections) == {"one", "other"}
    assert not connections.refusals


def test_a_source_that_is_back_waits_for_a_while_for_others_that_are_being_connected_to(
    three: ConnectedSources, others: ScriptedStream, third: ScriptedStream, clock: Clock
) -> None:
    """I10: each end of a worker stops all sources that it reads."""
    others.before = third.before = refuse
    assert connected(three) == {"one"}
    goes_on = Event()
    others.before, third.before = answer, until(goes_on)
    clock.now = max(each.again_at for each in three.refusals.values())
    assert not three.is_one_back()
    wait_until(is_tried(three, "other"))
    assert not three.is_one_back()
    clock.now += 30.0
    assert three.is_one_back()
    assert connected(three) == {"one", "other"}
    goes_on.set()
    wait_until(three.is_one_back)
    assert connected(three) == {"one", "other", "third"}


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConfigError("another key"), False),
        (RelayError("another key"), False),
        (Unavailable("other partitions"), False),
        (NoAnswer("no broker"), True),
    ],
)
def test_what_no_attempt_can_repair_is_not_tried_again_before_a_reload(
    connections: ConnectedSources, config: Config, error: RelayError, again: bool
) -> None:
    assert connected(connections) == {"one", "other"}
    connections.refuse_plan("other", error)
    assert (connections.refusals["other"].again_at < math.inf) is again
    assert connected(connections) == {"one"}
    assert not connections.is_one_back()
    connections._reloaded.config = config.model_copy()
    wait_until(connections.is_one_back)


def test_a_reload_gives_a_source_that_is_not_read_its_entry(connections: ConnectedSources, config: Config) -> None:
    entry = config.sources[1].model_copy(update={"on_gap": "skip"})
    reloaded = ReloadedConfig(config, lambda: config.model_copy(update={"sources": [config.sources[0], entry]}))
    reloaded.request()

    def applied() -> bool:
        reloaded.serve([])
        return reloaded.config is not config

    wait_until(applied)
    assert reloaded.config.sources[1] == entry


def test_a_source_that_was_being_connected_to_during_a_reload_is_read_by_the_new_entry(
    config: Config, others: ScriptedStream, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I8: the plan says that the new entry is in force, with what it wants and what it protects."""
    monkeypatch.setattr(connected_sources, "_PATIENCE", 0.0)
    connections = ConnectedSources(reloaded := ReloadedConfig(config, lambda: config), clock=clock)
    goes_on = Event()
    others.before = until(goes_on)
    assert connected(connections) == {"one"}
    entry = config.sources[1].model_copy(update={"on_gap": "skip"})
    reloaded.config = config.model_copy(update={"sources": [config.sources[0], entry]})
    assert not connections.is_one_back()
    goes_on.set()
    wait_until(connections.is_one_back)
    connections.begin()
    for stream, source in connections.connect().items():
        assert source.on_gap == ("skip" if stream.source == "other" else "fail")
        source.close()
    assert not connections.refusals


@pytest.fixture
def relayed(path: Path, kafka: Any, stream: ScriptedStream, others: ScriptedStream) -> Path:
    """The same config with a broker, after a run."""
    change(path, lambda raw: raw["kafka"].update(bootstrap_servers=kafka.bootstrap_servers))
    for each in (stream, others):
        each.shard("a")
        each.put("a", "k", 1)
    run_until_caught_up(path)
    for each in (stream, others):
        each.put("a", "k", 2, old=1)
    return path


def change(path: Path, edit: Callable[[Any], object]) -> None:
    raw = yaml.safe_load(path.read_text())
    edit(raw)
    path.write_text(yaml.safe_dump(raw))


def published(path: Path, table: str) -> Callable[[], int]:
    return lambda: len(tail_topic(path, load(path).topic(table)))


def watermarks(path: Path) -> list[Any]:
    """Return the keys of all that was written so far, in order."""
    return [orjson.loads(each["key"]) for each in tail_topic(path, load(path).internal("watermarks"))]


@pytest.mark.services
def test_a_start_that_was_changed_stops_its_source_alone(relayed: Path, stream: ScriptedStream) -> None:
    change(relayed, lambda raw: raw["sources"][1].update(start="latest"))
    assert "`start` is 'latest'" in run_until_caught_up(relayed, expected_code=2)
    assert published(relayed, stream.table)() == 2
    running = ObservedRelay(relayed)
    [stall] = [each for each in running.until("/healthz", 503)["stalls"] if each["source"]]
    assert (stall["source"], stall["what"]) == ("other", "the source is not read")
    assert "`start` is 'latest'" in stall["error"]
    before = len(watermarks(relayed))
    wait_until(lambda: len(watermarks(relayed)) > before + 4)
    assert ["v1"] not in watermarks(relayed)[before:]  # I1: `other` is behind
    running.stop()
    change(relayed, lambda raw: raw["sources"][1].update(start="trim_horizon"))
    run_until_caught_up(relayed)
    assert published(relayed, "others")() == 2


@pytest.mark.services
def test_a_source_of_which_no_plan_can_be_made_stops_only_itself(
    path: Path, kafka: Any, stream: ScriptedStream, others: ScriptedStream
) -> None:
    change(path, lambda raw: raw["kafka"].update(bootstrap_servers=kafka.bootstrap_servers))
    for each in (stream, others):
        each.shard("a")
        each.put("a", "k", 1)
    described: list[str] = []

    def refuse_later(operation: str) -> None:
        described.append(operation)
        if described.count("DescribeStream") > 1:
            raise Refused("AccessDeniedException", message="no right")

    others.before = refuse_later
    assert "no right" in run_until_caught_up(path, expected_code=3)
    assert published(path, stream.table)() == 1
    described.clear()
    running = ObservedRelay(path)
    stalls = running.until("/healthz", 503)["stalls"]
    assert "other" in {each["source"] for each in stalls}, json.dumps(stalls)
    stream.put("a", "k", 2, old=1)
    wait_until(lambda: published(path, stream.table)() == 2)
    others.before = answer
    wait_until(lambda: published(path, "others")() == 1)
    running.until("/healthz", 200)
    running.stop()


@pytest.mark.services
def test_a_source_whose_first_stream_cannot_be_looked_up_waits_without_stopping_the_others(
    path: Path, kafka: Any, stream: ScriptedStream, others: ScriptedStream
) -> None:
    change(path, lambda raw: raw["kafka"].update(bootstrap_servers=kafka.bootstrap_servers))
    for each in (stream, others):
        each.shard("a")
        each.put("a", "k", 1)

    def refuse_list(operation: str) -> None:
        if operation == "ListStreams":
            raise Refused("ValidationException", message="not now")

    others.before = refuse_list
    running = ObservedRelay(path)
    [stall] = [each for each in running.until("/healthz", 503)["stalls"] if each["source"] == "other"]
    assert stall["what"] == "the stream waits for a person"
    assert "not now" in stall["error"]
    wait_until(lambda: published(path, stream.table)() == 1)
    others.before = answer
    wait_until(lambda: published(path, "others")() == 1)
    running.until("/healthz", 200)
    assert running.relay.log().count("took over 64 partitions") == 1  # I12: `one` was read all the time
    running.stop()
