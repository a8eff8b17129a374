"""Requests for snapshots, which ``relay snapshot`` writes and the workers serve.

Their records are beside the checkpoints, under ``/requests`` of the source: a request is of no stream, so it is served
by the one that is read when its turn comes. They have the shape of a checkpoint:
``position`` is the request, ``start`` says whether it is stopped. They change with
``schemas/golden/snapshot_requests.json``.

Each has an id in its key, so that the removal of one never removes a later one. The command writes them without the
fence: they decide when a snapshot begins and stops, never what is published twice (I3). The owner of the control record
begins their snapshots (``relay.snapshots.lifecycle``). The owner of a request's own partition removes it, once the
control record says that it is fulfilled.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from relay.lineage import Checkpoint, CommittedRecords, ShardState, StreamId

_LABEL = "/requests"


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A snapshot that a person wants. ``tables``: sorted; empty: all. Times are seconds since the epoch.

    ``stopped``: it is not to go on, or not to begin, until it is resumed.
    """

    source: str
    id: str
    tables: tuple[str, ...]
    requested_at: float
    stopped: bool = False
    updated_at: float = 0.0

    @classmethod
    def new(cls, source: str, tables: Iterable[str], now: float) -> SnapshotRequest:
        return cls(source, f"{int(now)}-{secrets.token_hex(4)}", tuple(sorted(tables)), now, updated_at=now)

    @property
    def key(self) -> bytes:
        return StreamId(self.source, _LABEL).checkpoint_key(self.id)

    @property
    def subject(self) -> str:
        """What it reads, for messages."""
        return f"table {', '.join(self.tables)}" if self.tables else "all tables"

    def changed(self, *, stopped: bool, now: float) -> SnapshotRequest:
        return replace(self, stopped=stopped, updated_at=now)

    def to_json(self) -> bytes:
        return Checkpoint(
            state=ShardState.PLANNED,
            position={"tables": list(self.tables), "requested_at": self.requested_at},
            start={"stopped": True} if self.stopped else None,
            updated_at=self.updated_at,
        ).to_json()


def requests_of(view: CommittedRecords, source: str) -> list[SnapshotRequest]:
    """Return the requests of ``source`` that are not fulfilled, the oldest first."""
    found = [
        SnapshotRequest(
            source,
            name,
            tuple(record.position["tables"]),
            record.position["requested_at"],
            bool((record.start or {}).get("stopped")),
            record.updated_at,
        )
        for name, record in view.checkpoints.get(StreamId(source, _LABEL), {}).items()
        if record.position is not None
    ]
    return sorted(found, key=lambda request: (request.requested_at, request.id))


def write(settings: KafkaSettings, request: SnapshotRequest) -> None:
    """Write ``request``, and wait until it is stored. Raises ``Unavailable``."""
    write_unfenced(settings, request.key, request.to_json(), "relay status")


def withdraw(settings: KafkaSettings, request: SnapshotRequest) -> None:
    """Remove ``request``. Raises ``Unavailable``."""
    write_unfenced(settings, request.key, None, "relay status")
