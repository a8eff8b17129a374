"""Who owns a partition of ``<name>.checkpoints``."""

from collections.abc import Mapping
from dataclasses import dataclass

from relay.records.codec import StoredRecord


@dataclass(frozen=True, slots=True)
class PartitionOwner(StoredRecord):
    """The worker that owns a partition, as it said when it took it over.

    ``process``: machine and process id. ``sources``: by name, a hash of what its config says is published of each.
    """

    process: str
    sources: Mapping[str, str]
