"""Parts of running a consumer with any engine: signals, the log on stderr, and pauses between attempts."""

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
from relay.config.value_types import iso_time
from relay.observe.logs import JsonFormatter

RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between attempts at one batch
_POLL = 0.02  # seconds


def log_event(event: str, consumer: str, **fields: Any) -> None:
    """Write one line of JSON to stderr, with the ``time`` in the form of the relay's log; on a terminal, a text."""
    now = iso_time(time.time(), "milliseconds")
    shown = {name: redacted(value) if isinstance(value, str) else value for name, value in fields.items()}
    line = json.dumps({"time": now, "event": event, "consumer": consumer, **shown})
    if sys.stderr.isatty() and not any(isinstance(each.formatter, JsonFormatter) for each in logging.root.handlers):
        texts = {name: " ".join(map(str, each)) if isinstance(each, list) else each for name, each in shown.items()}
        hidden = {name for name, each in texts.items() if not each or isinstance(each, dict)} | {"applied_at"}
        said = (f"{name.replace('_', ' ')} {each}" for name, each in texts.items() if name not in hidden)
        line = f"{now} {consumer}: {event}  {', '.join(said)}"
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and SIGINT. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, lambda came, _: stop(came)) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, previous in before.items():
            signal.signal(signum, previous)


def pause(seconds: float, stopping: Callable[[], object]) -> bool:
    """Wait, or until ``stopping``. Return whether that is so."""
    deadline = time.monotonic() + seconds
    while not stopping() and time.monotonic() < deadline:
        time.sleep(_POLL)
    return bool(stopping())


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Turn off Python's cyclic garbage collector, which would take half of the time: changes have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
