"""A worker's name towards the broker.

A restarted worker that has its predecessor's ``transactional.id`` aborts what that one left open, at once
instead of after the transaction timeout. It is a matter of speed only: correctness rests on the group fence.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
from pathlib import Path
from typing import IO

_SLOTS = 256


def state_directory() -> Path:
    """Where this machine's relays keep what is theirs alone (``RELAY_STATE`` moves it)."""
    return Path(os.environ.get("RELAY_STATE") or Path.home() / ".local" / "state" / "relay")


class Identity:
    """A slot of this host, held by a file lock that the kernel releases when the process dies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock: IO[str] | None = None
        instance = re.sub(r"[^a-zA-Z0-9._-]", "_", socket.gethostname()) or "host"
        slot = self._claim()
        self.transactional_id = (
            f"{name}-{instance}-{slot}" if slot is not None else f"{name}-{instance}.{secrets.token_hex(4)}-0"
        )

    @property
    def transactional_ids(self) -> tuple[str, str]:
        """The names of the producers that take turns."""
        return self.transactional_id, f"{self.transactional_id}.2"

    def renew(self) -> None:
        """Take a name that nobody else has: another worker fenced this one (the same host name, say)."""
        self.transactional_id = f"{self.name}-{secrets.token_hex(8)}-0"

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claim(self) -> int | None:
        folder = state_directory() / self.name
        try:
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
        except OSError:
            return None  # a read-only home: a random name serves, only more slowly after a crash
        return None
