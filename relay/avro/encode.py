"""Encoding of a change to the bytes of its Kafka value.

The envelope of ``schemas/change.avsc`` is written by hand, field by field, because a general Avro writer costs more for
each change than the producer does. Tests compare every byte with fastavro's, so they fail if only the schema changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relay.avro import columns
from relay.avro.binary import LENGTHS, NULL, PRESENT, PRESENT_LENGTHS, SHORT, blob, length, long, text, varint
from relay.avro.compiled import record_writer
from relay.avro.schema import columns_of_key, columns_of_row
from relay.change import MARK, Change, Operation, Uncarriable
from relay.errors import RelayError
from relay.token import EventToken, OriginToken

_CACHED = 4096
_write_int = columns.writer("int")
# A change's order in its transaction, followed by "not the last".
_ORDERS = tuple(_write_int(order) + b"\x00" for order in range(SHORT))
_FAULTS = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


class Unencodable(RelayError):
    """The change cannot be carried exactly (I8). Publish it without images, and in full among the dead letters.

    ``in_key``: even its key cannot be encoded, so it cannot be published at all: stop.
    """

    def __init__(self, message: str, in_key: bool) -> None:
        super().__init__(message)
        self.in_key = in_key


class ChangeEncoder:
    """Encodes the changes of one table under one schema: ``encoder.encode(change)``.

    ``schema``: from `change_schema`. ``header``: as returned when the schema was registered.
    """

    def __init__(self, schema: Mapping[str, Any], header: bytes) -> None:
        fields = {field["name"]: field["type"] for field in schema["fields"]}
        self._header = header
        key, row = columns_of_key(schema), columns_of_row(schema)
        self._key = [(name, columns.writer(kind)) for name, kind in key]
        self._write_key = record_writer(key, nullable=False)
        self._row: list[tuple[str, columns.Writer]] | None = None
        if row is not None:
            self._row = [(name, columns.nullable(columns.writer(kind))) for name, kind in row]
            self._write_row = record_writer(row, nullable=True)
        self._operations = {symbol: long(at) for at, symbol in enumerate(fields["operation"]["symbols"])}
        self._images = {symbol: long(at) for at, symbol in enumerate(fields["images"]["symbols"])}
        # Parts that many changes share are encoded once.
        self._starts = _Memo(self._start)
        self._longs = _Memo(long)
        self._texts = _Memo(text)
        self._attributes = _Memo(_attributes)
        self._tails = _Memo(varint)
        # All changes of a transaction have one token and one transaction id.
        self._token: EventToken | None = None
        self._token_bytes = NULL
        self._transaction_id = ""
        self._transaction_bytes = PRESENT + text("")

    def encode(self, change: Change) -> bytes:
        """Return the header and the Avro body. Raises `Unencodable`, naming the key and the position."""
        try:
            return self._encode(change)
        except _FAULTS as fault:
            raise self._refusal(change, fault) from fault

    def _encode(self, change: Change) -> bytes:
        event_id = change.event_id.encode()
        key = change.key
        if key is not None:
            key_bytes = PRESENT + self._write_key(key)
            if len(key) != len(self._key):
                raise ValueError(f"the change's key columns are {sorted(key)}, and the schema's are others")
        elif change.operation is Operation.TRUNCATE or MARK in change.attributes:
            key_bytes = NULL
        else:
            raise ValueError("it has no key: only a TRUNCATE and the marks of a snapshot may have none")

        old, new = change.old, change.new
        old_length = new_length = NULL
        old_bytes = new_bytes = b""
        if self._row is None:
            if old is not None:
                old_bytes = old.encode()
                size = len(old_bytes)
                old_length = PRESENT_LENGTHS[size] if size < SHORT else PRESENT + length(size)
            if new is not None:
                new_bytes = new.encode()
                size = len(new_bytes)
                new_length = PRESENT_LENGTHS[size] if size < SHORT else PRESENT + length(size)
        else:
            if old is not None:
                old_length, old_bytes = PRESENT, self._typed(old, "old")
            if new is not None:
                new_length, new_bytes = PRESENT, self._typed(new, "new")

        token = change.token
        if token is not self._token:
            self._token_bytes = NULL if token is None else self._token_record(token)
            self._token = token

        if change.snapshot is None and change.transaction is None and change.keyspace_id is None:
            extras = b"\x00\x00\x00"
        else:
            extras = self._extras(change)

        longs = self._longs
        relayed_at = change.relayed_at
        if 1 << 13 <= relayed_at < 1 << 63:
            # Differs from change to change, but mostly in its two low bytes.
            zigzag = relayed_at << 1
            low = bytes((zigzag & 0x7F | 0x80, zigzag >> 7 & 0x7F | 0x80))
            relayed_bytes = low + self._tails[zigzag >> 14]
        else:
            relayed_bytes = longs[relayed_at]
        size = len(event_id)
        return b"".join(
            (
                self._header,
                LENGTHS[size] if size < SHORT else length(size),
                event_id,
                self._starts[change.operation._value_, change.source, change.table],
                key_bytes,
                old_length,
                old_bytes,
                new_length,
                new_bytes,
                self._images[change.images._value_],
                self._token_bytes,
                extras,
                longs[change.resume_timestamp],
                longs[change.committed_at],
                relayed_bytes,
                self._attributes[tuple(change.attributes.items())] if change.attributes else b"\x00",
            )
        )

    def _start(self, start: tuple[str, str, str]) -> bytes:
        operation, source, table = start
        return self._operations[operation] + text(source) + text(table)

    def _token_record(self, token: EventToken) -> bytes:
        return b"".join(
            (
                PRESENT,
                self._longs[token.timestamp],
                self._texts[token.shard],
                text(token.position),
                NULL if token.origin is None else self._origin(token.origin),
            )
        )

    def _extras(self, change: Change) -> bytes:
        """Write snapshot, transaction and keyspace_id."""
        snapshot, transaction, keyspace_id = change.snapshot, change.transaction, change.keyspace_id
        written = NULL if snapshot is None else PRESENT + text(snapshot.id) + long(snapshot.as_of)
        if transaction is None:
            written += NULL
        else:
            if transaction.id != self._transaction_id:
                self._transaction_bytes = PRESENT + text(transaction.id)
                self._transaction_id = transaction.id
            order = transaction.order
            if transaction.last or not 0 <= order < SHORT:
                written += self._transaction_bytes + _write_int(order) + (b"\x01" if transaction.last else b"\x00")
            else:
                written += self._transaction_bytes + _ORDERS[order]
        return written + (NULL if keyspace_id is None else PRESENT + blob(keyspace_id))

    def _origin(self, origin: OriginToken) -> bytes:
        return PRESENT + self._longs[origin.timestamp] + self._texts[origin.shard] + text(origin.position)

    def _typed(self, image: Mapping[str, Any], which: str) -> bytes:
        assert self._row is not None
        if len(image) != len(self._row):
            # I8: an extra column would be dropped, a missing one would become null.
            known = {name for name, _ in self._row}
            odd = sorted(known.symmetric_difference(image))
            raise ValueError(f"the {which} image and the schema differ in columns {odd}")
        try:
            return self._write_row(image)
        except _FAULTS:
            return self._by_column(self._row, image, which)

    def _by_column(self, row: list[tuple[str, columns.Writer]], image: Mapping[str, Any], which: str) -> bytes:
        """Write ``image`` column by column. Raises ValueError, naming the column that cannot be carried."""
        written = []
        for name, write in row:
            try:
                written.append(write(image[name]))
            except KeyError:
                raise ValueError(f"the {which} image lacks column {name!r}") from None
            except ValueError as fault:
                raise ValueError(f"column {name!r} of the {which} image: {fault}") from fault
        return b"".join(written)

    def _refusal(self, change: Change, fault: Exception) -> Unencodable:
        at = f" at {change.token.position} of {change.token.shard}" if change.token else ""
        if change.snapshot is not None:
            at = f" in snapshot {change.snapshot.id}"
        refused = [image.reason for image in (change.old, change.new) if isinstance(image, Uncarriable)]
        shown = repr(dict(change.key)) if change.key is not None else "none"
        if len(shown) > 300:
            shown = shown[:300] + "..."
        message = (
            f"{change.source}: the {change.operation} of {change.table}, key {shown}{at}, cannot be carried"
            f" exactly: {refused[0] if refused else fault or type(fault).__name__}"
        )
        return Unencodable(message, in_key=not self._encodes_key(change))

    def _encodes_key(self, change: Change) -> bool:
        if change.key is None:
            return change.operation is Operation.TRUNCATE
        try:
            for name, write in self._key:
                write(change.key[name])
        except _FAULTS:
            return False
        return len(change.key) == len(self._key)


class _Memo(dict[Any, bytes]):
    """Caches what ``make`` returned, up to a bound (I11)."""

    def __init__(self, make: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, part: Any) -> bytes:
        made = self._make(part)
        if len(self) >= _CACHED:
            self.clear()
        self[part] = made
        return made


def _attributes(items: tuple[tuple[str, str], ...]) -> bytes:
    if not items:
        return b"\x00"
    pairs = [text(name) + text(value) for name, value in items]
    return length(len(pairs)) + b"".join(pairs) + b"\x00"
