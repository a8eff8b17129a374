"""Java's output without the line that Spark's own start options cause, and that its user cannot act on."""

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from relay.config import redacted
from relay.observe.logs import JsonFormatter

_NOISE = b"WARNING: Using incubator modules: "
_LOGGED = re.compile(r"spark: (?P<level>[A-Z]+) (?P<logger>\S+): (?P<message>.*)")
"""A line in the format of log4j2.properties."""


@contextmanager
def java_stderr() -> Iterator[int]:
    """Yield a file descriptor for a new process' stderr: its output goes to our stderr, line by line.

    If our log is in JSON, so is each line. The process may outlive the block, and writes to ours until either ends.
    """
    reading, writing = os.pipe()
    ours = os.dup(_stderr())
    is_json = any(isinstance(each.formatter, JsonFormatter) for each in logging.getLogger().handlers)
    threading.Thread(target=_copy, args=(reading, ours, is_json), name="java-stderr", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _copy(reading: int, ours: int, is_json: bool) -> None:
    with open(reading, "rb") as lines, open(ours, "wb", buffering=0) as to:
        for line in iter(lines.readline, b""):
            if not line.startswith(_NOISE):
                to.write(_in_json(line) if is_json else os.fsencode(redacted(os.fsdecode(line))))


def _in_json(line: bytes) -> bytes:
    text = line.decode(errors="replace").rstrip()
    if not text:
        return b""
    entry = {"name": "java", "levelname": "WARNING", "msg": text}
    if found := _LOGGED.fullmatch(text):
        # Python's names of log4j's levels.
        level = {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(found["level"], found["level"])
        entry = {"name": f"spark.{found['logger']}", "levelname": level, "msg": found["message"]}
    return JsonFormatter().format(logging.makeLogRecord(entry)).encode() + b"\n"


def _stderr() -> int:
    """Return the file descriptor of stderr, even if Python's own is something else, as in a notebook."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2
