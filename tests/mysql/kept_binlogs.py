"""The binlog files that an embedded server keeps."""

from __future__ import annotations

from relay.services.mariadb import SQLServer
from tests.waiting import wait_until


def binlogs(server: SQLServer) -> list[str]:
    """Return the names of the files, oldest first."""
    return [row[0] for row in server.execute("SHOW BINARY LOGS")]


def purge_binlogs(server: SQLServer) -> None:
    """Start a new file and remove all earlier ones, which no client may be reading."""
    server.execute("FLUSH BINARY LOGS")
    newest = binlogs(server)[-1]

    def purged() -> bool:
        # InnoDB, which flushes once a second, may still need the last one.
        server.execute("PURGE BINARY LOGS TO %s", (newest,))
        return binlogs(server)[0] == newest

    wait_until(purged)
