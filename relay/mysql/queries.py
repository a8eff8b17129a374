"""Queries with tokens that show how fresh they are: ``include_event_token`` and ``compare_event_token`` as in Vitess.

Only positions are compared: a watcher's timestamps come from another server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pymysql.connections import Connection
from pymysql.constants import SERVER_STATUS

from relay.errors import RelayError
from relay.mysql.watcher import ReplicationWatcher
from relay.token import EventToken, Order, compare


class Answer(NamedTuple):
    """``token``: the rows reflect everything up to it; None if unknown. ``fresher``: and surely the compared change."""

    rows: Sequence[Any]
    token: EventToken | None
    fresher: bool


class TokenQueries:
    """Runs queries over the caller's PyMySQL connection to the server that ``watcher`` watches. For one thread."""

    def __init__(self, connection: Connection[Any], watcher: ReplicationWatcher) -> None:
        self.connection = connection
        self.watcher = watcher
        self._checked = ""

    def close(self) -> None:
        self.connection.close()

    def token(self) -> EventToken | None:
        """Return a token that later queries reflect, or None. Raises errors as ``execute`` does."""
        status: int = self.connection.server_status  # type: ignore[attr-defined]
        if status & SERVER_STATUS.SERVER_STATUS_IN_TRANS or not status & SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT:
            raise RelayError(
                f"{self.watcher.shard}: a transaction may be open on the connection, and see an older state than the "
                "token: connect with `autocommit=True`, and commit open transactions first"
            )
        if self._checked != self.watcher.identity:
            with self.connection.cursor() as cursor:
                cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'server_uuid')")
                found = {str(value).lower() for _, value in map(tuple, cursor.fetchall())}
            if self.watcher.identity not in found:
                raise RelayError(
                    f"{self.watcher.shard}: the connection uses server {', '.join(sorted(found))}, but the watcher "
                    f"uses {self.watcher.identity or 'none, as it has not started'}: connect both to the same server"
                )
            self._checked = self.watcher.identity
        return self.watcher.token

    def execute(
        self,
        sql: str,
        args: Sequence[object] | Mapping[str, object] | None = None,
        *,
        include_event_token: bool = False,
        compare_event_token: EventToken | None = None,
    ) -> Answer:
        """Run a query. Raises PyMySQL's errors, and ``RelayError`` in an open transaction or on another server."""
        wanted = include_event_token or compare_event_token is not None
        token = self.token() if wanted else None  # I6: before the query
        return answer(self.connection, token, sql, args, include_event_token, compare_event_token)


def answer(
    opened: Connection[Any], token: EventToken | None, sql: str, args: Any, include: bool, compare: EventToken | None
) -> Answer:
    """Run a query on a connection whose ``token`` was taken before. Raises PyMySQL's errors."""
    with opened.cursor() as cursor:
        cursor.execute(sql, args)
        rows = cursor.fetchall()
    return Answer(rows, token if include else None, compare is not None and reflects(token, compare))


def reflects(read: EventToken | None, change: EventToken) -> bool:
    """Whether a read with a token reflects a change, by its position, or its origin's, on this shard (I5, I6)."""
    return read is not None and compare(read, change, positions_only=True) in (Order.EQUAL, Order.NEWER)
