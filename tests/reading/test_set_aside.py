"""I12: what a person has to act on stops its shard, is seen there, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.errors import RelayError
from relay.kafka.checkpoints import partition_of
from relay.reading.set_aside import TRY_AGAIN, GapPending, SetAside
from relay.records import CommittedStream, Decision, Gap, PendingGap, StreamId
from tests.clock import Clock
from tests.command_line import relay, run_until_caught_up
from tests.dynamodb.endpoint import ScriptedStream, full
from tests.faults.scripted_relay import published_versions, tail_topic, write_config
from tests.observe.observed_relay import ObservedRelay
from tests.waiting import wait_until

STREAM = StreamId("orders", "2026")
ONE, OTHER = STREAM.shard_key("one"), STREAM.shard_key("other")
GAP = Gap("orders", "2026", "one", "trimmed", {"sequence": "1"}, None, 1.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def committed() -> CommittedStream:
    return CommittedStream(STREAM)


@pytest.fixture
def aside(committed: CommittedStream, clock: Clock) -> SetAside:
    return SetAside(committed, clock=clock)


def test_what_is_refused_waits_a_minute_and_is_tried_again(aside: SetAside, clock: Clock) -> None:
    aside.add(ONE, "one", RelayError("refused"))
    assert aside.waiting() == {ONE}
    assert TRY_AGAIN <= aside.next_try - clock() <= 1.25 * TRY_AGAIN
    clock.now = aside.next_try
    assert aside.waiting() == frozenset()
    assert set(aside.refusals) == {ONE}  # still seen


def test_it_is_seen_since_it_was_refused_first(aside: SetAside, clock: Clock) -> None:
    """I10: another try does not reset what health shows."""
    since = clock()
    aside.add(ONE, "one", RelayError("refused"))
    clock.now += TRY_AGAIN
    aside.read(ONE, has_passed=False)  # an empty page, before it meets the same again
    aside.add(ONE, "one", RelayError("refused"))
    assert [(each.name, each.since) for each in aside.refusals.values()] == [("one", since)]
    assert aside.waiting() == {ONE}


@pytest.mark.parametrize(("seconds", "has_passed"), [(0.0, True), (31.0, False)])
def test_it_goes_on_once_it_is_read(aside: SetAside, clock: Clock, seconds: float, has_passed: bool) -> None:
    """Also if it has no changes, so that nothing stays red that can be read."""
    aside.add(ONE, "one", RelayError("refused"))
    aside.add(OTHER, "other", RelayError("refused"))
    clock.now += 2 * TRY_AGAIN
    aside.read(ONE, has_passed=False)  # of the reader that was refused
    with aside.opening(ONE, "one"):
        pass
    aside.read(ONE, has_passed=False)
    assert set(aside.refusals) == {ONE, OTHER}
    clock.now += seconds
    aside.read(ONE, has_passed=has_passed)
    assert set(aside.refusals) == {OTHER}


def test_what_may_be_tried_now_is_told_once(aside: SetAside, clock: Clock) -> None:
    aside.add(ONE, "one", RelayError("refused"))
    news = [aside.has_news]
    assert aside.released() == {}
    news.append(aside.has_news)
    clock.now = aside.next_try
    news.append(aside.has_news)
    assert news == [True, False, True]
    assert list(aside.released()) == [ONE]
    assert aside.released() == {}


def test_an_error_keeps_nothing_of_where_it_was_raised(aside: SetAside) -> None:
    """I11: such as a client of Kafka."""
    try:
        try:
            raise ValueError("its cause")
        except ValueError as cause:
            raise RelayError("refused") from cause
    except RelayError as error:
        aside.add(ONE, "one", error)
    kept = aside.refusals[ONE].error
    assert (kept.__traceback__, kept.__cause__, kept.__context__) == (None, None, None)


def test_a_decision_about_a_gap_ends_its_wait_at_once(aside: SetAside, committed: CommittedStream) -> None:
    aside.add(ONE, "one", GapPending(GAP))
    committed.pending_gaps[GAP.id] = PendingGap(GAP)
    assert aside.waiting() == {ONE}
    committed.pending_gaps[GAP.id] = PendingGap(GAP, decision=Decision.SKIP)
    assert aside.waiting() == frozenset()


def test_what_another_worker_reads_now_is_not_shown_by_this_one(aside: SetAside) -> None:
    aside.add(ONE, "one", RelayError("refused"))
    aside.lose({(partition_of(ONE) + 1) % 64})
    assert set(aside.refusals) == {ONE}
    aside.lose({partition_of(ONE)})
    assert not aside.refusals
    aside.add(ONE, "one", RelayError("refused"))
    aside.lose(None)  # after a fence, nothing is known to be this worker's
    assert not aside.refusals


@pytest.fixture
def config(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> Path:
    """A relay that has read two shards, of which one has lost changes since."""
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    stream.shard("lost")
    stream.shard("fine")
    stream.put("lost", "l", 1)
    stream.put("fine", "f", 1)
    run_until_caught_up(path)
    stream.put("lost", "l", 2, old=1)
    stream.put("lost", "l", 3, old=2)
    stream.trim("lost", 2)
    stream.put("fine", "f", 2, old=1)
    return path


def published(path: Path, item: str, version: int) -> Callable[[], bool]:
    return lambda: version in published_versions(path)[0].get(item, [])


def gap_of(running: ObservedRelay) -> str:
    """Wait until the relay is red for a gap that a person has to decide about; return its id."""

    def told() -> str | None:
        stalls = json.loads(running.get("/healthz")[1]).get("stalls", [])
        found = [each["error"] for each in stalls if each.get("error") and "gaps accept" in each["error"]]
        return str(found[0]).split("(gap ")[1].split(")")[0] if found else None

    return wait_until(told)


@pytest.mark.services
def test_a_gap_stops_its_shard_alone_until_it_is_accepted(config: Path, stream: ScriptedStream, unique: str) -> None:
    """I9, I12: and without a restart."""
    running = ObservedRelay(config)
    wait_until(published(config, "f", 2))
    gap = gap_of(running)
    assert running.get("/healthz")[0] == 503
    stream.put("fine", "f", 3, old=2)
    stream.split("lost", "child")
    stream.put("child", "l", 4, old=3)
    wait_until(published(config, "f", 3))
    assert published_versions(config)[0]["l"] == [1]  # I2: neither what comes after the gap, nor the shard's child
    assert relay("gaps", "accept", config, gap, "skip").exit_code == 0
    wait_until(published(config, "l", 4))
    running.until("/healthz", 200)
    running.stop()
    assert published_versions(config)[0] == {"l": [1, 3, 4], "f": [1, 2, 3]}
    assert [each["value"]["shard"] for each in tail_topic(config, f"{unique}.gaps")] == [full("lost")]


@pytest.mark.services
def test_a_run_until_caught_up_reads_everything_else_before_it_ends(config: Path, stream: ScriptedStream) -> None:
    """I12: then it says which gap it has left, and exits with 1."""
    stream.split("fine", "more")
    stream.put("more", "f", 3, old=2)
    assert "gaps accept" in run_until_caught_up(config, expected_code=1)
    assert published_versions(config)[0] == {"l": [1], "f": [1, 2, 3]}


@pytest.mark.services
def test_a_shard_that_is_gone_stops_nothing_but_its_children(config: Path, stream: ScriptedStream, unique: str) -> None:
    """I2, I9, I12"""
    stream.split("lost", "child")
    stream.put("child", "l", 4, old=3)
    stream.forget("lost")
    running = ObservedRelay(config)
    wait_until(published(config, "f", 2))
    gap = gap_of(running)
    stream.put("fine", "f", 3, old=2)
    wait_until(published(config, "f", 3))
    assert published_versions(config)[0]["l"] == [1]
    assert relay("gaps", "accept", config, gap, "skip").exit_code == 0
    wait_until(published(config, "l", 4))
    running.until("/healthz", 200)
    running.stop()
    assert published_versions(config)[0] == {"l": [1, 4], "f": [1, 2, 3]}
    assert [each["value"]["reason"] for each in tail_topic(config, f"{unique}.gaps")] == ["shard lost"]


@pytest.mark.services
def test_a_gap_that_is_killed_while_it_waits_is_met_again(config: Path, stream: ScriptedStream, unique: str) -> None:
    """I3, I9"""
    running = ObservedRelay(config)
    gap = gap_of(running)
    running.relay.kill()
    running = ObservedRelay(config)
    assert gap_of(running) == gap
    assert relay("gaps", "accept", config, gap, "skip").exit_code == 0
    wait_until(published(config, "l", 3))
    running.stop()
    assert published_versions(config)[0] == {"l": [1, 3], "f": [1, 2]}
    assert len(tail_topic(config, f"{unique}.gaps")) == 1
