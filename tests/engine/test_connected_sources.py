"""I12: a source that cannot be read stops only itself, is tried again, and is validated when it comes back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.config import Config, load
from relay.engine.config_reload import ReloadedConfig
from relay.engine.connected_sources import ConnectedSources
from relay.errors import ConfigError, RelayError, Unavailable
from tests.clock import Clock
from tests.command_line import run_until_caught_up
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.scripted_relay import tail_topic
from tests.observe.observed_relay import ObservedRelay
from tests.waiting import wait_until


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


def refuse(operation: str) -> None:
    raise Refused("AccessDeniedException", message="no right")


def answer(operation: str) -> None:
    pass


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


@pytest.mark.parametrize(
    ("error", "again"),
    [(ConfigError("another key"), False), (RelayError("another key"), False), (Unavailable("no right"), True)],
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


@pytest.mark.services
def test_a_start_that_was_changed_stops_its_source_alone(relayed: Path, stream: ScriptedStream) -> None:
    change(relayed, lambda raw: raw["sources"][1].update(start="latest"))
    assert "`start` is 'latest'" in run_until_caught_up(relayed, expected_code=2)
    assert published(relayed, stream.table)() == 2
    running = ObservedRelay(relayed)
    [stall] = [each for each in running.until("/healthz", 503)["stalls"] if each["source"]]
    assert (stall["source"], stall["what"]) == ("other", "the source is not read")
    assert "`start` is 'latest'" in stall["error"]
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
