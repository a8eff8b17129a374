"""How a line of the log is written, as text or as JSON: either way without what a URL says before ``@``."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import orjson

from relay.config.fields import redacted


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return str(redacted(super().format(record)))


class JsonFormatter(logging.Formatter):
    """Keys: ``time`` (ISO, UTC), ``level``, ``logger``, ``message``, and ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["exception"] = redacted(self.formatException(record.exc_info))
        # Text with half a surrogate, which a path may hold, is not JSON.
        return orjson.dumps({key: value.encode(errors="replace").decode() for key, value in entry.items()}).decode()
