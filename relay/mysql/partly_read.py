"""Transactions some of whose rows were published, and whose rest is still to be read, from whatever server."""

from __future__ import annotations

from relay.gtid import GtidSet
from relay.mysql.binlog.events import TransactionBegin
from relay.mysql.positions import BinlogPosition
from relay.sql.published_rows import PublishedRows, furthest


class PartlyRead:
    """Those of one shard, by GTID. There may be several: servers may commit in different orders."""

    def __init__(self, position: BinlogPosition) -> None:
        self._rows: dict[str, PublishedRows] = dict(position.partial)
        # See ``BinlogPosition.made_in``; also of the open transaction.
        self._made_in: dict[str, str] = dict(position.made_in)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __repr__(self) -> str:
        return f"<PartlyRead[{', '.join(self._rows)}]>"

    def rows(self, gtid: str) -> PublishedRows | None:
        """Return the rows of a transaction that were published, None if there are none."""
        return self._rows.get(gtid)

    def open(self, begun: TransactionBegin) -> None:
        """Note where the server that made a transaction has it, as its rows are read."""
        if begun.made_in:
            self._made_in[begun.gtid] = begun.made_in

    def position(self, executed: str, local: GtidSet, begun: str | None, rows: PublishedRows) -> BinlogPosition:
        """Return the position after ``executed``. ``begun``: the open transaction; ``rows``: what was read of it."""
        partial = dict(self._rows)
        if begun is not None and (done := furthest(rows, partial.pop(begun, {}))):
            partial = {begun: done, **partial}
        made_in = {gtid: self._made_in[gtid] for gtid in partial if gtid in self._made_in}
        return BinlogPosition(executed, partial, local, made_in=made_in)

    def leave(self, gtid: str, rows: PublishedRows) -> None:
        """Stop reading the open transaction, after these rows of it. Another server may send it again."""
        if done := furthest(rows, self._rows.get(gtid, {})):
            self._rows[gtid] = done
        else:
            self._made_in.pop(gtid, None)

    def forget(self, gtid: str) -> None:
        """Forget a transaction that was read to its end, or that is another one than before."""
        self._rows.pop(gtid, None)
        self._made_in.pop(gtid, None)

    def clear(self) -> None:
        self._rows.clear()
        self._made_in.clear()
