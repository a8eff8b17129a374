"""Who takes part in a model of the cache, and which faults come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from relay.cache.store import entry_key, floors_key

NAMESPACE, KEY, CANONICAL = "shop", "user:01", "user:1"
LEASE_TTL, VALUE_TTL, TOMBSTONE_TTL = 5.0, 60.0, 3600.0
ENTRY, FLOORS = entry_key(NAMESPACE, KEY), floors_key(NAMESPACE)
SHARDS = ("orders/stream/-80", "orders/stream/80-")


class Writer(NamedTuple):
    """Commits changes of the key to a shard, and ``drops`` it from the cache after each, ``told`` its token or not."""

    shard: int = 0
    commits: int = 1
    drops: bool = False
    told: bool = False


@dataclass(frozen=True)
class Scenario:
    """Who takes part, and how often each fault may come: ``lost``, ``ticked``, ``replays``, and those after them.

    ``replicas``: fillers read replicas that lag by any number of changes; without, they read consistently. ``primary``:
    what a replica is not fresh enough for is read consistently. ``batch``: the most changes an invalidator takes at
    once. ``value_ttl``: of the fillers, in seconds. ``fillers_ttl``: their ``tombstone_ttl``, one each. ``losses``:
    what the store may lose. ``ticks``: the seconds that may pass at once. ``replays``: crashes of the invalidator,
    after which it applies any of the last changes again. ``republished``: a relay publishes old changes again.
    ``gaps``: all invalidations up to then are lost for good. ``outages``: a call gets no answer, made or not.
    ``full``: there is no room for a write.
    ``counts_seconds``: each commit takes a second. ``flushed``: the store has just lost everything, and no replica has
    the last change. ``spelled``: the row's own key is ``CANONICAL``, which is invalidated, and ``KEY`` is another
    spelling by which fillers find it. Those that ask for the other one share nothing with them but the rows.
    ``renamed``: the stream of each shard has just got another name, and replicas still have the former one.
    """

    writers: tuple[Writer, ...] = (Writer(), Writer())
    fillers: int = 2
    reads: int = 1
    replicas: bool = False
    primary: bool = False
    batch: int = 1
    value_ttl: float | None = None
    fillers_ttl: tuple[float, float] = (TOMBSTONE_TTL, TOMBSTONE_TTL)
    losses: tuple[str, ...] = ()
    lost: int = 0
    ticks: tuple[float, ...] = ()
    ticked: int = 0
    replays: int = 0
    republished: int = 0
    gaps: int = 0
    outages: int = 0
    full: int = 0
    counts_seconds: bool = False
    flushed: bool = False
    spelled: bool = False
    renamed: bool = False

    @property
    def shards(self) -> int:
        return 1 + max(writer.shard for writer in self.writers)
