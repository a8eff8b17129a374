"""Turns the rows of one shard into changes. FIELD events give their layouts, and pages list the layouts they use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay import native
from relay.errors import RelayError
from relay.mysql_dialect.changes import TransactionChanges
from relay.mysql_dialect.layout_cache import LostKey
from relay.mysql_dialect.tables import Row, Table
from relay.table import TableSchema
from relay.vitess.failures import BrokenStream
from relay.vitess.position import VitessShard, canonical
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import PartialRow, Uncarried, VStreamRowDecoder, rows_of
from relay.vitess.tables import Tables

if TYPE_CHECKING:
    from relay.native._core import WholeTransactions


class PageMustEnd(Exception):
    """The event belongs in the next page: apply it again after the page has ended."""


class ShardRows:
    """Decodes rows and passes them to ``changes``."""

    def __init__(self, shard: VitessShard, tables: Tables, floor: int) -> None:
        self.shard = shard
        self.tables = tables
        self.changes = TransactionChanges(shard.source, shard.qualified, floor)
        self.records = 0  # how many rows have come since the last page
        # By table, the decoder of its rows from here on, or None for a table that is not wanted.
        self._decoders: dict[str, VStreamRowDecoder | None] = {}
        self.keyless: dict[str, str] = {}  # the tables that have no key, by their names in the stream
        # The compiled reader of whole transactions, or None without the compiled core.
        names, core = (shard.keyspace.encode(), shard.name.encode(), shard.qualified), native.core()
        self.compiled = None if core is None else core.VStreamReader(*names, canonical)
        # The layouts of the rows in the page being made, by table, and the last row's layout.
        self._in_page: dict[str, Table] = {}
        self._last: Table | None = None

    def end_page(self, *, inside_transaction: bool) -> list[TableSchema]:
        """Return the schemas of the tables that the page has changes of, and start the next page."""
        schemas = [table.schema for table in self._in_page.values()]
        # The change of an open transaction's last row goes into the next page.
        held_back = self._last if inside_transaction else None
        self._in_page = {held_back.name: held_back} if held_back is not None else {}
        self.records = 0
        return schemas

    def set_layout(self, fields: pb.FieldEvent, *, inside_transaction: bool) -> None:
        """Decode later rows as a FIELD event says. Raises `PageMustEnd`: a page has one layout of each table."""
        name = fields.table_name
        self.keyless.pop(name, None)
        try:
            decoder = self.tables.decoder(fields, copied=False)
        except LostKey as error:
            decoder, self.keyless[name] = None, error.table
        except RelayError:
            if self.changes.size:
                raise PageMustEnd from None  # the changes so far are published, even if this fails again
            raise
        if decoder is not None and self._in_page.get(decoder.table.name, decoder.table) is not decoder.table:
            if inside_transaction:
                raise BrokenStream(f"the columns of {name} changed inside a transaction")
            raise PageMustEnd
        if decoder is not None and self.tables.has_other_key(decoder.table) and self.changes.size:
            raise PageMustEnd  # I12: the changes before it are not refused with it
        self._decoders[name] = decoder
        if self.compiled is not None:
            is_plain = decoder is not None and decoder.table.name == name
            rows = rows_of(self.shard, decoder) if decoder is not None and is_plain else None
            self.compiled.set_table(name.encode(), rows)

    def read_whole(self, answers: bytes, room: int, latest: int) -> WholeTransactions:
        """Turn whole transactions at the beginning of ``answers`` into changes, until these have ``room`` bytes.

        Return what was read, up to a timestamp after ``latest``. Call it between transactions, with ``compiled``.
        """
        assert self.compiled is not None
        whole = self.compiled.read(answers, self.changes.floor, room, latest)
        blocks = whole.take()
        for block in blocks:
            decoder = self._decoder(block.table)
            assert decoder is not None
            self._use(decoder.table)
        if whole.position is not None:
            self.changes.add(blocks, whole.position, whole.floor, whole.size, whole.behind)
        self.records += whole.rows
        return whole

    def _decoder(self, table: str) -> VStreamRowDecoder | None:
        if table not in self._decoders:
            raise BrokenStream(f"rows of {table} came before its columns")
        return self._decoders[table]

    def _use(self, table: Table) -> None:
        """Note that the page has rows of ``table``."""
        self._in_page[table.name] = self._last = table
        if self.tables.followed.layouts.get(table.name) is not table:
            self.tables.followed.read(table)

    def stream(self, event: pb.RowEvent, gtid: str) -> None:
        decoder = self._decoder(event.table_name)
        if decoder is None:
            return
        table, decode, decode_before = decoder.table, decoder.decode, decoder.before
        row = self.changes.row_of(table)
        self._use(table)
        for change in event.row_changes:
            before: Row | None = None
            after: Row | None = None
            size = 0
            try:
                if change.HasField("before"):
                    before = decode_before(change.before)
                    size = len(change.before.values)
                if change.HasField("after"):
                    if change.HasField("data_columns") or change.HasField("json_partial_values"):
                        raise PartialRow
                    after = decode(change.after)
                    size += len(change.after.values)
            except PartialRow:
                raise RelayError(
                    f"shard {self.shard.qualified}: a row of {table.name} in {gtid} lacks some of its columns: set "
                    "binlog_row_image to FULL and binlog_row_value_options to '' on the database"
                ) from None
            except Uncarried as error:
                raise RelayError(f"shard {self.shard.qualified}: a row of {table.name} in {gtid}: {error}") from None
            only_key = after is None and before is not None and decoder.may_lack_columns(before)
            row(table, before, after, size or 1, only_key_is_sure=only_key)
            self.records += 1

    def truncate(self, table: Table) -> None:
        """Add the TRUNCATE of a table that a statement empties."""
        self._in_page.setdefault(table.name, table)
        self.changes.truncate(table)
