"""What the compiled core makes of a page of records: a block of changes, without an object for each.

A page with a record that is not as usual, and tables that are not published whole as they are, are left to
``relay.dynamodb.records``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from relay import native
from relay.avro.compiled_fields import fields_of
from relay.avro.schema import change_schema
from relay.change import Change, Images, Operation
from relay.dynamodb.values import key_value
from relay.table import TableSchema
from relay.token import EventToken

if TYPE_CHECKING:
    from relay.native._core import ChangeBlock, CompiledItems, Field


class RecordBlock(NamedTuple):
    changes: ChangeBlock
    floor: int
    """Seconds: the timestamp of the last token."""
    behind: int
    """How many records are older than one that they follow."""
    size: int
    """Bytes of the records, as DynamoDB counts them."""
    created: int
    """Seconds since the epoch: when the last record was made."""


def compiled_items(table: TableSchema, shard: str, attributes: Callable[[Any], dict[str, str]]) -> CompiledItems | None:
    """Return what makes blocks, or None if the installation has no compiled core.

    ``shard``: globally qualified. ``attributes``: makes a record's.
    """
    if (core := native.core()) is None:
        return None
    return core.CompiledItems(
        shard=shard,
        source=table.source,
        table=table.table,
        key=[(column.type, field) for column, field in zip(table.key, _key_fields(table), strict=True)],
        change=_change_maker(table, shard),
        key_value=key_value,
        attributes=attributes,
    )


@lru_cache(maxsize=16)  # each shard of a table asks
def _key_fields(table: TableSchema) -> list[Field]:
    return fields_of(change_schema(table))[1]


def _change_maker(table: TableSchema, shard: str) -> Callable[..., Change]:
    """Return what makes a change of what the core knows of it."""

    def change(
        event_id: str,
        operation: str,
        key: Mapping[str, str | bytes],
        old: str | None,
        new: str | None,
        images: str,
        timestamp: int,
        position: str,
        committed_at: int,
        relayed_at: int,
        resume_timestamp: int,
        attributes: Mapping[str, str],
    ) -> Change:
        return Change(
            event_id,
            Operation(operation),
            table.source,
            table.table,
            key,
            old,
            new,
            Images(images),
            EventToken(timestamp, shard, position),
            committed_at,
            relayed_at,
            resume_timestamp,
            attributes=attributes,
        )

    return change
