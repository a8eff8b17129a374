"""The scenarios that are played: small ones with each run of the tests, and all by ``make model``."""

from __future__ import annotations

from dataclasses import replace

from tests.cache.model.scenario import LEASE_TTL, TOMBSTONE_TTL, VALUE_TTL, Scenario, Writer

LOSSES = ("entry", "floors", "generation", "everything")
_ONE = (Writer(),)
_TICKS = (LEASE_TTL, TOMBSTONE_TTL)
_OWN = (Writer(), Writer(drops=True))  # the second drops what it has changed from the cache
_TOLD = (Writer(), Writer(drops=True, told=True))

_SHORTER = Scenario(
    _ONE, replicas=True, primary=True, fillers_ttl=(VALUE_TTL, TOMBSTONE_TTL), ticks=(2 * VALUE_TTL,), ticked=1
)
_RENAMED = Scenario(_ONE, replicas=True, renamed=True, losses=("entry",), lost=1)

SMALL = {
    "consistent reads": Scenario(),
    "consistent reads, and a gap": Scenario(_ONE, gaps=1),
    "consistent reads, and the store loses": Scenario(_ONE, losses=LOSSES, lost=1),
    "consistent reads, and a writer drops": Scenario(_OWN),
    "two spellings of one key": Scenario(spelled=True),
    "two spellings of one key, and replicas": Scenario(replicas=True, primary=True, spelled=True),
    "replicas": Scenario(replicas=True),
    "replicas, then the primary": Scenario(replicas=True, primary=True),
    "replicas, and an entry is evicted": Scenario(_ONE, replicas=True, losses=("entry",), lost=1),
    "replicas, and time passes": Scenario(_ONE, replicas=True, ticks=_TICKS, ticked=1),
    "replicas of a shard that is renamed, and an entry is evicted": _RENAMED,
    "consistent reads, and a full store": Scenario(_ONE, full=2),
    "replicas, and a full store": Scenario(_ONE, replicas=True, full=2),
    "a filler with a shorter tombstone_ttl": replace(_SHORTER, value_ttl=VALUE_TTL),
    "a writer with a shorter tombstone_ttl": replace(_SHORTER, writers=(Writer(drops=True),)),
}

_CONSISTENT = Scenario((Writer(commits=2), Writer(commits=2)), batch=2)
_REPLICAS = Scenario(replicas=True, batch=2)

LARGE = {
    "consistent reads": _CONSISTENT,
    "consistent reads, and a replay": replace(_CONSISTENT, replays=1),
    "consistent reads, a replay, and the store loses": Scenario(batch=2, replays=1, losses=LOSSES, lost=1),
    "consistent reads, a replay, and time passes": Scenario(batch=2, replays=1, ticks=_TICKS, ticked=1),
    "consistent reads, a gap, and an outage": Scenario(batch=2, gaps=1, outages=1),
    "consistent reads, a writer drops, and a replay": Scenario(_OWN, replays=1),
    "consistent reads, a writer drops, and the store loses": Scenario(_OWN, losses=("entry", "everything"), lost=1),
    "consistent reads in two shards, and a replay": Scenario((Writer(0, 2), Writer(1, 1)), batch=2, replays=1),
    "replicas": replace(_REPLICAS, writers=(Writer(commits=2), Writer(commits=1))),
    "replicas, and a replay": replace(_REPLICAS, replays=1),
    "replicas, and the store loses": replace(_REPLICAS, losses=LOSSES, lost=1),
    "replicas, and time passes": replace(_REPLICAS, ticks=_TICKS, ticked=1),
    "replicas, a replay, and time passes": Scenario(_ONE, replicas=True, replays=1, ticks=_TICKS, ticked=1),
    "replicas, a replay, and the store loses": Scenario(
        _ONE, fillers=1, replicas=True, replays=1, losses=LOSSES, lost=1
    ),
    "replicas of a shard that is renamed, a replay, and the store loses": replace(
        _RENAMED, fillers=1, replays=1, losses=LOSSES
    ),
    "replicas of a shard that is renamed, and time passes": replace(_RENAMED, lost=0, ticks=_TICKS, ticked=1),
    "replicas, and an outage": Scenario(_ONE, replicas=True, outages=1),
    "replicas, and a writer drops": Scenario(_TOLD, replicas=True),
    "replicas of two shards": replace(_REPLICAS, writers=(Writer(0), Writer(1))),
    "replicas, then the primary": replace(_REPLICAS, primary=True),
    "replicas, then the primary, and values that end": replace(
        _REPLICAS, primary=True, value_ttl=VALUE_TTL, ticks=(VALUE_TTL, TOMBSTONE_TTL), ticked=2, writers=_ONE
    ),
    "replicas, then the primary, and a writer drops": Scenario(_OWN, replicas=True, primary=True),
    "replicas after a flush, and a replay": Scenario(
        (Writer(commits=2),), fillers=1, replicas=True, flushed=True, replays=1, counts_seconds=True
    ),
    "replicas after a flush, and old changes are published again": Scenario(
        _ONE, fillers=1, replicas=True, flushed=True, republished=1, counts_seconds=True
    ),
}

_CONSISTENT_ONE = Scenario(_ONE)
_REPLICAS_ONE = Scenario(_ONE, replicas=True)
_EVICTED = replace(_REPLICAS_ONE, losses=("entry",), lost=1)
_ENDING = replace(_REPLICAS_ONE, primary=True, value_ttl=VALUE_TTL, ticks=(VALUE_TTL,), ticked=1)

CAUGHT_IN = {
    "fills without a guard": _CONSISTENT_ONE,
    "the generation read when a value is stored": replace(_CONSISTENT_ONE, gaps=1),
    "no leases, and a tombstone evicted early": replace(_CONSISTENT_ONE, losses=("entry",), lost=1),
    "a lease that ends before the tombstone it replaced": replace(_REPLICAS_ONE, ticks=(LEASE_TTL,), ticked=1),
    "one component only": Scenario((Writer(0), Writer(1)), fillers=1, replicas=True),
    "a fill over nothing that asks for no floor": _EVICTED,
    "floors that ignore evictions": _EVICTED,
    "floors that ignore expired tombstones": replace(_REPLICAS_ONE, ticks=(TOMBSTONE_TTL,), ticked=1),
    "floors that begin with a change published long before": Scenario(
        (Writer(commits=1),), fillers=1, replicas=True, flushed=True, replays=1
    ),
    "floors that last when their shard has ended": replace(_EVICTED, renamed=True),
    "tokens announced after their tombstones are written": _EVICTED,
    "an expired value that discards an invalidation and then goes": replace(
        _REPLICAS_ONE, value_ttl=VALUE_TTL, ticks=((VALUE_TTL + TOMBSTONE_TTL) / 2,), ticked=2
    ),
    "a value that goes before the tombstone it replaced": _ENDING,
    "a value of the primary that forgets what it replaced": _ENDING,
    "a change of the application that drops no load": Scenario((Writer(drops=True),)),
    "a dropped value that forgets what it replaced": Scenario(_OWN, replicas=True, primary=True),
    "any generation is served": replace(_CONSISTENT_ONE, gaps=1),
    "unknown is older": _CONSISTENT_ONE,
    "every loaded value is stored": _REPLICAS_ONE,
    "a value under another spelling of its key": Scenario(_ONE, spelled=True),
    "a lease without tokens": _REPLICAS_ONE,
    "an invalidation that leaves leases alone": _CONSISTENT_ONE,
    "a full store that keeps a value whose tombstone it refuses": replace(_CONSISTENT_ONE, full=1),
    "a full store that keeps its floors": replace(_REPLICAS_ONE, full=2),
}
"""For each guard that is missing, a scenario in which that shows, but for one: ``TOO_LONG``."""

TOO_LONG = "floors that begin with an old change published late"
"""What takes more moves than can be searched. ``tests/cache/test_interleavings.py`` has them as a script."""
