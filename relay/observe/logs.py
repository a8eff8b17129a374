"""Formatters of log lines, as text and as JSON. Both hide the user and password of URLs."""

import logging

import orjson

from relay.config.hidden import redacted
from relay.config.value_types import iso_time
from relay.errors import with_file


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return with_file(str(redacted(super().format(record))))


class JsonFormatter(logging.Formatter):
    """Keys: ``time`` (ISO, UTC), ``level``, ``logger``, ``message``, and ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": iso_time(record.created, "milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": with_file(str(redacted(record.getMessage()))),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["exception"] = redacted(self.formatException(record.exc_info))
        # JSON cannot hold half a surrogate pair, which a path may contain.
        return orjson.dumps({key: value.encode(errors="replace").decode() for key, value in entry.items()}).decode()
