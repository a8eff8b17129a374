"""Describes tables to the compiled core, and turns its changes into objects when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relay import native
from relay.change import Change, ChangeParts, Images, Operation, Snapshot, Transaction
from relay.mysql_dialect.row_functions import RowMapper, imager, keyer
from relay.mysql_dialect.snapshot_times import read_of
from relay.mysql_dialect.tables import Row, Table
from relay.token import EventToken

if TYPE_CHECKING:
    from relay.native._core import CompiledRows, Field

# How a binlog stores a value: form, bytes of it or of the length before it, width or digits, decimals, and members.
Stored = tuple[str, int, int, int, Sequence[str]]
# How the core reads a column's text, or its bytes in a binlog; what decodes the other values; whether a NULL in it is
# doubtful before a change; and whether it is in the primary key.
Cell = tuple[str | Stored, Callable[[bytes], Any], bool, bool]


def compiled_rows(
    table: Table,
    source: str,
    shard: str,
    cells: Sequence[Cell],
    fields: tuple[Sequence[Field], Sequence[Field]] | None,
    read: Callable[[bytes], Row],
    *,
    copied: bool = False,
) -> CompiledRows | None:
    """Return a table's rows in the core's form; None without the core, or if not all rows are published.

    ``fields``: the fields of row and key, from ``relay.avro.compiled_fields``. ``read``: decodes a row. ``copied``:
    whether the rows are a snapshot's.
    """
    if fields is None or table.wanted is not None or native.core() is None:
        return None
    from relay.native._core import CompiledRows

    row, key = fields
    return CompiledRows(
        shard=source if copied else shard,
        source=source,
        table=table.name,
        columns=[(*cell, field) for cell, field in zip(cells, row, strict=True)],
        key=list(zip(table.key, key, strict=True)),
        change=_read_maker(table, source, read) if copied else _change_maker(table, source, shard, read),
        keyspace_id=table.keyspace_id,
    )


def copied_rows(
    rows: CompiledRows | None, form: str, pages: Sequence[bytes], snapshot: Snapshot, now: float
) -> ChangeParts | None:
    """Return the READs of a page of rows, or None if only Python can make them. Other threads continue meanwhile.

    ``form``: the form of ``pages``, see ``relay/native/src/reads.rs``. ``now``: when the page was requested, in
    seconds.
    """
    core = native.core()
    if rows is None or core is None:
        return None
    block = core.read_rows(rows, form, pages, snapshot.id, snapshot.as_of, int(now * 1_000_000))
    return None if block is None else ChangeParts([block] if len(block) else [])


def _read_maker(table: Table, source: str, read: Callable[[bytes], Row]) -> Callable[..., Change]:
    mapper = RowMapper(table, "", source)

    def change(*, after: bytes, timestamp: int, gtid: str, **given: Any) -> Change:
        snapshot = Snapshot(gtid.removeprefix("snapshot/"), timestamp)
        made = read_of(mapper, source, read(after), snapshot, given["committed_at"])
        made.resume_timestamp, made.relayed_at = given["resume_timestamp"], given["relayed_at"]
        return made

    return change


def _change_maker(table: Table, source: str, shard: str, read: Callable[[bytes], Row]) -> Callable[..., Change]:
    image, key = imager(table), keyer(table)

    def change(
        *,
        operation: str,
        before: bytes | None,
        after: bytes | None,
        timestamp: int,
        position: str,
        gtid: str,
        order: int,
        last: bool,
        **given: Any,
    ) -> Change:
        """Make a change from the core's values."""
        old, new = (None if row is None else read(row) for row in (before, after))
        keyed = old if new is None else new
        assert keyed is not None
        return Change(
            operation=Operation(operation),
            source=source,
            table=table.name,
            key=key(keyed),
            old=None if old is None else image(old),
            new=None if new is None else image(new),
            images=Images.NEW_AND_OLD,
            token=EventToken(timestamp, shard, position),
            transaction=Transaction(gtid, order, last),
            **given,
        )

    return change
