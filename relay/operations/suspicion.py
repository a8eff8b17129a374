"""When a difference from the source proves a fault: the rule of ``relay verify``, once or for ever.

A row or a value that differs does not prove a fault: its change may be on its way. It is wrong only if neither side has
changed for as long as the caller allows, and everything committed before is applied.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from relay.operations.compared_rows import ComparedRow, are_alike
from relay.operations.expected_values import Comparison, ServedValue

CHANGING = "the row, or what is made of it, kept changing"
BEHIND = "relay and consumer had not caught up with the source at the end"
_OLDER = "the log has neither a change nor a snapshot of the row: it may be older than the log"

ROUNDS = 3  # for how many times the allowed seconds something is looked at while it changes


class Judgement(StrEnum):
    CONSISTENT = "consistent"
    INCOMPLETE = "incomplete"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class Settled(NamedTuple):
    """The end of a suspicion. ``detail``: how it is wrong, or why it is unknown."""

    judgement: Judgement
    detail: str = ""


_CONSISTENT = Settled(Judgement.CONSISTENT)


class Terms(NamedTuple):
    """By what a look is judged, in seconds of one clock."""

    now: float  # the time of the look
    through: float  # everything committed before this time is applied
    within: float  # for how long a difference has to last
    patience: float  # after how long it is unknown


@dataclass(slots=True)
class Suspicion:
    """What may differ. The methods return None if one has to look again."""

    first: float  # when first seen
    since: float  # when both sides were first seen as they are now
    state: Hashable = None  # what they are

    def of_row(
        self, kept: ComparedRow | None, truth: ComparedRow | None, terms: Terms, *, from_start: bool = True
    ) -> Settled | None:
        """Judge a stored row by the source's, None for a missing one. ``from_start``: see `KeptRows`."""
        digests = kept and kept.digest, truth and truth.digest
        if are_alike(*digests):
            return _CONSISTENT
        if kept is not None and kept.incomplete and truth is not None:
            return Settled(Judgement.INCOMPLETE)
        kind = "missing" if kept is None else "extra" if truth is None else "different"
        settled = self.of_difference(kind, (*digests, kept.event_id if kept else ""), terms)
        if settled == (Judgement.WRONG, "missing") and not from_start:
            return Settled(Judgement.UNKNOWN, _OLDER)
        return settled

    def of_value(self, served: ServedValue | None, found: Comparison | None, terms: Terms) -> Settled | None:
        """Judge a cached value by what its rows make; None if the cache serves none."""
        if served is None or found is None or found.is_same:
            return _CONSISTENT
        value = _digest(served.value)
        if isinstance(self.state, tuple) and self.state[0] != value:  # the value that differed is no longer served
            return _CONSISTENT
        if found.unknown:
            return Settled(Judgement.UNKNOWN, found.unknown)
        return self.of_difference("stale", (value, _digest(found.truth)), terms)

    def of_difference(self, kind: str, state: Hashable, terms: Terms) -> Settled | None:
        """Judge a difference of this ``kind`` between two sides in ``state``."""
        if self.state != state:
            self.state, self.since = state, terms.now
        elif terms.now - self.since >= terms.within and terms.through >= self.since:
            return Settled(Judgement.WRONG, kind)
        if terms.now - self.first < terms.patience:
            return None
        return Settled(Judgement.UNKNOWN, CHANGING if terms.now - self.since < terms.within else BEHIND)


def _digest(value: bytes | None) -> str:
    """A short text that is equal for equal values: values may be large."""
    return "" if value is None else blake2b(value, digest_size=16).hexdigest()
