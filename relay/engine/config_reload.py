"""SIGHUP: the config is read again, and each source gets its entry of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from relay.config import Config
from relay.engine.source_state import SourceState
from relay.errors import RelayError
from relay.process.slow_call import SlowCall

log = logging.getLogger(__name__)


class ConfigReload:
    """Used by the worker's thread; ``request`` also by a signal handler in it."""

    def __init__(self) -> None:
        self._requested: Callable[[], Config] | None = None
        self._reading: SlowCall[Config] | None = None

    def request(self, read: Callable[[], Config]) -> None:
        """Have the config that ``read`` returns applied."""
        self._requested = read

    def serve(self, sources: Iterable[SourceState]) -> None:
        """Begin to read the config if that was requested, and apply it once it is read."""
        if self._reading is not None and self._reading.done:
            reading, self._reading = self._reading, None
            _apply(reading.result, sources)
        if self._reading is None and self._requested is not None:
            read, self._requested = self._requested, None
            self._reading = SlowCall("config", read)


def _apply(read: Callable[[], Config], sources: Iterable[SourceState]) -> None:
    """Give each source its entry. An invalid config changes nothing."""
    try:
        entries = {entry.name: entry for entry in read().sources}
    except RelayError as error:
        log.error("the config is invalid; keeping the current one: %s", error)
        return
    for source in sources:
        name = source.source.name
        if (entry := entries.pop(name, None)) is None:
            log.warning("source %s is no longer in the config; restart the relay to stop reading it", name)
            continue
        try:
            source.reload(entry)
        except RelayError as error:
            log.error("source %s keeps its current settings: %s", name, error)
    for name in entries:
        log.warning("source %s is new in the config; restart the relay to read it", name)
