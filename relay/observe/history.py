"""Recent history, in rings that outlive the process in a file: samples of 15 minutes, and the last events."""

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Signal
from threading import Thread
from typing import NamedTuple

import orjson

from relay.config.hidden import redacted
from relay.errors import with_file

log = logging.getLogger(__name__)

INTERVAL = 5.0  # seconds from one sample to the next
KEPT = 180  # the number of samples kept; one takes about 200 bytes in memory, and 45 in ``/status.json``


class Totals(NamedTuple):
    """Counts since the start of the worker. ``latency``: the sum of the latencies of ``pages``, in seconds."""

    changes: float
    latency: float
    pages: float


class Sample(NamedTuple):
    at: int  # seconds since the epoch
    rate: float  # changes published a second since the last sample
    lag: float | None  # seconds of the open shard in this worker that is furthest behind
    latency: float | None  # mean seconds from commit in the database to publishing


EVENTS = 20  # the number of events kept

_LEVELS = ("warning", "error", "critical")
_OF_KAFKA = "relay.kafka.librdkafka"  # Kafka's client logs many lines, and the relay reports their consequences
_LONGEST_EVENT = 400  # characters
_KEPT_EVERY = 10.0  # seconds
_PATIENCE = 2.0  # seconds to wait for the disk at the end


class Event(NamedTuple):
    at: float  # seconds since the epoch
    kind: str  # the event of the log line, or its level if it has none
    what: str


class History:
    """The last 180 samples of the whole worker. One thread adds samples; any thread may copy them."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._last: tuple[float, Totals] | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time for a sample. ``now``: monotonic seconds."""
        return self._last is None or now - self._last[0] >= INTERVAL

    def add(self, now: float, wall: float, totals: Totals, lag: float | None) -> None:
        """Add a sample; the first call only stores the totals. ``wall``: seconds since the epoch."""
        if self._last is not None:
            then, before = self._last
            changes, latency, pages = (new - old for new, old in zip(totals, before, strict=True))
            mean = round(latency / pages, 3) if pages else None
            rate = round(changes / max(now - then, 0.001), 2)
            self._samples.append(Sample(round(wall), rate, None if lag is None else round(lag, 1), mean))
        self._last = now, totals

    def samples(self) -> list[Sample]:
        """Return the samples, the oldest first."""
        return list(self._samples.copy())

    def restore(self, samples: Iterable[Sample]) -> None:
        """Put the ``samples`` of an earlier process before the present ones."""
        self._samples.extendleft(reversed([*samples][-KEPT:]))


class Recent(logging.Handler):
    """The recent history of a process: samples, and the log lines that are warnings or have an ``event`` as extra."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self._events: deque[Event] = deque(maxlen=EVENTS)  # the handler's lock guards additions

    def emit(self, record: logging.LogRecord) -> None:
        is_warning = record.levelno >= logging.WARNING and record.name != _OF_KAFKA
        if not (is_warning or hasattr(record, "event")):
            return
        try:
            what = with_file(str(redacted(record.getMessage())))[:_LONGEST_EVENT]
        except Exception:  # a line that cannot be formatted must not disturb the code that logs it
            self.handleError(record)
            return
        # Half a surrogate pair, which a path may contain, is not valid JSON.
        what = what.encode(errors="replace").decode()
        self.add([Event(round(record.created, 3), getattr(record, "event", record.levelname.lower()), what)])

    def add(self, events: Iterable[Event]) -> None:
        """Add events, the oldest first. A repeated warning is kept once, with its last time."""
        for event in events:
            for same in [each for each in self._events if each[1:] == event[1:] and each.kind in _LEVELS]:
                self._events.remove(same)
            self._events.append(event)

    def events(self) -> list[Event]:
        """Return the last events, the oldest first."""
        return list(self._events.copy())

    @contextmanager
    def kept_in(self, file: Path | None) -> Iterator[None]:
        """Record what the relay logs, and keep it in ``file`` after what an earlier process has left there."""
        relays, over = logging.getLogger("relay"), Signal()
        thread = Thread(target=self._keep, args=(file, over), name="history", daemon=True)
        if file is not None:
            self._restore(file)
            thread.start()
        relays.addHandler(self)
        try:
            yield
        finally:
            relays.removeHandler(self)
            over.set()
            if file is not None:
                thread.join(_PATIENCE)

    def _restore(self, file: Path) -> None:
        try:
            found = orjson.loads(file.read_bytes())
            samples = [Sample(*each) for each in found["history"]]
            self.add([Event(float(at), str(kind), str(what)) for at, kind, what in found["events"]])
            self.history.restore([each for each in samples if each.at > time.time() - INTERVAL * KEPT])
        except FileNotFoundError:
            log.debug("%s: no earlier process has left a history there", file)
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.info("%s: cannot use the history that the last process left there: %s", file, error)

    def _keep(self, file: Path, over: Signal) -> None:
        """Write it every few seconds, in a thread of its own: a disk may hang."""
        is_over, draft, failed = False, file.with_suffix(".draft"), False  # the port is this process's alone
        while not is_over:
            is_over = over.wait(_KEPT_EVERY)
            known = {"history": self.history.samples(), "events": self.events()}
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                draft.write_bytes(orjson.dumps(known, default=list))
                os.replace(draft, file)
                failed = False
            except OSError as error:  # such as a disk that is full for now
                if not failed:
                    log.info("the history on the status page would not outlive this process: %s", error)
                failed = True
