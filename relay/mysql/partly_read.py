"""Transactions that were published in part, and whose rest is still to be read, from whatever server."""

from __future__ import annotations

from relay.gtid import GtidSet
from relay.mysql.binlog.events import TransactionBegin
from relay.mysql.positions import BinlogPosition
from relay.mysql_dialect.streamed_transaction import PublishedRows, furthest


class PartlyRead:
    """Those of one shard, by GTID. There may be several: servers may commit in different orders."""

    def __init__(self, position: BinlogPosition) -> None:
        self._rows: dict[str, PublishedRows] = dict(position.partial)
        # See ``BinlogPosition.made_at``; and the last transaction that began.
        self._made_at: dict[str, int] = dict(position.made_at)
        self._begun: tuple[str, int | None] = ("", None)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __repr__(self) -> str:
        return f"<PartlyRead[{', '.join(self._rows)}]>"

    def rows(self, gtid: str) -> PublishedRows | None:
        """Return the rows of a transaction that were published, or None if there are none."""
        return self._rows.get(gtid)

    def begin(self, begun: TransactionBegin) -> bool:
        """Begin a transaction. Return whether rows of another one with the same GTID were published.

        A crash cut that one off, so it was made at another time. In MySQL all servers have one time for a transaction.
        In MariaDB the server that made it has the latest time: others have the time of its last statement.
        """
        at, before = begun.committed_at or begun.timestamp, self._made_at.get(begun.gtid)
        is_exact = bool(begun.committed_at) or begun.made_here
        self._begun = begun.gtid, at if is_exact else None
        if before is None:
            return False
        return at != before if is_exact else at > before  # I1: as many of its rows would be skipped

    def position(self, executed: str, local: GtidSet, begun: str | None, rows: PublishedRows) -> BinlogPosition:
        """Return the position after ``executed``. ``begun``: the open transaction; ``rows``: what was read of it."""
        partial = dict(self._rows)
        if begun is not None and (done := furthest(rows, partial.pop(begun, {}))):
            partial = {begun: done, **partial}
        known = dict([self._begun]) | self._made_at
        made_at = {gtid: at for gtid in partial if (at := known.get(gtid)) is not None}
        return BinlogPosition(executed, partial, local, made_at=made_at)

    def leave(self, gtid: str, rows: PublishedRows) -> None:
        """Stop reading the open transaction, after these rows of it. Another server may send it again."""
        if done := furthest(rows, self._rows.get(gtid, {})):
            self._rows[gtid] = done
            if (at := self._begun[1]) is not None:
                self._made_at.setdefault(gtid, at)

    def forget(self, gtid: str) -> None:
        """Forget a transaction that was read to its end, or that is another one than before."""
        self._rows.pop(gtid, None)
        self._made_at.pop(gtid, None)

    def clear(self) -> None:
        self._rows.clear()
        self._made_at.clear()
