"""``relay reset`` whose commit is not answered: it says whether it took effect, or how to find out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.config import load
from relay.errors import Unavailable
from relay.operations.reset import Reset, reset
from tests.dynamodb.endpoint import ScriptedStream
from tests.kafka.proxy import Api, ProxiedBroker, Request, Verdict, passing
from tests.operating import Operated

pytestmark = pytest.mark.services


@pytest.fixture
def relay(tmp_path: Path, stream: ScriptedStream, broker: ProxiedBroker, unique: str) -> Operated:
    stream.shard("root")
    stream.put("root", "k", 1)
    operated = Operated(tmp_path, stream, broker.bootstrap_servers, unique)
    operated.run()
    return operated


def reset_without_patience(relay: Operated) -> Reset:
    return reset(load(relay.path), "s", "trim_horizon", patience=3.0)


def test_a_reset_whose_commit_arrived_has_succeeded(relay: Operated, broker: ProxiedBroker) -> None:
    broker.proxy.lose(Api.END_TXN, verdict=Verdict.LOSE_ANSWER)
    decided = reset_without_patience(relay)
    assert broker.proxy.lost
    broker.proxy.rule = passing
    assert [gap["id"] for gap in relay.gaps()] == [decided.gap.id]
    relay.run()
    assert relay.versions() == [1, 1]


def test_a_reset_whose_commit_was_lost_says_that_nothing_was_reset_and_never_happens(
    relay: Operated, broker: ProxiedBroker
) -> None:
    broker.proxy.lose(Api.END_TXN)
    with pytest.raises(Unavailable, match=r"^nothing was reset: .* run it again"):
        reset_without_patience(relay)
    broker.proxy.rule = passing
    relay.run()
    assert (relay.gaps(), relay.versions()) == ([], [1])


@pytest.mark.parametrize("arrived", [True, False])
def test_a_reset_whose_outcome_nobody_knows_says_how_to_find_out(
    relay: Operated, broker: ProxiedBroker, arrived: bool
) -> None:
    ended = False

    def rule(request: Request) -> Verdict:
        nonlocal ended
        if request.api == Api.END_TXN and not ended:
            ended = True
            return Verdict.LOSE_ANSWER if arrived else Verdict.LOSE_REQUEST
        return Verdict.LOSE_REQUEST if ended else Verdict.PASS

    broker.proxy.rule = rule
    with pytest.raises(Unavailable, match="it is not known whether the reset took effect") as unknown:
        reset_without_patience(relay)
    broker.proxy.rule = passing
    (gap,) = re.findall("`relay gaps list CONFIG`: it shows gap ([0-9a-f]+) if", str(unknown.value))
    relay.run()
    assert [found["id"] for found in relay.gaps()] == ([gap] if arrived else [])
    assert relay.versions() == ([1, 1] if arrived else [1])
