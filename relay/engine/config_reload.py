"""Reloads the config on SIGHUP, and passes each source its entry."""

import logging
from collections.abc import Callable, Iterable

from relay.config import Config
from relay.errors import ConfigError, RelayError
from relay.process.slow_call import SlowCall
from relay.stream.source_state import SourceState

log = logging.getLogger(__name__)


class ReloadedConfig:
    """The ``config`` in force, and its reloads with ``read``. It outlives a worker, and so does a request to reload."""

    def __init__(self, config: Config, read: Callable[[], Config]) -> None:
        self.config = config
        self._read = read
        self._requested = False
        self._reading: SlowCall[Config] | None = None

    def request(self) -> None:
        """Request a reload, which the next `serve` begins. Safe to call from a signal handler."""
        self._requested = True

    def close(self) -> None:
        if self._requested:
            log.warning("SIGHUP: the relay stops before it has read the config again; the next start reads it")

    def serve(self, sources: Iterable[SourceState]) -> None:
        """Begin to read the config if a reload was requested, and apply the config once it is read."""
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            self._apply(reading.result, sources)
        if self._reading is None and self._requested:
            self._requested = False
            self._reading = SlowCall("config", self._read)

    def _apply(self, read: Callable[[], Config], sources: Iterable[SourceState]) -> None:
        """Pass each source its entry. A config that cannot be read changes nothing."""
        try:
            entries = {entry.name: entry for entry in read().sources}
        except RelayError as error:
            why = "is invalid" if isinstance(error, ConfigError) else "cannot be checked now"
            log.error("the config %s; keeping the current one: %s", why, error)
            return
        applied = {entry.name: entry for entry in self.config.sources}
        for source in sources:
            name = source.source.name
            if (entry := entries.pop(name, None)) is None:
                log.warning("source %s is no longer in the config; restart the relay to stop reading it", name)
                continue
            try:
                source.reload(entry)
            except RelayError as error:
                log.error("source %s keeps its current settings: %s", name, error)
            else:
                applied[name] = entry
        for name in entries.keys() - applied.keys():
            log.warning("source %s is new in the config; restart the relay to read it", name)
        # The remaining entries belong to sources that are not connected.
        in_force = [entries.get(name, entry) for name, entry in applied.items()]
        self.config = self.config.model_copy(update={"sources": in_force})
