"""Brokers whose data is in memory.

A broker syncs several files for each partition that it creates, and most tests let a relay create a hundred.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SHARED = Path("/dev/shm")
ROOM = 10**9  # bytes that have to be free for each process of the tests; in a container there may be 64 MB

_PREFIX = "relay-brokers-"


@contextmanager
def folder_in_memory(place: Path = SHARED, room: int = ROOM) -> Iterator[Path | None]:
    """Yield a folder for the time of the context, None if ``place`` is not there, or has too little room.

    Removes the folders of processes that were killed: a folder is locked as long as its process lives.
    """
    if not os.access(place, os.W_OK):
        yield None
        return
    with ExitStack() as kept:
        with _locked(place):  # so that nobody finds a folder that is not locked yet
            _remove_leftovers(place)
            folder = None
            if shutil.disk_usage(place).free >= room * int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")):
                made = tempfile.TemporaryDirectory(dir=place, prefix=_PREFIX, ignore_cleanup_errors=True)
                folder = Path(kept.enter_context(made))
                kept.enter_context(_locked(folder))
        yield folder


def _remove_leftovers(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        try:
            with _locked(folder, fcntl.LOCK_NB):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use, of another user, or just removed


@contextmanager
def _locked(folder: Path, more: int = 0) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | more)
        yield
    finally:
        os.close(handle)
