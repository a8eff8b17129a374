"""A primary and its replica, which takes the primary's place: ``audited.ITEMS`` on them, and what the relay reads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.services.mariadb import PASSWORD, USER
from tests.faults.audited import ITEMS, audit, opened

DATABASE = "shop"


class Replicated:
    """Two servers, ``relay.services.mariadb.MariaDB`` or ``tests.mysql.server.MySQL``, with an audited table."""

    def __init__(self, primary: Any, replica: Any) -> None:
        self.primary, self.replica = primary, replica
        # The config keeps naming both, in this order.
        self._addresses = [primary.address, replica.address]
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"create database {DATABASE}")
            cursor.execute(f"use {DATABASE}")
            cursor.execute(ITEMS)
        audit(self.connect, [DATABASE])
        replica.replicate_from(primary)

    def connect(self) -> Connection[Cursor]:
        """Connect to the primary of now, without autocommit."""
        return opened(self.primary.connect(autocommit=False, defer_connect=True))

    def source(self, name: str) -> dict[str, Any]:
        """Return the entry of the config, without tables."""
        account = {"database": DATABASE, "user": USER, "password": PASSWORD}
        return {"name": name, "type": "mysql", **account, "shards": {"-": self._addresses}}

    def fail_over(
        self, paused: AbstractContextManager[Any], moved: Callable[[], None], *, kill: bool, timeout: float = 120.0
    ) -> None:
        """Let the replica take over, once it has all that was committed; the old primary follows it.

        ``paused``: while it is entered, nobody writes. ``moved`` is called before it is left.
        """
        with paused:
            self.replica.wait_for(self.primary.gtid, timeout)
            if kill:
                self.primary.kill()
            self.replica.promote()
            self.primary, self.replica = self.replica, self.primary
            if kill:
                self.replica.restart()
            self.replica.replicate_from(self.primary)
            moved()
