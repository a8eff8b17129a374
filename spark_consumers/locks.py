"""A lock file that one process on this machine holds, and that the kernel releases however the process dies."""

import fcntl
import os
import time
from pathlib import Path
from typing import Self

from relay.errors import Unavailable
from relay.process.folders import naming
from spark_consumers.locations import local_folder

# A killed consumer leaves a JVM that ends within moments, and holds the lock until then.
_TIMEOUT = 15.0  # seconds
_POLL = 0.1  # seconds


class Lock:
    """A lock against other processes, for a ``with``. ``what``: names the locked thing in errors.

    A child process that is given ``descriptor`` holds the lock too, and after its release alone.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self.descriptor = -1

    def __enter__(self) -> Self:
        """Wait for the lock. Raises ``Unavailable``, which names the holder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_POLL)
                    continue
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise Unavailable(
                    f"{self.what} is in use by another consumer, process {holder or 'unknown'}: stop that one first "
                    f"(lock file {self.path})"
                ) from None
            with naming(self.path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            self.descriptor = descriptor
            return self

    def __exit__(self, *error: object) -> None:
        os.close(self.descriptor)
        self.descriptor = -1


def lock_of(location: str | None) -> Lock | None:
    """Return the lock of a local ``location``, where Delta does not exclude a second writer; None for other stores."""
    folder = None if location is None else local_folder(location)
    return None if folder is None else Lock(folder.with_name(f"{folder.name}.lock"), str(folder))
