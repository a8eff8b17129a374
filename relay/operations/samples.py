"""The samples of a sink for ``relay verify --forever``: looked at after a minute, and each round while they differ."""

import random
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.errors import RelayError
from relay.kafka.changes import ReceivedChange
from relay.kafka.group_offsets import Offsets
from relay.observe.verifier import BOUNDS, Accusation, VerifierObserver
from relay.operations.suspicion import BEHIND, ROUNDS, Judgement, Settled, Suspicion, Terms
from relay.operations.verify_tables import AppliedTime

FIRST, WITHIN = min(BOUNDS.values()), max(BOUNDS.values())
"""Seconds until the first look at a change, and for how long a difference lasts that may be accused."""

PATIENCE = ROUNDS * WITHIN  # seconds after which a sample that is neither right nor wrong is unknown
PICKED = 50  # keys that a look for random keys of a sink takes
_AT_RANDOM = 300.0  # seconds between two such looks
_CANDIDATES = 200  # of the changes of a round
_SAMPLES = 2_000  # of one sink that wait for a look
_PASSED = 10_000  # keys of one sink whose changes have passed
_EVENTS = 20  # of the history of a sample
Key = tuple[str, tuple[str, ...]]  # a table and the texts of its key columns; of the cache, no table and the cache key

_CONSUMER: Key = ("", ())


@dataclass(slots=True)
class WatchedKey:
    suspicion: Suspicion
    due: float  # when it is looked at
    lasted: float = 0.0  # the longest that it differed, in seconds
    unread: str = ""  # why the last look could not read it
    history: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_EVENTS))  # I11

    def changes(self) -> list[dict[str, Any]]:
        """Return the changes that passed while it was watched, the oldest first."""
        return [each for each in self.history if "offset" in each]

    def note(self, now: float, seen: Mapping[str, Any]) -> None:
        """Add to the history what a look has ``seen``, unless the one before has seen the same."""
        if not self.history or {**self.history[-1], "at": now} != {**seen, "at": now}:
            self.history.append({"at": now, **seen})


class Samples(ABC):
    """The samples of one sink. ``clock``: seconds since the epoch. ``tell``: receives accusations, and their ends."""

    def __init__(
        self,
        name: str,
        applied: AppliedTime,
        observer: VerifierObserver,
        tell: Callable[[Accusation], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.applied, self._observer, self._tell, self.clock = name, applied, observer, tell, clock
        self.watched: dict[Key, WatchedKey] = {}
        self.terms = Terms(0.0, 0.0, WITHIN, PATIENCE)
        # Random changes of this round, and the keys of random ones since the start, each with how many there were.
        self._candidates, self._candidate_of = list[tuple[Key, dict[str, Any]]](), 0
        self._passed, self._passed_of = list[Key](), 0
        self._picked_at = -_AT_RANDOM
        # How many keys of a table a look takes, if a look at more has failed: one of them may be the reason.
        self._at_once: dict[str, int] = {}
        self.has_read = False  # whether the last look has read anything, which shows that the sink answers
        # The offsets of the consumer's group, and since when they stand although something waits.
        self._committed: Offsets = {}
        self._stands_since: float | None = None

    def have_looked(self, table: str = "") -> None:
        """Note that both sides of a table were read: what is committed from now on may be missing in either."""
        self.terms = self.terms._replace(now=self.clock())
        self._at_once[table] = min(2 * self._at_once.get(table, _SAMPLES), _SAMPLES)

    def have_failed(self, keys: Collection[Key], reason: str) -> None:
        """Note why none of these keys of one table could be read: they are unknown if that has lasted for too long."""
        self.terms = self.terms._replace(now=self.clock())
        for table, count in Counter(table for table, _ in keys).items():
            self._at_once[table] = max(1, count // 2)  # I12: what can be read is found
        for key in keys:
            if (watched := self.watched.get(key)) is not None:
                watched.unread = reason
                if self.terms.now - watched.suspicion.first >= PATIENCE:
                    self.settle(key, Settled(Judgement.UNKNOWN, reason), {"what": "look", "error": reason})

    def forget(self, table: str) -> None:
        """Forget the keys of a table whose key columns were altered, and what they are accused of."""
        for key in [key for key in self.watched if key[0] == table]:
            self._acquit(key)
            del self.watched[key]
        self._candidates = [each for each in self._candidates if each[0][0] != table]
        self._passed = [each for each in self._passed if each[0] != table]

    # ------------------------------------------------------------------ what a sink is

    @abstractmethod
    def keys_of(self, change: ReceivedChange) -> Iterable[Key]:
        """Return the keys whose rows or values a change may change."""

    @abstractmethod
    def look_at(self, keys: Collection[Key]) -> str | None:
        """Read both sides of the keys, the source last; call ``have_looked`` and ``settle``.

        Returns why some could not be read, after ``have_failed``; raises ``RelayError`` if none could.
        """

    @abstractmethod
    def pick(self, count: int) -> Iterable[Key]:
        """Return random keys of the sink, or ``watch`` them at its next look."""

    @abstractmethod
    def shown(self, key: Key) -> Mapping[str, str]: ...

    # ------------------------------------------------------------------ the rounds

    def pass_by(self, change: ReceivedChange) -> None:
        for key in self.keys_of(change):
            event = {
                "at": change.relayed_at / 1e6,
                "what": change.operation.value,
                "event_id": change.event_id,
                "token": change.token.to_json() if change.token else None,
                "committed_at": change.committed_at / 1e6,
                "topic": change.topic,
                "partition": change.partition,
                "offset": change.offset,
            }
            if (watched := self.watched.get(key)) is not None:
                watched.history.append(event)
            self._candidate_of, self._passed_of = self._candidate_of + 1, self._passed_of + 1
            _reserve(self._candidates, (key, event), self._candidate_of, _CANDIDATES)
            _reserve(self._passed, key, self._passed_of, _PASSED)  # I11

    def look(self, most: int) -> str | None:
        """End a round, with up to ``most`` reads of rows. Return why the sink could not be looked at, or None."""
        now, self.has_read, room = self.clock(), False, most
        keys, places = list[Key](), Counter[str]()
        try:
            if now - self._picked_at >= _AT_RANDOM:
                self.watch((key, None) for key in self.pick(PICKED))
                self._picked_at = now
                self.has_read = True
            through = self.applied.through()  # before the kept rows are read
            # Without a relay, the changes since its end are on no topic.
            self.terms = self.terms._replace(through=through if self.applied.is_running else 0.0)
            self._look_at_consumer(now)
            due = [key for key, each in self.watched.items() if each.due <= now]
            room = max(0, most - len(due))
            for key in sorted(due, key=lambda key: (self.watched[key].due, random.random())):
                if len(keys) < most and places[key[0]] < self._at_once.get(key[0], most):
                    keys.append(key)
                    places[key[0]] += 1
                    self.watched[key].due = now  # I12: what cannot be read is after all others the next time
            reason = self.look_at(keys)
            self.has_read |= bool(keys)
        except RelayError as error:  # I12: what cannot be looked at is not wrong
            reason = str(error)
            self.have_failed(keys, reason)
        self.watch(self._candidates[: room // 2], now + FIRST)
        self.watch((key, None) for key in random.sample(self._passed, min(room // 4, len(self._passed))))
        self._candidates, self._candidate_of = [], 0
        return reason or next((each.unread for each in self.watched.values() if each.unread), None)

    def watch(self, keys: Iterable[tuple[Key, dict[str, Any] | None]], due: float | None = None) -> None:
        """Begin samples, as many as there is room for. ``keys``: each with its change, if one is known."""
        now = self.clock()
        for key, event in keys:
            if key not in self.watched and len(self.watched) < _SAMPLES:  # I11
                self.watched[key] = WatchedKey(Suspicion(now, now), now if due is None else due)
            if event is not None and key in self.watched and event not in self.watched[key].history:
                self.watched[key].history.append(event)

    def settle(self, key: Key, settled: Settled | None, seen: Mapping[str, Any], columns: Sequence[str] = ()) -> None:
        """Note what a look at ``key`` has ``seen``, and count and forget the sample if it is ``settled``."""
        now, watched = self.terms.now, self.watched[key]
        watched.note(now, seen)
        watched.unread = ""
        differs = settled is None or settled.judgement is Judgement.WRONG or settled.detail == BEHIND
        if differs:
            watched.lasted = max(watched.lasted, now - watched.suspicion.since)
        if settled is None:
            watched.due = now  # after those that wait for a look
            return
        del self.watched[key]
        is_known = differs or settled.judgement is Judgement.CONSISTENT
        unknown = settled.detail if settled.judgement is Judgement.UNKNOWN else ""
        self._observer.settle(self.name, settled.judgement, watched.lasted if is_known else None, unknown)
        if settled.judgement is Judgement.CONSISTENT:
            self._acquit(key)
            return
        if settled.judgement is Judgement.WRONG:
            what = (self.name, settled.detail, key[0], self.shown(key), watched.lasted, now)
            self._accuse(Accusation(*what, self._how(watched.changes()), columns, [*watched.history]))
        if self._observer.is_accused(self.name, key[0], self.shown(key)):
            # To see when it is right again; its changes are looked for again, too.
            self.watch([(key, None), *((key, event) for event in watched.changes())], now + WITHIN)

    def _how(self, changes: Sequence[Mapping[str, Any]]) -> str:
        """Return in words how far the consumer was with the last of these changes."""
        if not changes:
            return "no change of it passed while it was watched"
        last = changes[-1]
        at = self.applied.committed.get(last["topic"], {}).get(str(last["partition"]), 0)
        done = "has applied it" if at > last["offset"] else "has not come to it"
        where = f"{last['topic']}[{last['partition']}] offset {last['offset']}"
        return f"its last change is {last['what']} {last['event_id']}, {where}; the consumer, at offset {at}, {done}"

    def _look_at_consumer(self, now: float) -> None:
        """Accuse a consumer that does not advance although records wait: until then its rows prove nothing."""
        applied = self.applied
        if not applied.waiting or applied.committed != self._committed or self._stands_since is None:
            self._committed, self._stands_since = applied.committed, now if applied.waiting else None
        seconds = now - self._stands_since if self._stands_since is not None else 0.0
        if seconds >= WITHIN + applied.apply_every:
            how = f"the consumer has committed nothing for {seconds:.0f} s, and {applied.waiting} offsets wait"
            self._accuse(Accusation(self.name, "stopped", "", {}, seconds, now, how))
        else:
            self._acquit(_CONSUMER)

    def _accuse(self, found: Accusation) -> None:
        if self._observer.accuse(found):
            self._tell(found)

    def _acquit(self, key: Key) -> None:
        ended = self._observer.acquit(self.name, key[0], self.shown(key) if key[1] else {}, self.clock())
        if ended is not None:
            self._tell(ended)


def _reserve(chosen: list[Any], one: Any, seen: int, most: int) -> None:
    """Keep ``one``, the ``seen``-th, in a random choice of up to ``most``."""
    if len(chosen) < most:
        chosen.append(one)
    elif (place := random.randrange(seen)) < most:
        chosen[place] = one
