"""Reads a table for a snapshot, beside the stream of its shard.

The position of the rows has to contain everything published of the shard, so nothing depends on clocks
(`relay.mysql_dialect.snapshot_times`).
"""

from __future__ import annotations

import base64
import binascii
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from relay import gtid
from relay.change import Change
from relay.errors import RelayError, Unavailable
from relay.mysql_dialect.compiled_changes import copied_rows
from relay.mysql_dialect.snapshot_times import as_of_rows, lowest, reads
from relay.mysql_dialect.tables import Row, Table
from relay.records import Shard, ShardCheckpoint, StreamId, followers, has_ended
from relay.source import LastPage, Page, PageCounts, Segment, Unreadable
from relay.vitess.client import Vtgate
from relay.vitess.failures import BrokenStream, Ending, ending, hint
from relay.vitess.http2 import CallEnded
from relay.vitess.position import VitessShard, VStreamPosition
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import Uncarried, VStreamRowDecoder, rows_of
from relay.vitess.settings import Portion, VStreamSettings
from relay.vitess.table_copy import CopiedBatch, TableCopy
from relay.vitess.tables import Tables
from relay.vitess.tablets import KeyOrder, Tablets

if TYPE_CHECKING:
    from relay.native._core import CompiledRows

log = logging.getLogger(__name__)

_PATIENCE = 20  # times as patient as with a stream: vtgate may sort a table before it sends the first row
_DOUBLINGS = 5
_LONGEST_UNREAD = 5.0  # seconds: after 10, vtgate sends a ping, and hangs up if the relay does not answer


@dataclass(frozen=True, slots=True)
class ShardRest:
    """The rest of a table in a shard."""

    shard: str
    after: pb.TableLastPK | None = None  # the last key that was read; None means that all rows are left
    order: str = ""  # the digest of `key_order` when that key was read

    def to_json(self) -> dict[str, Any]:
        if self.after is None:
            return {"shard": self.shard, "lastpk": None}
        key = base64.b64encode(self.after.lastpk.SerializeToString()).decode()
        return {"shard": self.shard, "lastpk": key, "order": self.order}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], table: str) -> ShardRest:
        if raw["lastpk"] is None:
            return cls(raw["shard"])
        key = pb.QueryResult.FromString(base64.b64decode(raw["lastpk"]))
        return cls(raw["shard"], pb.TableLastPK(table_name=table, lastpk=key), raw["order"])


@dataclass(frozen=True, slots=True)
class CopiedUpTo:
    """Where reading a table resumes. ``left``: the rest in each shard. ``rows``: how many rows were read."""

    left: tuple[ShardRest, ...]
    rows: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"type": "rows", "left": [rest.to_json() for rest in self.left], "rows": self.rows}

    @classmethod
    def of(cls, segment: Segment) -> CopiedUpTo:
        """Return the position of a segment. Raises ``RelayError`` for a position that cannot be read."""
        if segment.position is None:
            return cls((ShardRest(segment.part.shard),))
        try:
            left = tuple(ShardRest.from_json(raw, segment.part.table) for raw in segment.position["left"])
            return cls(left, segment.position["rows"])
        except (KeyError, TypeError, DecodeError, binascii.Error) as error:
            raise RelayError(f"a snapshot cannot resume at {dict(segment.position)!r}: {error}") from None


class CopiedTableReader:
    """Reads one table of one shard. Used by one thread at a time. ``clock``: seconds since the epoch.

    ``find``: returns the current layouts of the wanted tables, by name, or raises ``Unavailable``.
    """

    streams = True

    def __init__(
        self,
        vtgate: Vtgate,
        stream: StreamId,
        segment: Segment,
        tables: Tables,
        find: Callable[[], Mapping[str, Table]],
        settings: VStreamSettings,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.vtgate = vtgate
        self.stream = stream
        self.shard = segment.shard
        self.segment = segment
        self.table = segment.part.table
        self.settings = settings
        self.clock = clock
        self.position = CopiedUpTo.of(segment)  # the position at the end of the last page
        self._tables = tables
        self._find = find
        self._copy: TableCopy | None = None
        # The last decoder, and what the compiled core uses instead of it.
        self._compiled: tuple[VStreamRowDecoder, CompiledRows | None] | None = None
        # A shard, and the checkpoint that its rows have to show, kept so that a tablet that is behind can catch up.
        self._published: tuple[str, ShardCheckpoint] | None = None
        self._shown_at = ""  # an executed set that shows it
        self._reopened = 0  # how often in succession the copy was opened and no row came

    def close(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def read(self) -> Page | Unreadable:
        """Return the next page, which has one batch. Raises ``RelayError`` if no retry can help."""
        begun = self.clock()
        if self._copy is None:
            try:
                left = _continued(self.position.left, self.segment.published(), self.table)
            except Unavailable as error:
                return Unreadable(self.shard, begun, f"source {self.stream.source}: {error}")
            self.position = replace(self.position, left=left)
        if not self.position.left:
            return self._page(begun)
        try:
            copy = self._copy = self._copy or self._open()
            batch = copy.take(self.settings.wait)
            if batch is not None:
                return self._publish(copy, batch, begun)
            if copy.is_complete:
                self._check_order(copy)
                self.close()
                self.position = replace(self.position, left=self.position.left[1:])
                return self._page(begun)
            reason = self._silence(copy)
        except CallEnded as ended:
            reason = self._explain(ended)
        except BrokenStream as error:
            reason = f"copying table {self.table} again after the last row that was read: {error}"
        except Unavailable as error:
            reason = str(error)
        if reason is None:
            return self._page(begun)
        self.close()
        return Unreadable(self.shard, begun, reason)

    def _open(self) -> TableCopy:
        """Open the copy of the rest. Raises ``Unavailable``."""
        settings = self.settings
        rest = self.position.left[0]
        if self._published is None or self._shown_at or self._published[0] != rest.shard:
            checkpoint = self.segment.published().get(rest.shard)
            if checkpoint is None or checkpoint.position is None:
                why = f"the snapshot has to wait until the relay has begun to read shard {rest.shard}"
                raise Unavailable(f"source {self.stream.source}: {why}")
            self._published, self._shown_at = (rest.shard, checkpoint), ""
        shard = VitessShard.of(self.stream, Shard(rest.shard), settings.keyspace)
        tablets = Tablets(self.vtgate, shard, settings.tablet_type, settings.cells)
        order = tablets.key_order(self.table)
        if rest.after is not None and (why := _why_again(rest, order)):
            log.warning(
                "source %s: the snapshot of table %s reads shard %s from its beginning again, because %s",
                self.stream.source,
                self.table,
                rest.shard,
                why,
            )
            rest = ShardRest(rest.shard)  # I1
            self.position = replace(self.position, left=(rest, *self.position.left[1:]))
        log.info("source %s: copying table %s of shard %s", self.stream.source, self.table, rest.shard)
        opened_at = self.clock()
        self._tables.altered()  # since the last copy was opened
        start = tablets.at("", [] if rest.after is None else [rest.after])
        call = tablets.stream([start], [self.table], settings.heartbeat, copy=[self.table])
        return TableCopy(call, tablets, self._tables, order, opened_at)

    def _check_order(self, copy: TableCopy) -> None:
        """Raise ``Unavailable`` if the key was altered while the copy was opened: then it may leave rows out."""
        if not copy.is_same_order and copy.tablets.key_order(self.table) != copy.order:
            raise Unavailable(
                f"source {self.stream.source}: the primary key of table {self.table} was altered: copying again"
            )
        copy.is_same_order = True

    def _publish(self, copy: TableCopy, batch: CopiedBatch, begun: float) -> Page:
        """Return the page of a batch. Raises ``Unavailable`` if the batch does not show what is published."""
        assert self._published is not None
        (name, checkpoint), shard = self._published, copy.shard
        if batch.executed != self._shown_at:
            executed = gtid.parse(batch.executed)
            needed = VStreamPosition.from_json(checkpoint.position or {}, shard.qualified).needed
            if not executed.contains(needed) or needed.diverges(executed):  # I7
                raise Unavailable(
                    f"source {self.stream.source}: the {self.settings.tablet_type} tablet that copies table "
                    f"{self.table} of shard {name} is at {batch.executed}, behind the published changes: "
                    "waiting for a tablet to catch up"
                )
            self._shown_at = batch.executed
        self._check_order(copy)
        copy.advanced_at = time.monotonic()
        self._reopened = 0
        rest = replace(self.position.left[0], after=batch.end, order=copy.order.digest)
        self.position = CopiedUpTo((rest, *self.position.left[1:]), self.position.rows + batch.count)
        if batch.decoder is None:
            return self._page(begun)
        table = batch.decoder.table
        snapshot = as_of_rows(self.segment.snapshot, lowest(checkpoint), copy.opened_at)
        if self._compiled is None or self._compiled[0] is not batch.decoder:
            self._compiled = batch.decoder, rows_of(shard, batch.decoder, copied=True)
        changes: Sequence[Change] | None = copied_rows(self._compiled[1], "vstream", batch.answers, snapshot, begun)
        if changes is None:
            changes = reads(shard.source, table, _decoded(shard, batch.decoder, batch.rows), snapshot, begun)
        return replace(
            self._page(begun),
            changes=changes,
            counts=PageCounts(batch.count, sum(map(len, batch.answers))),
            pause=self._rest_after(batch.count, copy),
            tables=(table.schema,),
        )

    def _rest_after(self, rows: int, copy: TableCopy) -> float:
        """Return the seconds until the next read. vtgate waits while nobody takes the rows that it has sent."""
        pace = self.settings.copied_rows_per_second
        if pace is None:
            return 0.0
        rest = rows / pace
        if rest > _LONGEST_UNREAD and copy.order.resumes:
            self.close()
        elif rest > _LONGEST_UNREAD:
            rest = _LONGEST_UNREAD
        copy.alive_at = copy.advanced_at = time.monotonic() + rest
        return rest

    def _page(self, begun: float) -> Page:
        end = None if self.position.left else LastPage()
        return Page(self.shard, [], self.position.to_json(), None, None, begun, end=end)

    def _silence(self, copy: TableCopy) -> str | None:
        """Return why no row comes, once one is overdue, and None before."""
        now, silence = time.monotonic(), self.settings.silence
        patience = silence * _PATIENCE * 2 ** min(self._reopened, _DOUBLINGS)
        if now - copy.alive_at > silence:
            waited = f"vtgate sent nothing for {silence:g} s"
        elif now - copy.advanced_at > patience:
            self._reopened += 1
            waited = f"no row of table {self.table} came for {patience:g} s"
        else:
            return None
        return f"{waited}: {copy.tablets.explain_silence()}"

    def _explain(self, ended: CallEnded) -> str | None:
        """Return why the copy has ended, or None if the table was dropped. Raises ``RelayError`` if no retry helps."""
        kind = ending(ended)
        if kind in (Ending.NO_TABLE, Ending.FINAL):
            try:
                # I7: a table that lost its key still exists
                exists = self.table in self._find() or self.table in self._tables.skipped.reasons
            except Unavailable as error:
                return f"{ended}; the tables of the keyspace cannot be listed: {error}"
            if not exists and not has_ended(self.segment.published(), self.position.left[0].shard):  # I7: it moved
                log.warning("source %s: table %s was dropped during its snapshot", self.stream.source, self.table)
                self.close()
                self.position = replace(self.position, left=())
                return None
        if kind is Ending.FINAL:
            raise RelayError(f"source {self.stream.source}: table {self.table} cannot be copied: {ended}{hint(ended)}")
        return f"the copy of table {self.table} has ended: {ended}"


def _why_again(rest: ShardRest, order: KeyOrder) -> str:
    """Return why vtgate would leave out rows after the last key; "" if it would not."""
    if not order.resumes:
        return "vtgate would leave out rows after the last key, or the table has no primary key"
    return "" if rest.order == order.digest else "the primary key was altered"


def _continued(
    left: Sequence[ShardRest], published: Mapping[str, ShardCheckpoint], table: str
) -> tuple[ShardRest, ...]:
    """Return the rest in the shards that continue the first. Raises ``Unavailable`` while one is not read yet."""
    if not left:
        return ()
    first, *others = left
    checkpoint = published.get(first.shard)
    if checkpoint is None or not checkpoint.state.ended:
        return tuple(left)
    # A shard that was lost has no journal, and its gap says so.
    targets = checkpoint.journal.targets if checkpoint.journal is not None else {}
    following = followers(first.shard, published)
    having = []
    for name in sorted(name for name, start in targets.items() if Portion.of(start).has(table)):
        if (shard := following[name]) is None:
            raise Unavailable(
                f"the snapshot has to wait until the relay has begun to read shard {name}, which continues "
                f"{first.shard}"
            )
        having.append(replace(first, shard=shard))
    return _continued([*having, *others], published, table)


def _decoded(shard: VitessShard, decoder: VStreamRowDecoder, rows: Iterable[pb.Row]) -> Iterator[Row]:
    for row in rows:
        try:
            yield decoder.decode(row)
        except Uncarried as error:
            raise RelayError(f"shard {shard.qualified}: a copied row of {decoder.table.name}: {error}") from None
