"""Tokens of a stream and the relay: where it begins when one says it, and the one that says where it stands.

The rules are those by which ``Stream`` goes on from a token (``coordinator.start_at_token``); change both together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay.lineage import PASSED, Checkpoint, Plan, Shard, ShardState
from relay.source import StartingPoints
from relay.stream_token import InvalidStream, Position, ShardToken, StreamToken

HORIZON: Mapping[str, Any] = {"type": "trim_horizon"}


def begin_at_token(
    token: StreamToken, listed: Sequence[Shard], list_again: Callable[[], Sequence[Shard]], now: float
) -> StartingPoints:
    """Return the start of every shard of ``listed``: where ``token`` stands in it, else its horizon.

    What the token has read to its end is passed. An active shard that is not listed, twice, is lost: its children
    begin at their horizons. A position at the head, which is no place (I4), is the time ``now``. Raises
    ``InvalidStream`` if the stream lists no shard of the token.
    """
    shards = {shard.id: shard for shard in listed}
    standing = token.standing(_parents(shards))
    meant = {*standing.active, *standing.ahead, *standing.finished}
    if any(shard not in shards for shard in meant - standing.finished):
        # One listing may be incomplete: a loss needs two that agree.
        shards = {shard.id: shard for shard in list_again()} | shards
        standing = token.standing(_parents(shards))
    if meant and not meant & shards.keys():
        raise InvalidStream(f"the stream {token.stream_arn} has no shard of the token (any more): it is too old")
    starts: dict[str, Mapping[str, Any]] = {}
    for shard in shards:
        position = token.position(shard)
        if shard in standing.finished:
            starts[shard] = {"type": PASSED}
        elif position is None or (shard in standing.ahead and not position.exact):
            starts[shard] = HORIZON
        else:
            starts[shard] = _start(position, now)
    lost = {
        # Nothing of now: a loss has the same id at every start, or nobody could accept it.
        shard: (token.position(shard) or Position("trim_horizon")).to_json()
        for shard in (*standing.active, *sorted(standing.ahead))
        if shard not in shards and shard not in standing.finished
    }
    return StartingPoints(starts, now, lost)


def token_of(stream_arn: str, checkpoints: Mapping[str, Checkpoint], plan: Plan) -> StreamToken:
    """Return the token of a relay with these ``checkpoints``: what was relayed is behind it, all else before it.

    A shard of which nothing was read stands at its start, or at its horizon where that is a time: a token has no place
    for one, and what is older comes then, too (I1).
    """
    shards = {**dict.fromkeys(sorted(plan.passed), Checkpoint(ShardState.FINISHED)), **checkpoints}
    return StreamToken(
        stream_arn,
        tuple(shard for shard, checkpoint in shards.items() if not checkpoint.state.ended),
        tuple(
            ShardToken(shard, checkpoint.parents[0] if checkpoint.parents else None, _position(checkpoint))
            for shard, checkpoint in shards.items()
        ),
    )


def _position(checkpoint: Checkpoint) -> Position | None:
    place = checkpoint.position or checkpoint.start
    if checkpoint.state.ended or place is None or "sequence" not in place:
        return None
    return Position(place["type"], place["sequence"])


def _parents(shards: Mapping[str, Shard]) -> dict[str, str | None]:
    return {name: shard.parents[0] if shard.parents else None for name, shard in shards.items()}


def _start(position: Position, now: float) -> Mapping[str, Any]:
    return {"since": now} if position.type == "latest" else position.to_json()
