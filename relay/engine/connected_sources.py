"""Which sources of a config are connected, and why the others are not (I12).

A worker ends when another source is back or one of its own is refused, and the next one begins with all readable
sources, so that a source that comes back is validated as at the first start. It waits for each source that the last
worker read, however long connecting takes: each worker reads more sources than the one before, unless one fails by
itself. So n sources make at most n workers.
"""

import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from threading import BoundedSemaphore

from relay.config import SourceConfig
from relay.engine.config_reload import ReloadedConfig
from relay.engine.kinds import open_source
from relay.errors import ConfigError, NoAnswer, RelayError
from relay.process.slow_call import SlowCall
from relay.reading.set_aside import TRY_AGAIN, Refusal
from relay.records import StreamId
from relay.source import Source

log = logging.getLogger(__name__)

_PATIENCE = 15.0  # seconds that a worker waits for sources that no worker has read yet, such as a new table
_LONGEST_WAIT = 30.0  # seconds between two attempts, and the most that a source which is back waits for others
_AT_ONCE = BoundedSemaphore(16)


class ConnectedSources:
    """The connections to sources, which outlive a worker. ``refusals``: by source, why it is not read."""

    def __init__(self, reloaded: ReloadedConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.refusals: Mapping[str, Refusal] = {}
        self._reloaded = reloaded
        self._tried = reloaded.config
        self._clock = clock
        # By source, an attempt that is under way, or that has ended but was not looked at yet.
        self._calls: dict[str, SlowCall[tuple[StreamId, Source]]] = {}
        self._entries: dict[str, SourceConfig] = {}  # by source, the entry of its last attempt
        self._failures = Counter[str]()
        # The sources that the last worker read, and the time from which it ends even if attempts are under way.
        self._read: Set[str] = frozenset()
        self._waits_until = 0.0
        self._said: dict[str, str] = {}  # by source, what was logged about it

    @property
    def is_connecting(self) -> bool:
        return bool(self._calls)

    def begin(self) -> None:
        """Begin to connect to all sources. Raises errors in the config that show without a connection."""
        self._give_up_outdated()
        known = {*self.refusals, *self._calls}
        opened = [(each, open_source(each)) for each in self._reloaded.config.sources if each.name not in known]
        for entry, source in opened:
            self._begin(entry, source)

    def connect(self) -> dict[StreamId, Source]:
        """Return the sources that can be read. Call `begin` first. If none can, raises the error of the first."""
        wanted = {name: call for name, call in self._calls.items() if name not in self.refusals}
        wait(wanted.values(), timeout=_PATIENCE)
        wait([call for name, call in wanted.items() if name in self._read])  # I10: slow sources would evict each other
        while not (connected := self._take()):
            if not self._calls:
                raise min(self.refusals.values(), key=lambda each: each.since).error
            wait(self._calls.values(), return_when=FIRST_COMPLETED)
        for name in self._calls.keys() - self.refusals.keys():
            self.refuse(name, NoAnswer(f"source {name}: it has not answered for {_PATIENCE:.0f} s"))
        self._say()
        self._read = {stream.source for stream in connected}
        self._waits_until = self._clock() + _LONGEST_WAIT
        return connected

    def is_one_back(self) -> bool:
        """Retry connections that are due. Return whether `connect` would now return another source."""
        if self._tried is not self._reloaded.config:
            self._tried = self._reloaded.config
            self.refusals = {name: Refusal(name, each.error, each.since, 0.0) for name, each in self.refusals.items()}
            self._give_up_outdated()
        self._look()
        self._say()
        for entry in self._tried.sources if self.refusals else ():
            refusal = self.refusals.get(entry.name)
            if refusal is not None and refusal.again_at <= self._clock() and entry.name not in self._calls:
                self._begin(entry)
        if self._clock() < self._waits_until and not all(call.done() for call in self._calls.values()):
            return False  # one new worker begins for all sources that are back
        return any(map(_is_connected, self._calls.values()))

    def refuse(self, name: str, error: RelayError, *, wait: float | None = None) -> None:
        """Stop reading ``name`` until it can be connected again. ``wait``: seconds until the next attempt."""
        now, before = self._clock(), self.refusals.get(name)
        self._failures[name] += 1
        if wait is None:
            wait = random.uniform(0.5, 1.0) * min(_LONGEST_WAIT, 2.0 ** self._failures[name])
        if isinstance(error, ConfigError):
            wait = math.inf
        error.source = None  # if the same error is raised again, it ends the relay
        since = now if before is None else before.since
        self.refusals = {**self.refusals, name: Refusal(name, error.kept(), since, now + wait)}

    def refuse_plan(self, name: str, error: RelayError) -> None:
        """Stop reading a connected source whose plan does not match. Parameters: see `refuse`."""
        # I10: an attempt only connects. It would end a worker each minute, and the next would refuse the source again.
        self.refuse(name, error, wait=TRY_AGAIN if isinstance(error, NoAnswer) else math.inf)

    def _give_up_outdated(self) -> None:
        """Give up attempts with an entry that a reload has replaced."""
        entries = {each.name: each for each in self._reloaded.config.sources}
        for name in [name for name in self._calls if self._entries[name] != entries[name]]:  # I1, I8
            self._calls.pop(name).add_done_callback(_close)

    def _begin(self, entry: SourceConfig, source: Source | None = None) -> None:
        self._entries[entry.name] = entry
        self._calls[entry.name] = SlowCall(f"connect-{entry.name}", partial(_connect, entry, source))

    def _look(self) -> None:
        for name, call in list(self._calls.items()):
            if call.done() and (error := call.exception()) is not None:
                del self._calls[name]
                if not isinstance(error, RelayError):
                    raise error
                self.refuse(name, error)

    def _say(self) -> None:
        for name, each in self.refusals.items():
            if self._said.get(name) != (why := str(each.error)):
                self._said[name] = why
                how = "it is retried" if each.again_at < math.inf else "after a repair, send SIGHUP or restart"
                log.error("%s; the relay continues with the other sources; %s", why, how)

    def _take(self) -> dict[StreamId, Source]:
        self._look()
        ready = [name for name, call in self._calls.items() if _is_connected(call)]
        connected = {name: self._calls.pop(name).result() for name in ready}
        for name in connected:
            if self._said.pop(name, None):
                log.warning("source %s: it can be connected to again", name)
            del self._failures[name]
        self.refusals = {name: each for name, each in self.refusals.items() if name not in connected}
        return dict(connected.values())


def _close(call: Future[tuple[StreamId, Source]]) -> None:
    if call.exception() is None:
        call.result()[1].close()


def _is_connected(call: SlowCall[tuple[StreamId, Source]]) -> bool:
    return call.done() and call.exception() is None


def _connect(entry: SourceConfig, source: Source | None) -> tuple[StreamId, Source]:
    source = source or open_source(entry)
    try:
        with _AT_ONCE:
            return source.connect(), source
    except RelayError:
        source.close()
        raise
