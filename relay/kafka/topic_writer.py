"""Writes the changes of one table to its topic: value, key, partition (I2) and headers.

A change that is too large or that Avro cannot hold is published as a stub, and in full as a dead letter (I8).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, Protocol

from relay import native
from relay.avro.compiled_fields import fields_of
from relay.avro.encode import ChangeEncoder, Unencodable
from relay.avro.schema import change_schema
from relay.change import REDRIVEN, TO_CONTINUE, Change, Images, Operation
from relay.errors import RelayError
from relay.kafka.dead_letters import NOT_ENCODABLE, TOO_LARGE, DeadLetterWriter, RecordPlace, RecordSender, change_json
from relay.kafka.keys import KeyCodec, partition
from relay.kafka.limits import Headers, record_size, too_small
from relay.kafka.topics import LARGEST_MESSAGE
from relay.table import TableSchema
from relay.token import EventToken
from relay.types.columns import ColumnKind

if TYPE_CHECKING:
    from relay.native._core import ChangeBlock, RecordWriter


log = logging.getLogger(__name__)

Record = tuple[bytes, bytes, int, Headers]  # value, key, partition and headers

_ROOM = 1024  # bytes that a record needs beyond its value, its key and the text of its token

# Key column types whose canonical bytes the compiled core makes itself.
_HASHED: dict[str, str] = {
    "S": "text",
    "N": "text",
    ColumnKind.STRING: "text",
    "B": "bytes",
    ColumnKind.BYTES: "bytes",
    ColumnKind.INT: "int",
    ColumnKind.LONG: "int",
}


class Schemas(Protocol):
    """Publishes schemas; see ``relay.avro.registry``."""

    def register(self, topic: str, schema: dict[str, object]) -> bytes: ...


@dataclass(eq=False)
class TopicWriter:
    """Encodes and sends the changes of one table.

    ``key``: the mode of the record key. ``tombstones``: send a null value after each DELETE. ``largest``: bytes of the
    largest record. ``dead_letters``: keeps the complete change of each stub; without it, such a change is an error.
    ``on_unencodable``: what to do with a change that Avro cannot hold exactly.
    """

    table: TableSchema
    topic: str
    partitions: int
    key: InitVar[Literal["hash", "item"]]
    schemas: InitVar[Schemas]
    _: KW_ONLY
    tombstones: bool = False
    largest: int = LARGEST_MESSAGE
    dead_letters: DeadLetterWriter | None = None
    on_unencodable: Literal["fail", "dead_letter"] = "fail"
    dead_lettered: int = field(default=0, init=False)
    """The number of dead letters written."""

    def __post_init__(self, key: Literal["hash", "item"], schemas: Schemas) -> None:
        table = self.table
        schema = change_schema(table)
        # Registering publishes the schema before, and outside of, the transaction that first uses it.
        header = schemas.register(self.topic, schema)
        self._encoder = ChangeEncoder(schema, header)
        self._codec = KeyCodec(table, key)
        self._compile = partial(compiled_records, schema, header, table, self._codec, largest=self.largest - _ROOM)
        self._compiled = self._compile(self.partitions)
        self._item_codec = KeyCodec(table, "item")
        # The token of the last change and its header: all changes of one source transaction share them.
        self._token: EventToken | None = None
        self._token_header: tuple[str, bytes] = ("token", b"")

    def spread(self, partitions: int) -> None:
        """Send changes to so many partitions of the topic from here on."""
        if partitions != self.partitions:
            self.partitions = partitions
            if self._compiled is not None:
                self._compiled = self._compile(partitions)

    def send_page(self, publisher: RecordSender, changes: list[Change] | ChangeBlock, resume_timestamp: int) -> int:
        """Send ``changes`` in order (I2); return the bytes of all values. Raises ``RelayError`` if one is refused."""
        relayed_at = time.time_ns() // 1000
        records: Iterable[Record | None] = repeat(None)
        if self._compiled is not None:
            made = self._compiled.records if isinstance(changes, list) else self._compiled.block_records
            records = made(changes, resume_timestamp, relayed_at)  # type: ignore[arg-type]
        topic, send, size = self.topic, publisher.send, 0
        for at, record in zip(range(len(changes)), records, strict=False):
            if record is None:
                change = changes[at]
                change.resume_timestamp, change.relayed_at = resume_timestamp, relayed_at
                record, letter_size = self._record(publisher, change)
                size += letter_size
                if record is None:
                    continue
            value, key, number, headers = record
            send(topic, value, key, number, headers)
            if self.tombstones and _deletes(changes, at):
                send(topic, None, key, number, headers)
            size += len(value)
        return size

    def _record(self, publisher: RecordSender, change: Change) -> tuple[Record | None, int]:
        """Return the record of ``change``, or of its stub if it has one, and the bytes of its dead letter."""
        if change.key is None:
            raise RelayError(f"topic {self.topic}: change {change.event_id} has no key")
        hash_bytes, key = self._keys(change)
        number = partition(hash_bytes, self.partitions)
        headers = self._headers(change)
        try:
            value = self._encode(change)
            size = len(value) + len(key) + len(self._token_header[1])
            if size + _ROOM <= self.largest or (size := record_size(value, key, headers)) <= self.largest:
                return (value, key, number, headers), 0
            reason, detail = TOO_LARGE, f"{size} bytes; {self.topic} takes {self.largest}"
        except Unencodable as fault:
            if fault.in_key:
                raise
            if self.on_unencodable == "fail":
                raise Unencodable(f"{fault}. {TO_CONTINUE}", in_key=False) from fault
            reason, detail = NOT_ENCODABLE, str(fault)
        stub, size = self._stub(publisher, change, RecordPlace(self.topic, number, key, headers), reason, detail)
        return None if stub is None else (stub, key, number, headers), size

    def _keys(self, change: Change) -> tuple[bytes, bytes]:
        """Return the bytes that choose the partition of a change with a key, and the key of its record."""
        return self._codec.hash_and_record_key(change.key or {})

    def _encode(self, change: Change) -> bytes:
        """Return the framed value. Raises ``Unencodable``."""
        return self._encoder.encode(change)

    def send_to_all_partitions(
        self, publisher: RecordSender, change: Change, resume_timestamp: int, partitions: range | None = None
    ) -> None:
        """Send ``change``, which is not about one item, to all partitions, or to some.

        Raises ``RelayError`` if it is too large.
        """
        change.resume_timestamp, change.relayed_at = resume_timestamp, time.time_ns() // 1000
        self._send_to_all(publisher, change, range(self.partitions) if partitions is None else partitions)

    def _send_to_all(self, publisher: RecordSender, change: Change, partitions: range) -> None:
        headers = self._headers(change)
        value = self._encoder.encode(change)
        key = change.event_id.encode()  # a compacted topic refuses records without a key; no item has this key
        self._check_size(change, value, key, headers)
        for number in partitions:
            publisher.send(self.topic, value, key, number, headers)

    def _headers(self, change: Change) -> Headers:
        headers: Headers = [("event_id", change.event_id.encode())]
        token = change.token
        if token is not None:
            if token is not self._token:
                self._token, self._token_header = token, ("token", self._token_bytes(token))
            headers.append(self._token_header)
        return headers

    def _token_bytes(self, token: EventToken) -> bytes:
        return token.to_json_bytes()

    def _stub(
        self, publisher: RecordSender, change: Change, place: RecordPlace, reason: str, detail: str
    ) -> tuple[bytes | None, int]:
        """Write a change as a dead letter. Return its stub, and the bytes of the dead letter."""
        # As a redrive sends it: with an attribute that says that its stub came before.
        marked = replace(change, attributes={**change.attributes, REDRIVEN: "true"})
        item_key = self._item_codec.kafka_key(change.key or {})
        is_avro = reason == TOO_LARGE
        full = self._encoder.encode(marked) if is_avro else change_json(marked, item_key)
        stub = self._encoder.encode(replace(change, old=None, new=None, images=Images.OMITTED))
        self._check_size(change, stub, place.key, place.headers)
        encoding: Literal["avro", "json"] = "avro" if is_avro else "json"
        return stub, self._letters_for(change, "without its images", reason, detail).send(
            publisher, change, full, place, item_key=item_key, reason=reason, detail=detail, encoding=encoding
        )

    def _letters_for(self, change: Change, how: str, reason: str, detail: str) -> DeadLetterWriter:
        """Count and log a change that is published as a stub, and return what writes its dead letter."""
        if self.dead_letters is None:
            raise RelayError(f"topic {self.topic}: cannot publish change {change.event_id}: {reason}: {detail}")
        self.dead_lettered += 1
        said = "source %s: publishing change %s of %s %s; the full change is a dead letter: %s: %s"
        log.warning(said, change.source, change.event_id, change.table, how, reason, detail)
        return self.dead_letters

    def _check_size(self, change: Change, value: bytes, key: bytes, headers: Headers) -> None:
        size = record_size(value, key, headers)
        if size > self.largest:
            raise RelayError(
                f"source {change.source}: even without its images, the {change.operation} of {change.table}, event "
                f"{change.event_id}, takes {size} bytes, {len(self._token_header[1])} of them for its token in a "
                f"header, but {too_small(self.topic, self.largest, size)}"
            )


def _deletes(changes: list[Change] | ChangeBlock, at: int) -> bool:
    """Whether a change is a deletion. A block answers without creating the change."""
    if isinstance(changes, list):
        return changes[at].operation is Operation.DELETE
    return changes.deletes(at)


def compiled_records(
    schema: Mapping[str, Any], header: bytes, table: TableSchema, codec: KeyCodec, partitions: int, largest: int
) -> RecordWriter | None:
    if (core := native.core()) is None:
        return None
    fields = {field["name"]: field["type"] for field in schema["fields"]}
    row, key = fields_of(schema)
    hash_key = table.key[: table.hash_columns]
    is_common = codec.mode == "hash" and all(column.type in _HASHED for column in hash_key)
    return core.RecordWriter(
        header=header,
        key=key,
        row=row,
        operations=fields["operation"]["symbols"],
        images=fields["images"]["symbols"],
        hashed=[(column.name, _HASHED[column.type]) for column in hash_key] if is_common else None,
        codec=codec.hash_and_record_key,
        partitions=partitions,
        largest=max(0, largest),
    )
