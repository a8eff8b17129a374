"""Rows that a foreign key changes and that no log tells of: InnoDB itself does it, below where changes are logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from relay.mysql.connection import ServerConnection

log = logging.getLogger(__name__)

# As SHOW CREATE TABLE prints it, whatever was typed. information_schema shows foreign keys only to who may change them.
_NAME = r"`((?:[^`]|``)+)`"
_KEY = re.compile(rf"CONSTRAINT {_NAME} FOREIGN KEY \([^)]*\) REFERENCES {_NAME}(?:\.{_NAME})? \([^)]*\)(.*)")
_ACTION = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")


def warn_of_cascades(source: str, server: ServerConnection, database: str, tables: Iterable[str]) -> None:
    """I1: say of each foreign key that changes rows of ``tables`` unseen that it does. Raises ``Unavailable``."""
    if server.logs_cascades:
        return
    for table in tables:
        ((_, definition, *_),) = server.execute(f"SHOW CREATE TABLE {_quoted(database)}.{_quoted(table)}")
        for key, *of, rest in _KEY.findall(str(definition)):
            if does := _ACTION.findall(rest):
                log.warning(
                    "source %s: WHAT THE FOREIGN KEY %s CHANGES IN %s.%s IS NOT RELAYED: when rows of %s change, %s is "
                    "done by the engine, which logs nothing of it. Let the application do it, or use MySQL 9.6",
                    source,
                    key,
                    database,
                    table,
                    of[1] or of[0],
                    " and ".join(does),
                )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
