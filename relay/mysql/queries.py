"""Queries with tokens that say how fresh they are: ``include_event_token`` and ``compare_event_token`` as in Vitess.

The token is read before the query is sent, so the query reflects at least its position. Only positions are compared: a
watcher's timestamps come from another server's clock.
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
    """``token``: the rows reflect at least everything up to it; None if that is unknown, or was not asked for.

    ``fresher``: the rows certainly reflect the change of the token in ``compare_event_token``.
    """

    rows: Sequence[Any]
    token: EventToken | None
    fresher: bool


class TokenQueries:
    """Runs queries on the server that ``watcher`` watches, over the caller's open PyMySQL connection.

    Only one thread may use it at a time, like the connection.
    """

    def __init__(self, connection: Connection[Any], watcher: ReplicationWatcher) -> None:
        self.connection = connection
        self.watcher = watcher
        self._checked = ""

    def close(self) -> None:
        self.connection.close()

    def token(self) -> EventToken | None:
        """Return a token: queries on the connection from now on reflect everything up to it. None if that is unknown.

        Raises PyMySQL's errors, and ``RelayError`` as ``execute``.
        """
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
                    f"{self.watcher.shard}: the connection is to another server ({', '.join(sorted(found))}) than the "
                    f"watcher's ({self.watcher.identity or 'not started'}): connect both to the same one"
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
        """Run a query. Raises PyMySQL's errors, and ``RelayError`` where a token would be wrong.

        That is in an open transaction, which may see an older state, and on another server.
        """
        wanted = include_event_token or compare_event_token is not None
        token = self.token() if wanted else None  # I6: before the query
        with self.connection.cursor() as cursor:
            cursor.execute(sql, args)
            rows = cursor.fetchall()
        fresher = compare_event_token is not None and reflects(token, compare_event_token)
        return Answer(rows, token if include_event_token else None, fresher)


def reflects(read: EventToken | None, change: EventToken) -> bool:
    """Whether a read with the token ``read`` reflects the change with the token ``change``, by position alone (I5, I6).

    A change of another shard is reflected only if its token says where on this shard it was first made.
    """
    return read is not None and compare(read, change, positions_only=True) in (Order.EQUAL, Order.NEWER)
