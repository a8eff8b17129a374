"""What Java prints, without the line that Spark's own start options make it print, and that its user cannot act on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOISE = b"WARNING: Using incubator modules: "


@contextmanager
def java_stderr() -> Iterator[int]:
    """Yield the file descriptor that a new process gets as its stderr: what it writes there goes to ours, line by line.

    The process may outlive the block, and goes on writing to ours until it ends or we do.
    """
    reading, writing = os.pipe()
    ours = os.dup(_stderr())
    threading.Thread(target=_copy, args=(reading, ours), name="java-stderr", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _copy(reading: int, ours: int) -> None:
    with open(reading, "rb") as lines, open(ours, "wb", buffering=0) as to:
        for line in iter(lines.readline, b""):
            if not line.startswith(_NOISE):
                to.write(line)


def _stderr() -> int:
    """Return the file descriptor of stderr, also where Python's own is something else, as in a notebook."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2
