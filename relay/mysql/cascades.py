"""Warns of foreign keys whose actions are not logged: InnoDB changes those rows below the binlog."""

import logging
import re
from collections.abc import Iterable

from relay.errors import Unavailable
from relay.mysql.chunks import quoted
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Interrupted, NoTable

log = logging.getLogger(__name__)

# As SHOW CREATE TABLE prints it. information_schema shows foreign keys only to users who may change the tables.
_NAME = r"`((?:[^`]|``)+)`"
_KEY = re.compile(rf"CONSTRAINT {_NAME} FOREIGN KEY \([^)]*\) REFERENCES {_NAME}(?:\.{_NAME})? \([^)]*\)(.*)")
_ACTION = re.compile(r"ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)")


def warn_of_cascades(
    source: str, server: ServerConnection, database: str, tables: Iterable[str], warned_of: set[tuple[str, str]]
) -> None:
    """Log a warning for each foreign key that changes rows of ``tables`` without logging it. Raises ``Interrupted``.

    ``warned_of``: tables and keys that it has warned of, and does not warn of again.
    """
    if server.logs_cascades:
        return
    for table in tables:
        try:
            ((_, definition, *_),) = server.execute(f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
        except Interrupted:
            raise
        except NoTable:  # no longer
            continue
        except Unavailable as error:  # I10: such as of a view. It would fail again, and only the warning depends on it
            log.warning("source %s: the foreign keys of %s.%s cannot be seen: %s", source, database, table, error)
            continue
        for key, *referenced, rest in _KEY.findall(str(definition)):
            if (actions := _ACTION.findall(rest)) and (table, key) not in warned_of:
                warned_of.add((table, key))
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
