"""Takes the log lines of a Kafka client, and notices when one of its connections fails.

librdkafka reports a failed connection only in its log: it sends again what was under way, and the call reports success.
It logs the failure before it sends anything again. If a request times out, it ends the connection itself, and logs only
the timeout.
"""

import logging
import re
from typing import Any

_STATE = re.compile(r"\(after \d+ms in state (\w+)")

_UNCONNECTED = {"INIT", "DOWN", "TRY_CONNECT", "CONNECT"}
"""The states of a connection that has carried nothing yet."""


class ConnectionLog:
    """Passes lines on to ``logger``. Called by the thread that polls the client."""

    def __init__(self, logger: logging.Logger) -> None:
        self.has_failed = False
        self._logger = logger

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that make a client log each failed connection here."""
        return {"logger": self, "log.connection.close": True, "log_level": 6}

    def log(self, level: int, text: str, *parts: object) -> None:
        line = text % parts
        if line.startswith(("FAIL", "REQTMOUT")):
            state = _STATE.search(line)
            # I3: a line in another form may be about a request that was sent.
            self.has_failed |= state is None or state[1] not in _UNCONNECTED
        self._logger.log(level, text, *parts)
