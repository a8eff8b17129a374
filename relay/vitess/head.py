"""Asks vtgate how far a shard has got, beside its stream."""

import time
from collections.abc import Callable

from relay import gtid
from relay.gtid import GtidError, GtidSet
from relay.vitess.call import Call
from relay.vitess.client import CURRENT, events_of
from relay.vitess.failures import BrokenStream
from relay.vitess.http2 import CallEnded
from relay.vitess.tablets import Tablets, select_all


class Head:
    """Asks for the head of a shard: the position that a stream at `current` starts with.

    ``ask`` opens such a stream, and ``poll`` closes it once it has the answer. ``table``: the only one in the stream.
    ``patience``: seconds after which a question without an answer may be repeated. ``clock``: seconds since the epoch.
    """

    def __init__(self, tablets: Tablets, table: str, *, patience: float = 30.0, clock: Callable[[], float]) -> None:
        self._tablets = tablets
        self._patience = patience
        # One table, so that few rows come until the stream is closed.
        self._rules = {table: select_all(table)}
        self._clock = clock
        self._stream: Call | None = None
        # When the open question was asked, by ``clock`` and by the monotonic clock.
        self._asked = 0.0
        self.asked_at = 0.0
        # Why the last question got no answer.
        self.failed: str | None = None

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
            self._stream = self._tablets.stream([self._tablets.at(CURRENT)], self._rules)

    def poll(self, timeout: float = 0.0) -> tuple[float, GtidSet] | None:
        """Return when the question was asked, by ``clock``, and the set executed then, or None without an answer."""
        if self._stream is None:
            return None
        try:
            events = (event for answer in self._stream.take(timeout) for event in events_of(answer))
            found = (at.gtid for event in events for at in event.vgtid.shard_gtids if at.gtid not in ("", CURRENT))
            head = next(map(gtid.parse, found), None)
        except CallEnded as ended:
            self.failed = str(ended)
        except (BrokenStream, GtidError) as error:
            self.failed = f"vtgate sent what cannot be read: {error}"
        else:
            if head is None:
                return None
            self.failed = None
            self.close()
            return self._asked, head
        self.close()
        return None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
