"""A lock that one process on this machine can hold, and that the kernel takes back however the process dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from relay.errors import Unavailable

# A consumer that was killed leaves a JVM that ends within moments, and holds the lock until then.
_PATIENCE = 15.0
_PAUSE = 0.1


class Lock:
    """A lock file, held from ``acquire`` on. ``descriptor`` may be given to child processes, which then hold it too."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self.descriptor = -1

    def acquire(self, patience: float = _PATIENCE) -> None:
        """Wait up to ``patience`` seconds for the lock. Raises ``Unavailable`` saying who holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_PAUSE)
                    continue
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise Unavailable(
                    f"{self.what} is in use by another consumer (process {holder or 'unknown'}): {self.path} is locked"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            self.descriptor = descriptor
            return

    def release(self) -> None:
        """Give the lock back. Children that were given the descriptor still hold it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
