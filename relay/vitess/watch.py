"""Tells whether the stream of a shard has reached the shard's head, and whether a silent stream is stuck or idle.

Where one would expect an error, vtgate is silent: at a position from another database, without a serving tablet, with
binlogs that every tablet has purged. Its heartbeats go on. So the shard's head is asked for (I10): that tells silence
from idleness, and is the basis of ``Page.reached``.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.vitess.client import Vtgate
from relay.vitess.head import Head
from relay.vitess.position import VStreamPosition
from relay.vitess.settings import VStreamSettings
from relay.vitess.shard import VitessShard
from relay.vitess.tablets import TIMES_ASKED, Tablets

_DOUBLINGS = 7
_PRIMARY = "PRIMARY"


class PositionPurged(Exception):
    """The binlogs after the position have been purged."""


class Watch:
    """Used by the reader of one shard. ``table``: one to ask for the head with. ``clock``: seconds since the epoch."""

    def __init__(
        self, vtgate: Vtgate, shard: VitessShard, table: str, settings: VStreamSettings, *, clock: Callable[[], float]
    ) -> None:
        self.shard = shard
        self.settings = settings
        self.tablets = Tablets(vtgate, shard, settings.tablet_type, settings.cells)
        # Seconds since the epoch: everything committed before has been read.
        self.reached: float | None = None
        # Monotonic: when anything came last, when it was last certain that nothing was missing, and when changes came
        # last or a head was reached.
        self._received_at = self._certain_at = self._changed_at = time.monotonic()
        self._head, self._primary = (
            Head(replace(self.tablets, kind=kind), table, patience=settings.silence, clock=clock)
            for kind in (settings.tablet_type, _PRIMARY)
        )
        # A head that has not been reached, and when it was asked for.
        self._ahead: tuple[float, GtidSet] | None = None
        # Monotonic: when a head was last asked for.
        self._asked_at = -settings.ask_every
        self._mismatches = 0
        # How often in a row a stream at one position was reopened. vtgate may only need longer to send a large
        # transaction, so each stream is given twice the time.
        self._reopened = 0

    def close(self) -> None:
        self._head.close()
        self._primary.close()

    def opened(self) -> None:
        """A stream was opened: a head asked for before cannot judge it."""
        self._head.close()
        self._ahead = None
        self._asked_at = -self.settings.ask_every
        self._received_at = self._certain_at = time.monotonic()

    def received(self) -> None:
        """Something came, if only a heartbeat."""
        self._received_at = time.monotonic()

    def advanced(self, *, has_changes: bool) -> None:
        """The position has advanced. ``has_changes``: not only past transactions of other tables."""
        self._certain_at = time.monotonic()
        if has_changes:
            self._changed_at = self._certain_at
        self._mismatches = self._reopened = 0
        self._primary.close()  # its answer may lack what has been read since

    def head(self, timeout: float) -> GtidSet | None:
        """Ask for the shard's head; return None if that takes over ``timeout`` seconds: then call again."""
        self._ask()
        answer = self._head.poll(timeout)
        return answer[1] if answer is not None else None

    @property
    def head_failed(self) -> str:
        return self._head.failed or "vtgate does not answer"

    def check_head(self, position: VStreamPosition, is_active: bool) -> bool:
        """Return whether ``position`` has just reached a head, and ask for the next one when it is time.

        ``is_active``: whether the stream, since it was opened, had an event of the shard itself.
        """
        now = time.monotonic()
        answer = self._head.poll()
        executed = gtid.parse(position.executed) if answer or self._ahead else None
        if answer is not None and (self._ahead is None or executed is None or executed.contains(self._ahead[1])):
            self._ahead = answer
        if self._is_due(now, executed):
            self._ask()
        if self._ahead is None or executed is None:
            return False
        asked, head = self._ahead
        # A position beyond the head comes from a stream that is going on, or the shard never had it.
        if not executed.contains(head) or (executed != head and not is_active):
            return False
        self.reached, self._ahead = asked, None
        self._certain_at = self._changed_at = now
        self._reopened = 0
        return True

    def diagnose(self, position: VStreamPosition, is_active: bool) -> str | None:
        """Return why nothing comes, once it is certain that something should; None before.

        Raises `PositionPurged`, and ``RelayError`` if the shard never had ``position``.
        """
        now, silence = time.monotonic(), self.settings.silence
        if now - self._received_at > silence:
            return f"vtgate sent nothing for {silence:g} s: {self.tablets.explain_silence()}"
        patience = silence * 2 ** min(self._reopened, _DOUBLINGS)
        is_patient = now - self._certain_at <= patience
        behind = None
        if self._ahead is not None and not is_active:
            behind = self.diagnose_lag(position, self._ahead[1], patient=is_patient)
        if is_patient:
            return None
        if behind is not None:
            return f"no event for {patience:g} s: {behind}"
        if self._ahead is None:
            if not self._head.is_asking:
                self._ask()
            elif now - self._head.asked_at > silence:
                why = self._head.failed or self.tablets.explain_silence()
                return f"no event and no answer about the shard's head for {silence:g} s: {why}"
            return None
        head = self._ahead[1]
        if self.is_purged(position, ""):
            raise PositionPurged(f"no event after {position.executed}: the binlogs that follow it have been purged")
        self._reopened += 1
        return (
            f"no event for {patience:g} s after {position.executed}, although the shard is at {head.position}: "
            f"{self.tablets.explain_silence()}"
        )

    def diagnose_mismatch(self, position: VStreamPosition, timeout: float) -> str | None:
        """Return that the tablets are behind ``position``, which they have not executed, or None if that is not known.

        Raises ``RelayError`` once it is certain that the shard never had it.
        """
        self._mismatches += 1
        head = self.head(timeout)
        return None if head is None else self.diagnose_lag(position, head, patient=self._mismatches < 2)

    def diagnose_lag(self, position: VStreamPosition, head: GtidSet, *, patient: bool) -> str | None:
        """Return that the tablet, which is at ``head``, is behind ``position``, or None if it is not.

        Raises ``RelayError`` if the shard never had ``position``. A replica without it may only be far behind the one
        that was read before, so the primary is asked, unless ``patient``.
        """
        executed = gtid.parse(position.executed)
        if executed.flavour == head.flavour and not executed.diverges(head):
            if head.contains(executed):
                return None
            primary = None if patient else self._primary_head(head)
            if primary is None or (primary.contains(executed) and not executed.diverges(primary)):
                return (
                    f"the {self.settings.tablet_type} tablet is at {head.position}, behind {position.executed}, which "
                    "has been read: waiting for a tablet to catch up"
                )
            head = primary
        raise RelayError(
            f"shard {self.shard.qualified}: it never executed {position.executed}, and is at {head.position}: the "
            f"position is from another database, or was lost there. Reset it: `relay reset CONFIG {self.shard.source} "
            "--to ...`"
        )

    def _primary_head(self, head: GtidSet) -> GtidSet | None:
        """Return the primary's head, asked for after the position was read, or None while it does not answer.

        ``head``: the head of the tablets that are read.
        """
        if self.settings.tablet_type == _PRIMARY:
            return head
        self._primary.ask()
        answer = self._primary.poll(self.settings.wait)
        return answer[1] if answer is not None else None

    def is_purged(self, position: VStreamPosition, text: str) -> bool:
        """Whether the tablets have purged what follows ``position``. ``text``: what one said about it.

        A tablet that was restored from a backup lacks what others still have: then it is not purged.
        """
        executed, has_answer = gtid.parse(position.executed), False
        for _ in range(TIMES_ASKED):
            purged = self.tablets.purged_set(executed.flavour)
            if purged is None:
                break
            if executed.contains(purged):
                return False  # I1
            has_answer = True
        return has_answer or "purged" in text or "errno 1789" in text

    def _ask(self) -> None:
        # A question without an answer is repeated if the stream went on since; if it did not, `diagnose` uses its age.
        if not self._head.is_asking or self._certain_at > self._head.asked_at:
            self._asked_at = time.monotonic()
            self._head.ask()

    def _is_due(self, now: float, executed: GtidSet | None) -> bool:
        """Whether to ask for the head: not while changes come, whose tokens say how far the shard is read."""
        every = self.settings.ask_every
        if now - self._asked_at < every:
            return False
        if self._ahead is not None:
            return executed is not None and executed.contains(self._ahead[1])
        is_first = self.reached is None or self._asked_at < 0
        return is_first or now - self._changed_at >= min(every, self.settings.silence / 2)
