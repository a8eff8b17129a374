"""Tells by a shard's head whether its stream has reached it, and whether a silent stream is stuck or idle (I10)."""

import time
from collections.abc import Callable
from dataclasses import replace

from relay import gtid
from relay.errors import RelayError
from relay.gtid import GtidError, GtidSet
from relay.vitess.call import Call
from relay.vitess.client import CURRENT, Vtgate, events_of
from relay.vitess.failures import BrokenStream
from relay.vitess.http2 import CallEnded
from relay.vitess.position import VitessShard, VStreamPosition
from relay.vitess.settings import VStreamSettings
from relay.vitess.tablets import TIMES_ASKED, Tablets


class Head:
    """Asks for the head of a shard: the position that a stream at `current` starts with. ``table``: the only one in it.

    ``patience``: seconds after which a question without an answer may be repeated. ``clock``: seconds since the epoch.
    """

    def __init__(self, tablets: Tablets, table: str, *, patience: float = 30.0, clock: Callable[[], float]) -> None:
        self._tablets = tablets
        self._patience = patience
        self._table = table  # one, so that few rows come until the stream is closed
        self._clock = clock
        self._stream: Call | None = None
        # When the open question was asked, by ``clock`` and by the monotonic clock.
        self._asked = 0.0
        self.asked_at = 0.0
        self.failed: str | None = None  # why the last question got no answer

    @property
    def is_asking(self) -> bool:
        return self._stream is not None

    def ask(self) -> None:
        """Ask, unless a question younger than ``patience`` is open."""
        if self._stream is not None and time.monotonic() - self.asked_at > self._patience:
            self.close()
        if self._stream is None:
            self._asked = self._clock()
            self.asked_at = time.monotonic()
            self._stream = self._tablets.stream([self._tablets.at(CURRENT)], [self._table])

    def poll(self, timeout: float = 0.0) -> tuple[float, GtidSet] | None:
        """Return when the question was asked, by ``clock``, and the shard's executed set, or None without an answer."""
        if self._stream is None:
            return None
        head, failed = None, None
        try:
            events = (event for answer in self._stream.take(timeout) for event in events_of(answer))
            found = (at.gtid for event in events for at in event.vgtid.shard_gtids if at.gtid not in ("", CURRENT))
            head = next(map(gtid.parse, found), None)
        except CallEnded as ended:
            failed = str(ended)
        except (BrokenStream, GtidError) as error:
            failed = f"the answer about the head cannot be read: {error}"
        if head is None and failed is None:
            return None
        self.failed = failed
        self.close()
        return None if head is None else (self._asked, head)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


_DOUBLINGS = 7
_PRIMARY = "PRIMARY"


class PositionPurged(Exception):
    """The binlogs after the position have been purged."""


class Watch:
    """Used by the reader of one shard. ``table``: a table to ask for the head with. ``clock``: see `Head`."""

    def __init__(
        self, vtgate: Vtgate, shard: VitessShard, table: str, settings: VStreamSettings, *, clock: Callable[[], float]
    ) -> None:
        self.shard = shard
        self.settings = settings
        self.tablets = Tablets(vtgate, shard, settings.tablet_type, settings.cells)
        self.reached: float | None = None  # seconds since the epoch: everything committed before that has been read
        # By the monotonic clock: when anything last came, when it was last certain that nothing was missing, and when
        # changes last came or a head was reached.
        self._received_at = self._certain_at = self._changed_at = time.monotonic()
        self._head, self._primary = (
            Head(replace(self.tablets, kind=kind), table, patience=settings.silence, clock=clock)
            for kind in (settings.tablet_type, _PRIMARY)
        )
        self._ahead: tuple[float, GtidSet] | None = None  # a head that has not been reached, and when it was asked for
        # Why a head counts as not reached: no tablet has all of a transaction of which rows were read.
        self._behind: str | None = None
        self._asked_at = -settings.ask_every  # when a head was last asked for, by the monotonic clock
        self._mismatches = 0
        # How often in a row a stream at one position was reopened. vtgate may only need longer to send a large
        # transaction, so each stream is given twice the time.
        self._reopened = 0

    def close(self) -> None:
        self._head.close()
        self._primary.close()

    def opened(self) -> None:
        """Note that a stream was opened. A head that was asked for earlier does not apply to it."""
        self._head.close()
        self._ahead = self._behind = None
        self._asked_at = -self.settings.ask_every
        self._received_at = self._certain_at = time.monotonic()

    def received(self) -> None:
        """Note that something came, even if only a heartbeat."""
        self._received_at = time.monotonic()

    def advanced(self, *, has_changes: bool) -> None:
        """Note that the position has advanced. ``has_changes``: whether changes came with it."""
        self._certain_at = time.monotonic()
        if has_changes:
            self._changed_at = self._certain_at
        self._behind = None
        self._mismatches = self._reopened = 0
        self._primary.close()  # the answer may lack what has been read since

    def head(self, timeout: float) -> GtidSet | None:
        """Ask for the shard's head; return None if that takes over ``timeout`` seconds: then call again."""
        self._ask()
        answer = self._head.poll(timeout)
        return answer[1] if answer is not None else None

    @property
    def head_failed(self) -> str:
        return self._head.failed or "vtgate does not answer"

    def check_head(self, position: VStreamPosition, is_active: bool) -> float | None:
        """Return ``reached`` if ``position`` has just reached a head, and ask for the next head when it is time.

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
            return None
        asked, head = self._ahead
        # A position beyond the head comes from an active stream, or the shard never had it.
        if not executed.contains(head) or (executed != head and not is_active):
            return None
        self._ahead = None
        if position.done:  # I10: its rows are published, and may be lost
            needed = replace(position, executed=position.needed.position)
            self._behind = self.diagnose_lag(needed, head, patient=False)
            return None
        self._behind = None
        self.reached = asked
        self._certain_at = self._changed_at = now
        self._reopened = 0
        return asked

    def diagnose(self, position: VStreamPosition, is_active: bool) -> str | None:
        """Return why no event comes, once one surely should. Raises `PositionPurged`, and as `diagnose_lag`."""
        now, silence = time.monotonic(), self.settings.silence
        if now - self._received_at > silence:
            return f"vtgate sent nothing for {silence:g} s: {self.tablets.explain_silence()}"
        patience = silence * 2 ** min(self._reopened, _DOUBLINGS)
        is_patient = now - self._certain_at <= patience
        behind = self._behind  # I10
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
        """Return that the tablets are behind ``position``, if so. Raises ``RelayError`` if the shard never had it."""
        self._mismatches += 1
        head = self.head(timeout)
        return None if head is None else self.diagnose_lag(position, head, patient=self._mismatches < 2)

    def diagnose_lag(self, position: VStreamPosition, head: GtidSet, *, patient: bool) -> str | None:
        """Return a message that the tablet at ``head`` is behind ``position``, or None if it is not.

        Raises ``RelayError`` if the shard never had ``position``. A replica without it may only be far behind the
        replica that was read before, so the primary is asked, unless ``patient``.
        """
        executed = gtid.parse(position.executed)
        if executed.flavour == head.flavour and not executed.diverges(head):
            if head.contains(executed):
                return None
            primary = None if patient else self._primary_head(head)
            if primary is None or (primary.contains(executed) and not executed.diverges(primary)):
                if not executed.contains(head):  # I10: waiting does not bring back what a reset has removed
                    return (
                        f"the {self.settings.tablet_type} tablet is at {head.position}: it has later transactions, "
                        f"but lacks some of {executed.position}, which was read. Its binlogs were reset, or it "
                        "applies transactions out of order: if this lasts, rebuild it from a backup"
                    )
                return (
                    f"the {self.settings.tablet_type} tablet is at {head.position}, behind {position.executed}, which "
                    "was read: waiting for a tablet to catch up"
                )
            head = primary
        raise RelayError(
            f"shard {self.shard.qualified} never executed {position.executed}, and is at {head.position}: the "
            "position is from another database, or the database has lost it. Reset the source: `relay reset CONFIG "
            f"{self.shard.source} --to ...`"
        )

    def _primary_head(self, head: GtidSet) -> GtidSet | None:
        """Return the primary's head, asked for after the position was read, or None. ``head``: that of the tablets."""
        if self.settings.tablet_type == _PRIMARY:
            return head
        self._primary.ask()
        answer = self._primary.poll(self.settings.wait)
        return answer[1] if answer is not None else None

    def is_purged(self, position: VStreamPosition, text: str) -> bool:
        """Whether no tablet has the binlogs after ``position``. ``text``: what one says, maybe alone.

        One that was restored from a backup may lack binlogs that others still have.
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
        # A question without an answer is repeated if the stream went on since; otherwise, `diagnose` uses its age.
        if not self._head.is_asking or self._certain_at > self._head.asked_at:
            self._asked_at = time.monotonic()
            self._head.ask()

    def _is_due(self, now: float, executed: GtidSet | None) -> bool:
        """Whether to ask for the head: not while changes come, as their tokens say how far the shard is read."""
        every = self.settings.ask_every
        if now - self._asked_at < every:
            return False
        if self._ahead is not None:
            return executed is not None and executed.contains(self._ahead[1])
        is_first = self.reached is None or self._asked_at < 0
        return is_first or now - self._changed_at >= min(every, self.settings.silence / 2)
