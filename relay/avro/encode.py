"""Encoding of a change to the bytes of its Kafka value, in Python: what the compiled core leaves, and refusals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from relay.avro import columns
from relay.avro.columns import NULL, PRESENT, blob, long, text
from relay.avro.schema import columns_of_key, columns_of_row
from relay.change import MARK, Change, Operation, Snapshot, Transaction, Uncarriable, refusal
from relay.errors import RelayError
from relay.token import EventToken, OriginToken

T = TypeVar("T")

_write_int = columns.writer("int")
FAULTS = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


class Unencodable(RelayError):
    """The change cannot be carried exactly (I8). Publish it without images, and in full among the dead letters.

    ``in_key``: even its key cannot be encoded, so it cannot be published at all: stop.
    """

    def __init__(self, message: str, in_key: bool) -> None:
        super().__init__(message)
        self.in_key = in_key


class ChangeEncoder:
    """Encodes the changes of a table. ``schema``: a `change_schema`. ``header``: what its registration returned."""

    def __init__(self, schema: Mapping[str, Any], header: bytes) -> None:
        fields = {field["name"]: field["type"] for field in schema["fields"]}
        self._header = header
        key, row = columns_of_key(schema), columns_of_row(schema)
        self._key = [(name, columns.writer(kind)) for name, kind in key]
        self._row: list[tuple[str, columns.Writer]] | None = None
        if row is not None:
            self._row = [(name, columns.nullable(columns.writer(kind))) for name, kind in row]
        self._operations: list[str] = fields["operation"]["symbols"]
        self._images: list[str] = fields["images"]["symbols"]

    def encode(self, change: Change) -> bytes:
        """Return the header and the Avro body. Raises `Unencodable`, naming the key and the position."""
        try:
            fields = (
                text(change.event_id),
                long(self._operations.index(change.operation)),
                text(change.source),
                text(change.table),
                self._key_bytes(change),
                optional(change.old, lambda image: self._image(image, "old")),
                optional(change.new, lambda image: self._image(image, "new")),
                long(self._images.index(change.images)),
                optional(change.token, _token),
                optional(change.snapshot, _snapshot),
                optional(change.transaction, _transaction),
                optional(change.keyspace_id, blob),
                long(change.resume_timestamp),
                long(change.committed_at),
                long(change.relayed_at),
                _attributes(change.attributes),
            )
        except FAULTS as fault:
            raise self._refusal(change, fault) from fault
        return self._header + b"".join(fields)

    def _key_bytes(self, change: Change) -> bytes:
        key = change.key
        if key is None:
            if change.operation is Operation.TRUNCATE or MARK in change.attributes:
                return NULL
            raise ValueError("it has no key: only a TRUNCATE and the marks of a snapshot may have none")
        if len(key) != len(self._key):
            raise ValueError(f"the change's key columns are {sorted(key)}, but the schema has others")
        return PRESENT + b"".join([write(key[name]) for name, write in self._key])

    def _image(self, image: Any, which: str) -> bytes:
        if self._row is None:
            return text(image)
        return row_bytes(self._row, image, which)

    def _refusal(self, change: Change, fault: Exception) -> Unencodable:
        refused = [image.reason for image in (change.old, change.new) if isinstance(image, Uncarriable)]
        message = refusal(change, refused[0] if refused else fault)
        try:
            self._key_bytes(change)
        except FAULTS:
            return Unencodable(message, in_key=True)
        return Unencodable(message, in_key=False)


def row_bytes(row: Sequence[tuple[str, columns.Writer]], image: Mapping[str, Any], which: str) -> bytes:
    """Write the columns of an image. Raises ValueError, naming the column that cannot be carried."""
    if len(image) != len(row):
        # I8: an extra column would be dropped, a missing one would become null.
        odd = sorted({name for name, _ in row}.symmetric_difference(image))
        raise ValueError(f"the {which} image and the schema differ in columns {odd}")
    written = []
    for name, write in row:
        try:
            written.append(write(image[name]))
        except KeyError:
            raise ValueError(f"the {which} image lacks column {name!r}") from None
        except FAULTS as fault:
            raise ValueError(f"column {name!r} of the {which} image: {fault}") from fault
    return b"".join(written)


def optional(value: T | None, write: Callable[[T], bytes]) -> bytes:
    return NULL if value is None else PRESENT + write(value)


def _token(token: EventToken) -> bytes:
    return _place(token) + optional(token.origin, _place)


def _place(token: EventToken | OriginToken) -> bytes:
    return long(token.timestamp) + text(token.shard) + text(token.position)


def _snapshot(snapshot: Snapshot) -> bytes:
    return text(snapshot.id) + long(snapshot.as_of)


def _transaction(transaction: Transaction) -> bytes:
    return text(transaction.id) + _write_int(transaction.order) + (b"\x01" if transaction.last else b"\x00")


def _attributes(attributes: Mapping[str, str]) -> bytes:
    if not attributes:
        return b"\x00"
    pairs = [text(name) + text(value) for name, value in attributes.items()]
    return long(len(pairs)) + b"".join(pairs) + b"\x00"


def with_attribute(value: bytes, name: str, content: str) -> bytes:
    """Return the framed value of a change with one more attribute."""
    # Attributes are its last field, and an Avro map ends with an empty block.
    return value[:-1] + _attributes({name: content})
