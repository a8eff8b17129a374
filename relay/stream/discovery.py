"""Discovers the shards of a stream: lists them in a thread, once a minute, or more often while something is unclear.

One worker, the owner of the listing's record, lists them for all, because AWS limits an account's listings. The others
list shards themselves while a listing is missing. Shards that journals announce follow from the checkpoints.
"""

import logging
import math
import time
from collections.abc import Callable
from functools import partial

from relay.errors import RelayError, StreamGone, Unavailable
from relay.process.slow_call import SlowCall
from relay.records import PRUNE_AFTER, Lineage, Plan, ShardListing, ShardState
from relay.source import Source
from relay.stream.journals import shards_of
from relay.stream.pruning import unpruned

log = logging.getLogger(__name__)

_RELIST = 60.0
_RELIST_SOON = 1.0
_AFTER_FAILURE = 5.0

_PATIENCE = 30.0  # seconds that a worker waits for another's listing, in addition to the time that one takes
_PATIENCE_AT_START = 10.0  # the same before the first listing: the other worker may first have to join the group
_CLOCKS_DIFFER = 2.0  # seconds by which two workers' readings of the source's clock may differ: rounded, and late


def _still_planned(plan: Plan | None, now: float) -> set[str]:
    """Return the shards of ``plan`` that have a checkpoint or will get one; none once some may have been pruned."""
    if plan is None or now - plan.planned_at > PRUNE_AFTER / 2:
        return set()
    return plan.shards.keys() - plan.passed


class JournaledShards:
    """Keeps ``lineage`` up to date with the plan and with the journals in the checkpoints."""

    is_owner = False
    is_listing = False
    untold: ShardListing | None = None
    successor: str | None = None
    took = 0.0

    def __init__(self, lineage: Lineage, *, clock: Callable[[], float]) -> None:
        self.lineage = lineage
        self.clock = clock
        self.wanted_at = self.listed_at = clock()
        self._committed = lineage.committed
        # What the shards were last derived from. A journal arrives with the end of a shard.
        self._seen: tuple[Plan, int] | None = None
        self._again = False  # whether records written for them may be lost

    @property
    def listed_before(self) -> float:
        """When the last listing but one began. A journal names all shards that continue one, so one is enough."""
        return self.listed_at

    @property
    def is_due(self) -> bool:
        """Whether the shards may have changed, or records written for them may be lost."""
        plan = self._committed.plan
        return plan is not None and (self._again or self._seen != (plan, self._committed.endings))

    @property
    def next_at(self) -> float:
        """When `is_due` may become true by itself, by the monotonic clock."""
        return 0.0 if self.is_due else math.inf

    def soon(self) -> None:
        """Return the shards again at the next poll: a transaction with their records was, or may have been, aborted."""
        self._again = True

    def poll(self) -> bool:
        """Derive the shards. Return whether they have changed, or were requested again."""
        if (plan := self._committed.plan) is None:
            return False
        self.listed_at = self.clock()
        if not self.is_due:
            return False
        again, self._again = self._again, False
        self._seen = plan, self._committed.endings
        shards = shards_of(plan, self._committed.checkpoints)
        if self.lineage.listings and shards == list(self.lineage.listed.values()):
            return again
        self.lineage.update(shards)
        return True


class ListedShards:
    """Keeps ``lineage`` up to date with listings, none of which began before ``since``, in seconds; 0 accepts any."""

    def __init__(
        self, source: Source, lineage: Lineage, *, since: float = 0.0, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = source
        self.lineage = lineage
        self.clock = source.clock
        self.monotonic = monotonic
        self.is_owner = False  # whether this worker lists shards for all
        # The listing that ``lineage`` shows, how many seconds it took, and the stream that it says continues this one.
        self.newest: ShardListing | None = None
        self.took = 0.0
        self.successor: str | None = None
        # When this listing and the one before it began or a little earlier, or 0; when one was first wanted.
        self.listed_at = self.listed_before = 0.0
        self.wanted_at = self.clock()
        self._since = since
        # When the owner should list next, by the monotonic clock.
        self._next_at = 0.0
        self._wait = _RELIST_SOON
        # Whether a listing under way may have begun too early, or records written for a listing may be lost.
        self._again = False
        # A listing under way, when it began, and whether one that began later has been applied since.
        self._under_way: SlowCall[ShardListing] | None = None
        self._began = 0.0
        self._is_outdated = False
        self._wanted_soon_at = -math.inf  # when an early listing was requested, by the source's clock

    @property
    def untold(self) -> ShardListing | None:
        """The listing that the other workers do not know yet."""
        return self.newest if self.is_owner and self.newest != self.lineage.committed.listing else None

    @property
    def is_listing(self) -> bool:
        """Whether a listing is under way, or has arrived but was not applied yet."""
        return self._under_way is not None or self._told() is not None

    @property
    def is_due(self) -> bool:
        if self._told() is not None or self._is_wanted_again:
            return True
        if self._under_way is not None:
            return self._under_way.done()
        return self.monotonic() >= self.next_at

    @property
    def next_at(self) -> float:
        """When `is_due` may become true by itself, by the monotonic clock."""
        if self._under_way is not None:
            return 0.0
        # If another stream follows, the owner may already be reading it.
        if self.is_owner or self.successor is not None or self.listed_at < self._since:
            return self._next_at
        return self._next_at + (_PATIENCE_AT_START if self.newest is None else _PATIENCE + self.took)  # I10

    def soon(self) -> None:
        """List again soon; a listing under way is too old."""
        self._again = True
        self._wanted_soon_at = self.clock()
        self._wait = _RELIST_SOON  # also the listing after that one: a single listing may lack shards
        self._next_at = min(self._next_at, self.monotonic() + _RELIST_SOON)

    def poll(self) -> bool:
        """Apply a listing that has arrived, or start one. Return whether one has arrived, or was requested again."""
        self._next_at = self._next_at or self.monotonic()
        if self._under_way is not None and self._under_way.done():
            under_way, self._under_way = self._under_way, None
            if not self._is_outdated:  # I1
                return self._take(under_way)
        if (told := self._told()) is not None:
            begun = told.begun - _CLOCKS_DIFFER
            self._is_outdated = self._began < begun
            self._apply(told, begun)
            return True
        if self._is_wanted_again:
            self._again = False
            return True
        if self._under_way is None and self.monotonic() >= self.next_at:
            self._again = False
            self._began, self._is_outdated = self.clock(), False
            self._under_way = SlowCall(f"list-{self.source.name}", partial(self._list, self._began))
        return False

    @property
    def _is_wanted_again(self) -> bool:
        return self._again and not self.is_owner and self.newest is not None

    def _told(self) -> ShardListing | None:
        """Return another worker's newest listing if it is newer than the one in ``lineage``, otherwise None."""
        listing, now = self.lineage.committed.listing, self.clock()
        if listing is None:
            return None
        # I1: it shows nothing later than its own beginning, and the two listings that lack a shard have to be distinct.
        begun, oldest = listing.begun - _CLOCKS_DIFFER, max(self.listed_at, self._since)
        return listing if max(oldest, now - listing.took - 2 * _RELIST) < begun <= now else None

    def _take(self, call: SlowCall[ShardListing]) -> bool:
        try:
            listing = call.result()
        except RelayError as error:
            said = "source %s: cannot list its shards; retrying in %d s: %s"
            log.warning(said, self.source.name, _AFTER_FAILURE, error)
            self._next_at = self.monotonic() + _AFTER_FAILURE
            return False
        self._apply(listing, listing.begun)
        return True

    def _apply(self, listing: ShardListing, begun: float) -> None:
        """Apply ``listing``. ``begun``: when the listing began, by this worker's clock, or a little earlier."""
        known = set(self.lineage.listed)
        self.newest, self.took, self.successor = listing, listing.took, listing.successor
        self.listed_at, self.listed_before = begun, self.listed_at
        checkpoints, plan = self.lineage.committed.checkpoints, self.lineage.committed.plan
        expected = {*checkpoints, *_still_planned(plan, self.clock())}  # I1
        self.lineage.update(unpruned(listing.shards, checkpoints, plan, self.clock()), expected)
        # A leaf may stay a leaf for long, such as while its stream is disabled: list less and less often.
        changed = self._again or known != set(self.lineage.listed)
        self._wait = _RELIST_SOON if changed else min(2 * self._wait, _RELIST)
        # The others assume that it began a little earlier, so it has to show them what they need, too.
        is_early = self.is_owner and begun - _CLOCKS_DIFFER <= self._wanted_soon_at
        wait = self._wait if self._again or is_early or self._is_uncertain() else _RELIST
        self._next_at = self.monotonic() + wait - max(0.0, self.clock() - listing.begun - listing.took)

    def _list(self, begun: float) -> ShardListing:
        """Return a listing, with the label of the stream that continues this one. Runs in a thread."""
        own = self.lineage.stream.label
        try:
            following = self.source.following()
        except Unavailable as error:
            # The stream of a deleted table exists for another day.
            log.warning("source %s: cannot look up the stream that follows: %s", self.source.name, error)
            following = own
        try:
            shards = self.source.shards()
        except StreamGone:
            if following == own:
                raise
            shards = []  # replaced so long ago that the stream is gone, with all unread records
        return ShardListing(begun, self.clock() - begun, tuple(shards), following if following != own else None)

    def _is_uncertain(self) -> bool:
        """Whether a shard may only seem to be missing, or has ended while its children are not listed yet."""
        lineage = self.lineage
        return any(times == 1 for times in lineage.absent.values()) or any(
            shard in lineage.absent
            if not c.state.ended
            else c.state is ShardState.FINISHED and shard in lineage.listed and not lineage.children(shard)
            for shard, c in self.lineage.committed.checkpoints.items()
        )
