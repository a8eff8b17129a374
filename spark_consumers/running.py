"""What running a consumer means on any engine: signals, the log on stderr, the pauses between attempts."""

import gc
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from relay.config import redacted
from relay.config.fields import iso_time
from relay.observe.logs import JsonFormatter

RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts at one batch."""


def log_event(event: str, consumer: str, **fields: Any) -> None:
    """Write one line of JSON to stderr, with the ``time`` in the form of the relay's log; on a terminal, a text."""
    now = iso_time(time.time(), "milliseconds")
    shown = {name: redacted(value) if isinstance(value, str) else value for name, value in fields.items()}
    line = json.dumps({"time": now, "event": event, "consumer": consumer, **shown})
    if sys.stderr.isatty() and not any(isinstance(each.formatter, JsonFormatter) for each in logging.root.handlers):
        said = (f"{name} {value}" for name, value in shown.items() if value and not isinstance(value, dict))
        line = f"{now} {consumer}: {event}  {', '.join(said)}"
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT. It does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, lambda came, _: stop(came)) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, previous in before.items():
            signal.signal(signum, previous)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Turn Python's cyclic garbage collector off: changes have no cycles, and it takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
