"""The rule by which `Stream` and the relay resume at a token: drawn tokens, drawn lineages, both readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.dynamodb import InvalidStream
from relay.dynamodb.coordinator import Coordinator
from relay.dynamodb.resume_at_token import Resumption, begin_at_token, resume, resumption
from relay.dynamodb.stream_calls import StreamSession
from relay.records import Gap, Shard
from relay.stream_token import LATEST, TRIM_HORIZON, Position, ShardToken, StreamToken, ancestors
from tests.dynamodb.direct import DirectClient
from tests.dynamodb.endpoint import ARN, ScriptedStream, full

NOW = 1_700_049_600.0


@dataclass(frozen=True)
class Drawn:
    """A lineage, as the stream lists it and as it was, and a token of it."""

    parents: dict[str, str | None]
    listed: list[Shard]
    token: StreamToken


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    count = draw(st.integers(1, 9))
    parents: dict[str, str | None] = {}
    for number in range(count):
        above = draw(st.none() | st.integers(0, number - 1)) if number else None
        parents[full(str(number))] = None if above is None else full(str(above))
    names = list(parents)
    listed = draw(st.lists(st.sampled_from(names), unique=True))
    named = draw(st.lists(st.sampled_from(names), unique=True))
    active = draw(st.lists(st.sampled_from(named), unique=True)) if named else []
    positions = st.sampled_from([None, TRIM_HORIZON, LATEST, Position("after_sequence", "7")])
    return Drawn(
        parents,
        [Shard(name, (parent,) if (parent := parents[name]) else ()) for name in sorted(listed)],
        StreamToken(ARN, tuple(active), tuple(ShardToken(name, parents[name], draw(positions)) for name in named)),
    )


def apply(case: Drawn) -> Resumption:
    return resumption(case.token, {shard.id: shard for shard in case.listed})


@given(drawn())
def test_every_shard_of_a_token_is_finished_or_listed_or_lost(case: Drawn) -> None:
    """I1, I9"""
    found = apply(case)
    for shard in {*case.token.active, *(entry.shard_id for entry in case.token.shards)}:
        assert shard in found.finished or shard in found.shards or shard in found.lost
    assert not found.lost.keys() & (found.shards.keys() | found.finished)
    assert not found.positions.keys() & found.finished
    assert found.positions.keys() <= found.shards.keys()
    assert set(found.expired) >= found.lost.keys()


@given(drawn())
def test_an_active_shard_of_a_token_is_never_finished(case: Drawn) -> None:
    """I1"""
    assert not set(case.token.active) & apply(case).finished


@given(drawn())
def test_no_shard_is_read_at_once_below_another_that_is(case: Drawn) -> None:
    """I2"""
    found = apply(case)
    links = case.token.links({shard.id: case.parents[shard.id] for shard in case.listed})
    for shard in found.active:
        assert not ancestors([shard], links) & set(case.token.active)


@given(drawn())
def test_a_shard_that_waits_has_an_exact_position_or_none(case: Drawn) -> None:
    """I4"""
    found = apply(case)
    assert all(position.exact for shard, position in found.positions.items() if shard not in found.active)


@given(drawn())
def test_a_second_listing_is_requested_only_before_a_shard_is_lost(case: Drawn) -> None:
    asked: list[int] = []

    def list_again() -> list[Shard]:
        asked.append(1)
        return [Shard(name, (parent,) if parent else ()) for name, parent in case.parents.items()]

    lost = bool(apply(case).lost)
    try:
        found = resume(case.token, case.listed, list_again, lambda shard: False)
    except InvalidStream:
        assert not lost
    else:
        assert not found.lost
    assert len(asked) == lost


@settings(deadline=None)
@given(drawn())
def test_a_stream_and_the_relay_resume_at_the_same_positions(case: Drawn) -> None:
    scripted = ScriptedStream()
    scripted._server.server_close()  # nobody connects to it
    for shard in case.listed:
        scripted.shard(
            shard.id.removeprefix("shardId-"), (case.parents[shard.id] or "").removeprefix("shardId-") or None
        )
    gaps: list[Gap] = []
    client: Any = DirectClient(scripted)
    session = StreamSession(client, ARN, clock=lambda: NOW, sleep=lambda seconds: None)
    stream = Coordinator(session, on_gap=gaps.append)
    try:
        plan = begin_at_token(case.token, case.listed, lambda: case.listed, session.has, NOW)
    except InvalidStream:
        with pytest.raises(InvalidStream):
            stream.start_at_token(case.token)
        return
    stream.start_at_token(case.token)
    assert {gap.shard: gap.begin for gap in gaps} == plan.lost
    passed = {shard for shard, start in plan.shards.items() if start == {"type": "passed"}}
    assert stream.graph.ended.keys() & plan.shards.keys() == passed
    for reading in stream.active:
        expected = {"type": "latest"} if plan.shards[reading.id] == {"since": NOW} else plan.shards[reading.id]
        assert reading.cursor.fetched.to_json() == expected
