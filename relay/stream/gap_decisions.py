"""Gaps that wait for a person: pending under ``on_gap: fail``, accepted by ``relay gaps accept``, then published.

Their records are written without the fence, because any worker may find a gap, and a person decides in yet another
process. A decision that is missed, or overwritten by a late pending record, only makes the relay ask again: that a gap
is published once depends on the checkpoint in its transaction alone (I3). The owner of a record's partition removes the
record once that checkpoint is committed.
"""

import logging
import time
from collections.abc import Callable, Set

from relay.errors import Unavailable
from relay.kafka.checkpoints import CheckpointView, partition_of
from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from relay.records import CommittedRecords, CommittedStream, Decision, Gap, PendingGap, StreamId

log = logging.getLogger(__name__)


def all_pending_gaps(view: CommittedRecords, source: str) -> list[PendingGap]:
    """Return the pending and accepted gaps of ``source`` in all its streams, the oldest first."""
    found = (gap for each in view.of_source(source) for gap in each.pending_gaps.values())
    return sorted(found, key=lambda pending: pending.gap.found_at)


def resolved(committed: CommittedStream, published: Set[str | None], repaired: Set[str]) -> list[bytes]:
    """Return the keys of records that are done: their gap is ``published``, and ``repaired`` if that was decided."""

    def is_resolved(pending: PendingGap) -> bool:
        gap = committed.reported_as(pending)
        return gap is None or (gap in published and (pending.decision is not Decision.RESNAPSHOT or gap in repaired))

    return [pending.key for pending in committed.pending_gaps.values() if is_resolved(pending)]


def find(view: CommittedRecords, gap: Gap) -> PendingGap | None:
    return view.of(StreamId(gap.source, gap.label)).pending_gaps.get(gap.id)


def decision_about(settings: KafkaSettings, view: CheckpointView, gap: Gap, timeout: float) -> Decision | None:
    """Return the decision about ``gap``; without a record, write it as pending. Raises ``StopRequested``."""
    known = find(view, gap)
    if known is None:
        pending = PendingGap(gap, updated_at=time.time())
        try:
            # A decision made a moment ago must not be overwritten.
            view.require_end({partition_of(pending.key)}, timeout)
            known = find(view, gap)
            if known is None:
                write(settings, pending, view.check_stop)
        except Unavailable as error:  # I12: one partition may be without a leader
            log.warning("source %s: gap %s cannot be listed for a decision yet: %s", gap.source, gap.id, error)
    return known.decision if known is not None else None


def write(settings: KafkaSettings, gap: PendingGap, check: Callable[[], object] = lambda: None) -> None:
    """Write the record of ``gap``, and wait until it is stored. Raises ``Unavailable``, and what ``check`` raises."""
    write_unfenced(settings, gap.key, gap.to_json(), "relay gaps list", check)
