"""Requests for snapshots, which ``relay snapshot`` writes and the workers serve.

A request is of a source and of no stream, so it is served by the one that is read when its turn comes.

Each has an id in its key, so that the removal of one never removes a later one. The command writes them without the
fence: they decide when a snapshot begins and stops, never what is published twice (I3). The owner of the control record
begins their snapshots (``relay.snapshots.lifecycle``). The owner of a request's own partition removes it, once the
control record says that it is fulfilled.
"""

from __future__ import annotations

from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from relay.records import SnapshotRequest


def write(settings: KafkaSettings, request: SnapshotRequest) -> None:
    """Write ``request``, and wait until it is stored. Raises ``Unavailable``."""
    write_unfenced(settings, request.key, request.to_json(), "relay status")


def withdraw(settings: KafkaSettings, request: SnapshotRequest) -> None:
    """Remove ``request``. Raises ``Unavailable``."""
    write_unfenced(settings, request.key, None, "relay status")
