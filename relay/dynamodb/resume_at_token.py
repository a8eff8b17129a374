"""The rule for resuming at a stream token, for `Stream` and for the relay, and the token of the relay's checkpoints.

Source: Bloop, "Streams" ("Pausing and Resuming"), but this rule keeps the order, and reports a shard that is lost.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relay.errors import Unavailable
from relay.records import PASSED, Plan, Shard, ShardCheckpoint, ShardState, Start
from relay.source import StartingPoints
from relay.stream_token import LATEST, TRIM_HORIZON, InvalidStream, Position, ShardToken, StreamToken, ancestors

log = logging.getLogger(__name__)

HORIZON: Mapping[str, Any] = TRIM_HORIZON.to_json()


@dataclass(frozen=True, slots=True)
class Resumption:
    """The meaning of a token for the shards that a stream lists."""

    shards: Mapping[str, Shard]
    """The shards of the listing, or of both listings, by id."""
    active: tuple[str, ...]
    """Listed shards that can be read at once. All others wait for their parents."""
    finished: frozenset[str]
    """Shards that were read to the end, listed or not. They are not read again."""
    positions: Mapping[str, Position]
    """Where listed shards resume. A shard that is neither here nor finished starts at its horizon."""
    lost: Mapping[str, Position]
    """Shards that were not read to the end and are no longer listed, with the position where reading stopped."""
    expired: tuple[str, ...]
    """The token's shards that are neither listed, lost nor finished."""
    unlisted: frozenset[str] = frozenset()
    """Those of ``shards`` that can be read although no listing shows them."""


def resume(
    token: StreamToken, listing: Iterable[Shard], list_again: Callable[[], Iterable[Shard]], has: Callable[[str], bool]
) -> Resumption:
    """Apply ``token`` to the complete ``listing`` of a stream.

    A listing may omit a shard for a while: it is lost only if it is not in ``list_again`` either, and cannot be read,
    which ``has`` says. Raises ``InvalidStream`` if the stream has neither the token's shards nor their ancestors.
    """
    shards = {shard.id: shard for shard in listing}
    found = resumption(token, shards)
    if found.lost:
        shards = {shard.id: shard for shard in list_again()} | shards
        found = resumption(token, shards)
    if unlisted := frozenset(filter(has, found.lost)):  # I1
        parents = {entry.shard_id: entry.parent for entry in token.shards}
        named = {name: Shard(name, (parent,) if (parent := parents.get(name)) else ()) for name in unlisted}
        found = replace(resumption(token, shards | named), unlisted=unlisted)
    for shard in found.expired:
        log.info("stream %s no longer lists shard %s: dropping it from the token", token.stream_arn, shard)
    meant = {*token.active, *(shard.shard_id for shard in token.shards)} | found.finished
    if meant and not meant & found.shards.keys():
        raise InvalidStream(
            f"stream {token.stream_arn} no longer has any shard of the token ({', '.join(found.expired)}): "
            "the token is too old, start at another position"
        )
    return found


def resumption(token: StreamToken, shards: Mapping[str, Shard]) -> Resumption:
    """Apply ``token`` to ``shards``, all that the stream lists. Ancestors of active shards are finished."""
    links = token.links({shard.id: shard.parents[0] if shard.parents else None for shard in shards.values()})
    known = {entry.shard_id: entry.position for entry in token.shards}
    started = set(token.active)
    # Bloop may read a shard before the end of its parent. Here the shard waits, and keeps its position (I2).
    waiting = {shard for shard in (*known, *token.active) if not started.isdisjoint(ancestors([shard], links))}
    active = tuple(shard for shard in token.active if shard not in waiting)
    finished = frozenset(ancestors(active, links) | (known.keys() - waiting - started))
    positions = {shard: known.get(shard) for shard in (*active, *sorted(waiting - finished))}
    return Resumption(
        shards,
        tuple(shard for shard in active if shard in shards),
        finished,
        {
            shard: position
            for shard, position in positions.items()
            # A shard that waits for its parent has no position at its head, or its first records would be skipped.
            if position is not None and shard in shards and (shard in active or position.exact)
        },
        {shard: position or TRIM_HORIZON for shard, position in positions.items() if shard not in shards},
        tuple(shard for shard in dict.fromkeys((*known, *token.active)) if shard not in shards),
    )


def begin_at_token(
    token: StreamToken,
    listed: Sequence[Shard],
    list_again: Callable[[], Sequence[Shard]],
    has: Callable[[str], bool],
    now: float,
) -> StartingPoints:
    """Return where each shard of ``listed`` starts by ``token`` and the rule of `resume`. ``now``: seconds.

    A position at a shard's head, which is not exact (I4), becomes the time ``now``. Raises as `resume` does, and
    ``Unavailable`` if listings lack a shard of the token for a while.
    """
    found = resume(token, listed, list_again, has)
    if found.unlisted:  # I1: the relay reads what was listed
        raise Unavailable(
            f"stream {token.stream_arn} currently leaves shards out of its list that the token names and that can "
            f"still be read ({', '.join(sorted(found.unlisted))}): start again in a few minutes"
        )

    def start(shard: str) -> Start:
        if shard in found.finished:
            return {"type": PASSED}
        position = found.positions.get(shard, TRIM_HORIZON)
        return {"since": now} if position == LATEST else position.to_json()

    # Without the time: a gap needs the same id at every start, or nobody could accept it.
    lost = {shard: position.to_json() for shard, position in found.lost.items()}
    return StartingPoints({shard: start(shard) for shard in found.shards}, now, lost)


def token_of(stream_arn: str, checkpoints: Mapping[str, ShardCheckpoint], plan: Plan) -> StreamToken:
    """Return the token of a relay with these ``checkpoints``: everything relayed is before it, all else after it.

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
