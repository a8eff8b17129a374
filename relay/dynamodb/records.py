"""Turns one stream record into one change. Images are DynamoDB's JSON, unchanged, so they keep every byte (I8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from msgspec import Raw

from relay import native
from relay.avro.compiled_fields import fields_of
from relay.avro.schema import change_schema
from relay.change import Change, Images, Operation, Uncarriable, event_ids
from relay.dynamodb.columns import TypedRows
from relay.dynamodb.protection import ProtectedItems
from relay.dynamodb.raw_records import RawRecord
from relay.dynamodb.values import image_json, key_value
from relay.errors import RelayError
from relay.table import TableSchema
from relay.token import EventToken

if TYPE_CHECKING:
    from relay.native._core import ChangeBlock, CompiledItems, Field


_OPERATIONS = {"INSERT": Operation.INSERT, "MODIFY": Operation.UPDATE, "REMOVE": Operation.DELETE}
_VIEWS = {
    "NEW_AND_OLD_IMAGES": Images.NEW_AND_OLD,
    "NEW_IMAGE": Images.NEW,
    "OLD_IMAGE": Images.OLD,
    "KEYS_ONLY": Images.KEYS_ONLY,
}
_TTL_SERVICE = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}


class RecordFormat:
    """Turns the records of one shard, whose name is globally qualified, into changes.

    ``rows``: makes typed rows of items; without it, a row is the item's DynamoDB JSON. ``protected``: makes the images
    instead, if some attributes are not published. ``wanted``: see `config_match.wanted_key`.
    """

    def __init__(
        self,
        table: TableSchema,
        shard: str,
        rows: TypedRows | None = None,
        protected: ProtectedItems | None = None,
        wanted: Mapping[str, str] | None = None,
    ) -> None:
        self.table = table
        self.shard = shard
        self.wanted = wanted or {}
        self._event_id = event_ids(shard, table.table)
        self._image: Callable[[Any], Any] = _text if rows is None else partial(_row, rows)
        if protected is not None:
            self._image = protected.image
        is_simple = rows is None and protected is None and not self.wanted
        self._compiled: CompiledItems | None = None
        if is_simple and (core := native.core()) is not None:
            self._compiled = core.CompiledItems(
                shard=shard,
                source=table.source,
                table=table.table,
                key=[(column.type, field) for column, field in zip(table.key, _key_fields(table), strict=True)],
                change=partial(_made, table, shard),
                key_value=key_value,
                attributes=_attributes,
            )

    def block(self, records: list[Any], floor: int) -> RecordBlock | None:
        """Return the changes of all ``records``, as ``change`` would make them; each one raises the ``floor``.

        None: ``change`` has to make them, or to report the error.
        """
        made = self._compiled.block(records, floor) if self._compiled is not None and records else None
        return None if made is None else RecordBlock(*made)

    def change(self, record: RawRecord, floor: int) -> Change:
        """Return the change of a raw ``record``, with a token whose timestamp is at least ``floor`` (seconds).

        An image that cannot be carried exactly becomes `Uncarriable`. Raises ``RelayError``, with the record's sequence
        number, if the record has no valid key or an unknown event name.
        """
        if type(record) is not RawRecord:
            parsed: Any = record  # parsed by botocore; its images are not shown
            raise RelayError(
                f"{self.shard}: botocore has parsed a record that the relay reads raw: install a botocore version that "
                f"this relay supports: record {parsed['dynamodb'].get('SequenceNumber')}"
            )
        data = record.dynamodb
        position = f"DynamoDB/{data.sequence_number}"
        try:
            created = int(data.approximate_creation_date_time)
            table = self.table
            key = key_of(data.keys, table)
            try:
                old, new = self._image(data.old_image), self._image(data.new_image)
            except ValueError as error:
                old, new = (_uncarriable(image, str(error)) for image in (data.old_image, data.new_image))
            except RelayError as error:  # from a protected attribute
                raise RelayError(f"{self.shard}: record {data.sequence_number}: {error}") from None
            return Change(
                self._event_id(position, key_bytes(key)),
                _OPERATIONS[record.event_name],
                table.source,
                table.table,
                key,
                old,
                new,
                _VIEWS[data.stream_view_type],
                # Timestamps never go back along a lineage: a child with a slow clock must not make newer look older.
                EventToken(created if created > floor else floor, self.shard, position),
                created * 1_000_000,
                attributes=_attributes(record),
            )
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            # I8
            refused = f"{self.shard}: record {data.sequence_number} cannot be carried exactly: {error!r}"
            raise RelayError(refused) from error


def chosen(changes: Iterable[Change], wanted: Mapping[str, str]) -> list[Change]:
    """Return the changes whose key has the values in ``wanted``."""
    return [change for change in changes if wanted.items() <= (change.key or {}).items()]


def key_of(item: Mapping[str, Any], table: TableSchema) -> dict[str, str | bytes]:
    """Return the key of an item of ``table``, or of key attributes, in the form of a change."""
    return {column.name: key_value(item[column.name]) for column in table.key}


def key_bytes(key: Mapping[str, str | bytes]) -> bytes:
    """Return the values of a primary key, each with its length, so that different keys never give equal bytes."""
    parts = [value if isinstance(value, bytes) else value.encode() for value in key.values()]
    return b"".join([len(part).to_bytes(4, "big") + part for part in parts])


def _text(image: Any) -> str | None:
    if type(image) is Raw:
        return str(image, "utf-8") if image else None
    return image_json(image) if image is not None else None  # from the tolerant parser


def _row(rows: TypedRows, image: Any) -> Any:
    if type(image) is Raw:
        return rows.row(orjson.loads(bytes(image))) if image else None
    return rows.checked(image) if image is not None else None


def _uncarriable(image: Any, reason: str) -> Uncarriable | None:
    if type(image) is Raw:
        # Bytes that are not UTF-8 become lone surrogates, which ASCII JSON can hold.
        image = json.loads(bytes(image).decode("utf-8", "surrogateescape")) if image else None
    return Uncarriable(image, reason) if image is not None else None


@lru_cache(maxsize=100)  # I11
def _versioned(version: str | None) -> dict[str, str]:
    """Return the attributes of a record that has only a version, always in the same object."""
    return {"event_version": version} if version else {}


def _attributes(record: RawRecord) -> dict[str, str]:
    attributes, identity = _versioned(record.event_version), record.user_identity
    if identity:
        attributes = dict(attributes)
        # Sorted, because the service does not promise an order.
        attributes["user_identity"] = orjson.dumps(identity, option=orjson.OPT_SORT_KEYS).decode()
        if identity == _TTL_SERVICE and record.event_name == "REMOVE":
            attributes["ttl_delete"] = "true"
    return attributes


class RecordBlock(NamedTuple):
    """The compiled core's result for a page of ordinary records, without an object per change."""

    changes: ChangeBlock
    floor: int
    """Seconds: the timestamp of the last token."""
    behind: int
    """The number of records older than one before them."""
    size: int
    """Bytes of the records, as DynamoDB counts them."""
    created: int
    """When the last record was created, in seconds since the epoch."""


@lru_cache(maxsize=16)  # each shard of a table asks
def _key_fields(table: TableSchema) -> list[Field]:
    return fields_of(change_schema(table))[1]


def _made(
    table: TableSchema, shard: str, *, operation: str, images: str, timestamp: int, position: str, **given: Any
) -> Change:
    return Change(
        operation=Operation(operation),
        source=table.source,
        table=table.table,
        images=Images(images),
        token=EventToken(timestamp, shard, position),
        **given,
    )
