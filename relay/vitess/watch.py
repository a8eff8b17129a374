"""Whether the stream of a shard has all that the shard has: how far it is caught up, and whether it is stuck.

vtgate goes silent where one would expect an error: at a position of another database, with no tablet that serves,
with binlogs that are purged at every tablet. Its heartbeats are its own and go on. So the shard's head is asked for
(I10), which tells silence from idleness, and is what ``Page.reached`` rests on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.vitess.client import Vtgate
from relay.vitess.head import Head, missing_before, why_silent
from relay.vitess.position import VStreamPosition
from relay.vitess.settings import VStreamSettings

_DOUBLINGS = 7
_PRIMARY = "PRIMARY"
_COPY_PATIENCE = 20  # times as long: vtgate first sorts a table that it copies


class PositionPurged(Exception):
    """What comes after the position is not there any more."""


class Watch:
    """Used by the reader of one shard. ``clock``: seconds since the epoch."""

    def __init__(
        self,
        vtgate: Vtgate,
        source: str,
        qualified: str,
        keyspace: str,
        shard: str,
        table: str,
        settings: VStreamSettings,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.source = source
        self.qualified = qualified
        self.keyspace = keyspace
        self.shard = shard
        self.vtgate = vtgate
        self.settings = settings
        # Seconds of the clock: whatever was committed before was read.
        self.reached: float | None = None
        # By the monotonic clock: when anything came last, and when it was last certain that nothing is missing.
        self._heard = self._certain = time.monotonic()
        self._head, self._primary = (
            Head(
                vtgate,
                keyspace,
                shard,
                table,
                tablet_type=tablet_type,
                cells=settings.cells,
                patience=settings.silence,
                clock=clock,
            )
            for tablet_type in (settings.tablet_type, _PRIMARY)
        )
        # A head that has not been reached, and when it was asked for; when one was last asked for.
        self._ahead: tuple[float, GtidSet] | None = None
        self._asked = -settings.ask_every
        self._mismatches = 0
        # How often in a row the stream was given up at one place. It may have been a transaction that vtgate takes
        # longer to put together than we waited: so each time it gets twice as long.
        self._given_up = 0

    def close(self) -> None:
        self._head.close()
        self._primary.close()

    def opened(self) -> None:
        """The stream was opened: what was asked before is too old to judge it by."""
        self._head.close()
        self._ahead = None
        self._asked = -self.settings.ask_every
        self._heard = self._certain = time.monotonic()

    def heard(self) -> None:
        """Something came, if only a heartbeat."""
        self._heard = time.monotonic()

    def moved(self) -> None:
        """The place that was read to has moved."""
        self._certain = time.monotonic()
        self._mismatches = self._given_up = 0
        self._primary.close()  # an answer might lack what was read since

    def head(self, timeout: float) -> GtidSet | None:
        """Return where the shard stands, asked now; None if the answer takes longer: ask again."""
        self._ask()
        answer = self._head.poll(timeout)
        return answer[1] if answer is not None else None

    @property
    def head_failed(self) -> str:
        return self._head.failed or "vtgate does not say"

    def look(self, place: VStreamPosition, moves: bool) -> bool:
        """Look how far ``place`` is from the head. Return whether a head was reached just now.

        ``moves``: whether the stream, since it was opened, gave anything of the shard itself.
        """
        now = time.monotonic()
        answer = self._head.poll()
        mine = gtid.parse(place.executed) if place.executed and (answer or self._ahead) else None
        if answer is not None and (self._ahead is None or mine is None or mine.contains(self._ahead[1])):
            self._ahead = answer
        if self._is_due(now, mine):
            self._ask()
        if self._ahead is None or mine is None or place.copied is not None:
            return False
        asked, head = self._ahead
        # More than the head is what a stream has that goes on; or the shard has never executed it.
        if not mine.contains(head) or (mine != head and not moves):
            return False
        self.reached, self._ahead = asked, None
        self._certain = now
        self._given_up = 0
        return True

    def verdict(self, place: VStreamPosition, moves: bool, begun: float) -> str | None:
        """Return why nothing comes, once it is sure that something should, None before.

        Raises `PositionPurged`, and ``RelayError`` if the shard never had ``place``.
        """
        now, silence = time.monotonic(), self.settings.silence
        if now - self._heard > silence:
            return f"vtgate sent nothing for {silence:g} s: {self._why()}"
        patience = silence * 2 ** min(self._given_up, _DOUBLINGS) * (_COPY_PATIENCE if place.copied is not None else 1)
        is_patient = now - self._certain <= patience
        behind = None
        if self._ahead is not None and not moves:
            behind = self.refuse(place, self._ahead[1], patient=is_patient)
        if is_patient:
            return None
        if behind is not None:
            return f"nothing came for {patience:g} s: {behind}"
        if self._ahead is None:
            if not self._head.is_asking:
                self._ask()
            elif now - self._head.asked_at > silence:
                why = self._head.failed or self._why()
                return f"nothing came for {silence:g} s, nor where the shard stands: {why}"
            return None
        head = self._ahead[1]
        if place.executed and self.is_purged(place, ""):
            raise PositionPurged(f"nothing came after {place.executed}, and the binlogs there were purged")
        self._given_up += 1
        return (
            f"nothing came for {patience:g} s after {place.executed}, and it stands at {head.position}: {self._why()}"
        )

    def mismatched(self, place: VStreamPosition, timeout: float) -> str | None:
        """No tablet has executed ``place``: return that they are behind it, None if that is not known.

        Raises ``RelayError`` once it is sure that the shard never had it.
        """
        self._mismatches += 1
        head = self.head(timeout)
        return None if head is None else self.refuse(place, head, patient=self._mismatches < 2)

    def refuse(self, place: VStreamPosition, head: GtidSet, *, patient: bool) -> str | None:
        """Return that the tablet, which stands at ``head``, is behind ``place``; None if it is not.

        Raises ``RelayError`` if the shard never had ``place``. That a replica lacks it says nothing: it may be far
        behind the one that was read before. So the primary is asked, unless ``patient``.
        """
        if not place.executed:
            return None
        mine = gtid.parse(place.executed)
        is_other = mine.flavour != head.flavour or mine.diverges(head)
        if not is_other:
            if head.contains(mine):
                return None
            of_primary = None if patient else self._primary_head(head)
            if of_primary is None or (of_primary.contains(mine) and not mine.diverges(of_primary)):
                return (
                    f"the {self.settings.tablet_type} tablet of it stands at {head.position}, behind "
                    f"{place.executed}, up to where it was read: it goes on once a tablet has caught up"
                )
            head = of_primary
        raise RelayError(
            f"shard {self.qualified}: {place.executed} is no position of it, which stands at {head.position}: it is "
            f"from another database, or was lost there. Reset it: relay reset CONFIG {self.source} --to ..."
        )

    def _primary_head(self, head: GtidSet) -> GtidSet | None:
        """Return where the primary stands, asked after the place was read; None if it does not say (yet).

        ``head``: that of the tablets that are read.
        """
        if self.settings.tablet_type == _PRIMARY:
            return head
        self._primary.ask()
        answer = self._primary.poll(self.settings.wait)
        return answer[1] if answer is not None else None

    def is_purged(self, place: VStreamPosition, text: str) -> bool:
        """Whether what comes after ``place`` is gone. ``text``: what the server said of it."""
        if "purged" in text or "errno 1789" in text:
            return True
        flavour = place.executed.partition("/")[0]
        missing = missing_before(self.vtgate, self.keyspace, self.shard, self.settings.tablet_type, flavour)
        return missing is not None and not gtid.parse(place.executed).contains(missing)

    def _ask(self) -> None:
        # One that got no answer while the stream went on is asked again; of a silent stream it is the verdict.
        if not self._head.is_asking or self._certain > self._head.asked_at:
            self._asked = time.monotonic()
            self._head.ask()

    def _is_due(self, now: float, mine: GtidSet | None) -> bool:
        """Whether to ask for the head: a busy shard shows by itself that it goes on."""
        every = self.settings.ask_every
        if now - self._asked < every:
            return False
        if self._ahead is not None:
            return mine is not None and mine.contains(self._ahead[1])
        return self.reached is None or self._asked < 0 or now - self._certain >= min(every, self.settings.silence / 2)

    def _why(self) -> str:
        return why_silent(self.vtgate, self.keyspace, self.shard, self.settings.tablet_type)
