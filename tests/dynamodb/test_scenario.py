"""The random streams of the fault tests: a seed gives one history, and every fault in a topic is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.dynamodb.answering_server import Dropped, Refused
from tests.dynamodb.scenario import Loss, Scenario, Seen, problems


def settled(seed: int) -> Scenario:
    with Scenario(seed) as scenario:
        scenario.settle()
    return scenario


def perfect(scenario: Scenario) -> list[Seen]:
    return [
        Seen(item, write.version, write.old, 0, write.sequence % 10**9, f"{write.sequence}")
        for item, writes in scenario.truth.items()
        for write in writes
    ]


def test_a_seed_is_one_history_however_it_is_read() -> None:
    with Scenario(5) as read:
        for _ in range(40):
            with suppress(Refused, Dropped):
                read.answer("DescribeStream", {"StreamArn": read.arn})
        read.settle()
    assert read.truth == settled(5).truth
    assert read.truth != settled(6).truth


def test_every_record_is_in_the_shards_where_the_history_says() -> None:
    scenario = settled(7)
    held = {
        (shard.id, int(record["dynamodb"]["SequenceNumber"]))
        for shard in scenario.shards.values()
        for record in shard.records
    }
    assert held == {(write.shard, write.sequence) for writes in scenario.truth.values() for write in writes}
    assert all(shard.closed for shard in scenario.shards.values() if shard.id not in scenario._home.values())


def test_a_perfect_topic_has_no_problems() -> None:
    scenario = settled(7)
    assert list(problems(scenario, perfect(scenario), [])) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda seen: seen[1:], "missing"),
        (lambda seen: [*seen, replace(seen[0], event_id="again")], "doubled"),
        (lambda seen: [seen[1], seen[0], *seen[2:]], "out of order"),
        (lambda seen: [replace(seen[0], partition=1), *seen[1:]], "partitions"),
        (lambda seen: [replace(seen[0], event_id=seen[1].event_id), *seen[1:]], "twice"),
        (lambda seen: [replace(seen[0], timestamp=10**12), *seen[1:]], "go back"),
        (lambda seen: [*seen, replace(seen[0], item=("nobody", 1), event_id="x")], "never written"),
    ],
)
def test_every_kind_of_fault_in_a_topic_is_found(spoil: Callable[[list[Seen]], list[Seen]], said: str) -> None:
    """The fault test can fail: I1, I2, I3."""
    scenario = settled(7)
    assert said in "; ".join(problems(scenario, spoil(perfect(scenario)), []))


def test_a_gap_explains_only_the_missing_records_after_it_in_its_shard() -> None:
    """I9"""
    scenario = settled(7)
    seen = perfect(scenario)
    first = next(iter(scenario.truth.values()))[0]
    loss = Loss(first.shard, "trimmed", first.sequence - 1)
    assert list(problems(scenario, seen[1:], [loss])) == []
    assert "without a loss" in "; ".join(problems(scenario, seen, [loss]))
    assert "missing" in "; ".join(problems(scenario, seen[1:], [replace(loss, after=first.sequence)]))
    assert "told twice" in "; ".join(problems(scenario, seen[1:], [loss, loss]))
