"""Brokers whose data is in memory.

A broker syncs several files for each partition that it creates, and most tests let a relay create a hundred.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED = Path("/dev/shm")
ROOM = 4 * 10**9  # bytes that have to be free; in a container there may be 64 MB


@contextmanager
def folder_in_memory(place: Path = SHARED, room: int = ROOM) -> Iterator[Path | None]:
    """Yield a folder for the time of the context, None if ``place`` is not there, or has too little room."""
    if not os.access(place, os.W_OK) or shutil.disk_usage(place).free < room:
        yield None
        return
    with tempfile.TemporaryDirectory(dir=place, prefix="relay-tests-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
