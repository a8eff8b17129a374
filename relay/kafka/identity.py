"""The ``transactional.id`` of a worker.

A restarted worker with its predecessor's id aborts the transaction that one left open, at once instead of after the
transaction timeout. This only saves time: correctness rests on the fence of the group.
"""

import fcntl
import re
import secrets
import socket
from typing import IO

from relay.errors import Unavailable
from relay.process.folders import state_folder

_SLOTS = 256


class Identity:
    """A numbered slot of this host, held by a file lock that the kernel releases when the process dies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock: IO[str] | None = None
        instance = re.sub(r"[^a-zA-Z0-9._-]", "_", socket.gethostname()) or "host"
        slot = self._claim()
        self.transactional_id = (
            f"{name}-{instance}-{slot}" if slot is not None else f"{name}-{instance}.{secrets.token_hex(4)}-0"
        )

    def renew(self) -> None:
        """Switch to a random id, because another worker has fenced this one (with the same host name, for example)."""
        self.transactional_id = f"{self.name}-{secrets.token_hex(8)}-0"

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claim(self) -> int | None:
        try:
            folder = state_folder() / self.name
            folder.mkdir(parents=True, exist_ok=True)
            for slot in range(_SLOTS):
                lock = (folder / f"slot-{slot}.lock").open("w")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    lock.close()
                    continue
                self._lock = lock
                return slot
        except (OSError, Unavailable):
            return None  # such as a read-only home folder: a random id works too, but recovers more slowly from a crash
        return None
