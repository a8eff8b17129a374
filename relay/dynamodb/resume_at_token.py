"""The rule for resuming at a stream token, for `Stream` and for the relay.

Source: Bloop, "Streams" ("Pausing and Resuming"). Where Bloop reads a child before the end of its parent, or drops a
shard that expired without a word, this rule keeps their order and reports a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from relay.records import Shard
from relay.stream_token import TRIM_HORIZON, InvalidStream, Position, StreamToken, ancestors

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a token means for the shards that a stream lists."""

    shards: Mapping[str, Shard]
    """The shards of the listing, or of both listings, by id."""
    active: tuple[str, ...]
    """Listed shards that are read at once. All others wait for their parents."""
    finished: frozenset[str]
    """Shards that were read to the end, listed or not. They are not read again."""
    positions: Mapping[str, Position]
    """Where listed shards resume. A shard that is neither here nor finished starts at its horizon."""
    lost: Mapping[str, Position]
    """Shards that were not read to the end and are no longer listed, and where reading them stopped."""
    expired: tuple[str, ...]
    """The token's shards that are no longer listed, lost or finished."""
    unlisted: frozenset[str] = frozenset()
    """Those of ``shards`` that can be read although no listing had them."""


def resume(
    token: StreamToken, listing: Iterable[Shard], list_again: Callable[[], Iterable[Shard]], has: Callable[[str], bool]
) -> Resumption:
    """Apply ``token`` to the complete ``listing`` of a stream.

    Listings may lack a shard for a while. It is lost only if two lack it, and it cannot be read: ``list_again`` is
    called if one would be, and then ``has``, which says whether it can be. Raises ``InvalidStream`` if the stream has
    none of the token's shards and none of their ancestors.
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
    """Apply ``token`` to ``shards``, all that the stream lists. All ancestors of active shards are finished."""
    links = token.links({shard.id: shard.parents[0] if shard.parents else None for shard in shards.values()})
    known = {entry.shard_id: entry.position for entry in token.shards}
    started = set(token.active)
    # Bloop may read a shard before the end of its parent. Here it waits, and keeps its position (I2).
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
