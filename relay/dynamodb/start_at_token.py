"""Stream tokens and the relay's plan: where reading starts by a token, and the token of the relay's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay.dynamodb.resume_at_token import resume
from relay.errors import Unavailable
from relay.records import PASSED, Plan, Shard, ShardCheckpoint, ShardState, Start
from relay.source import StartingPoints
from relay.stream_token import LATEST, TRIM_HORIZON, Position, ShardToken, StreamToken

HORIZON: Mapping[str, Any] = TRIM_HORIZON.to_json()


def begin_at_token(
    token: StreamToken,
    listed: Sequence[Shard],
    list_again: Callable[[], Sequence[Shard]],
    has: Callable[[str], bool],
    now: float,
) -> StartingPoints:
    """Return where each shard of ``listed`` starts by ``token``, by the rule of `resume`. ``now``: seconds.

    Shards that the token has finished are passed. A position at a shard's head, which is not exact (I4), becomes the
    time ``now``. Raises ``InvalidStream`` if the stream has no shard of the token, and ``Unavailable`` if its listings
    lack one of them for a while.
    """
    found = resume(token, listed, list_again, has)
    if found.unlisted:  # I1: the relay reads what was listed
        raise Unavailable(
            f"stream {token.stream_arn} does not list {', '.join(sorted(found.unlisted))} of the token now, although "
            "it can be read: start again in some minutes"
        )

    def start(shard: str) -> Start:
        if shard in found.finished:
            return {"type": PASSED}
        position = found.positions.get(shard, TRIM_HORIZON)
        return {"since": now} if position == LATEST else position.to_json()

    # Without the time: a gap must have the same id at every start, or nobody could accept it.
    lost = {shard: position.to_json() for shard, position in found.lost.items()}
    return StartingPoints({shard: start(shard) for shard in found.shards}, now, lost)


def token_of(stream_arn: str, checkpoints: Mapping[str, ShardCheckpoint], plan: Plan) -> StreamToken:
    """Return the token of a relay with these ``checkpoints``: what it has relayed is before it, all else after it.

    A shard that has not been read is at its start, or at its horizon if the start is a time: a token has no position
    for a time, so older records are read, too (I1).
    """
    shards = {**dict.fromkeys(sorted(plan.passed), ShardCheckpoint(ShardState.FINISHED)), **checkpoints}
    return StreamToken(
        stream_arn,
        tuple(shard for shard, checkpoint in shards.items() if not checkpoint.state.ended),
        tuple(
            ShardToken(shard, checkpoint.parents[0] if checkpoint.parents else None, _position(checkpoint))
            for shard, checkpoint in shards.items()
        ),
    )


def _position(checkpoint: ShardCheckpoint) -> Position | None:
    position = checkpoint.position or checkpoint.start
    if checkpoint.state.ended or position is None or "sequence" not in position:
        return None
    return Position.from_json(position)
