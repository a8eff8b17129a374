"""Warns of foreign keys whose actions are not logged: InnoDB changes those rows below the binlog."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from relay.mysql.chunks import quoted
from relay.mysql.connection import ServerConnection

log = logging.getLogger(__name__)

# As SHOW CREATE TABLE prints it. information_schema shows foreign keys only to users who may change the tables.
_TABLES = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
_NAME = r"`((?:[^`]|``)+)`"
_KEY = re.compile(rf"CONSTRAINT {_NAME} FOREIGN KEY \([^)]*\) REFERENCES {_NAME}(?:\.{_NAME})? \([^)]*\)(.*)")
_ACTION = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")


def warn_of_cascades(source: str, server: ServerConnection, database: str, tables: Iterable[str]) -> None:
    """Log a warning for each foreign key that changes rows of ``tables`` without logging it. Raises ``Unavailable``."""
    if server.logs_cascades:
        return
    there = {str(name) for (name,) in server.execute(_TABLES, (database,))}
    for table in [each for each in tables if each in there]:
        ((_, definition, *_),) = server.execute(f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
        for key, *referenced, rest in _KEY.findall(str(definition)):
            if actions := _ACTION.findall(rest):
                log.warning(
                    "source %s: changes by the foreign key %s to %s.%s are not relayed: when rows of %s change, "
                    "InnoDB runs %s without logging it. Make these changes in the application, or upgrade to MySQL 9.6",
                    source,
                    key,
                    database,
                    table,
                    referenced[1] or referenced[0],
                    " and ".join(actions),
                )
