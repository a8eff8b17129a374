"""Changes of one table as records of one topic: value, key, partition and headers.

The partition is always murmur2 of the hash key's bytes, set explicitly, whatever the record's key is (I2). What
cannot be published whole is published all the same, as a stub in its place, and kept whole beside (I8).
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Literal, Protocol

from relay.avro.encode import ChangeEncoder, Unencodable
from relay.avro.schema import change_schema
from relay.change import REDRIVEN, Change, Images, Operation
from relay.errors import RelayError
from relay.kafka.dead_letters import NOT_ENCODABLE, TOO_LARGE, DeadLetterWriter, RecordPlace, Sends, change_json
from relay.kafka.keys import KeyCodec, Partitioner
from relay.kafka.limits import Headers, record_size
from relay.kafka.topics import LARGEST_MESSAGE
from relay.table import TableSchema
from relay.token import EventToken

log = logging.getLogger(__name__)

# More than anything but value and key can take of a record, unless its token is long.
_ROOM = 1024


class Schemas(Protocol):
    """Where schemas are published: see ``relay.avro.registry``."""

    def register(self, topic: str, schema: dict[str, object]) -> bytes: ...


class TopicWriter:
    """Encodes and sends the changes of one table.

    ``tombstones``: send a null value after each DELETE. ``largest``: bytes of the largest record that the topic takes.
    ``letters``: where what cannot be published whole is kept; without it such a change is an error.
    ``on_unencodable``: of changes that Avro cannot hold exactly.
    """

    def __init__(
        self,
        table: TableSchema,
        topic: str,
        partitions: int,
        key: Literal["hash", "item"],
        schemas: Schemas,
        *,
        tombstones: bool = False,
        largest: int = LARGEST_MESSAGE,
        letters: DeadLetterWriter | None = None,
        on_unencodable: Literal["fail", "dead_letter"] = "fail",
    ) -> None:
        self.table = table
        self.topic = topic
        self.partitions = partitions
        self.tombstones = tombstones
        self.largest = largest
        # How many changes were kept among the dead letters.
        self.kept = 0
        self.letters = letters
        self.on_unencodable = on_unencodable
        schema = change_schema(table)
        # Published and committed before, and outside, the transaction that first uses it.
        self._encoder = ChangeEncoder(schema, schemas.register(topic, schema))
        self._codec = KeyCodec(table, key)
        self._partition = Partitioner(partitions)
        self._item_codec = KeyCodec(table, "item")
        # All changes of a transaction have one token.
        self._token: EventToken | None = None
        self._token_header: tuple[str, bytes] = ("token", b"")

    def __repr__(self) -> str:
        return f"<TopicWriter[{self.table.table} -> {self.topic}]>"

    def send(self, publisher: Sends, change: Change, resume_timestamp: int) -> int:
        """Send ``change`` in the open transaction; return the bytes of all values sent.

        Raises ``RelayError`` for a change that cannot be published even as a stub, or is not to be.
        """
        if change.key is None:
            raise RelayError(f"{self.topic}: change {change.event_id} has no key")
        hash_bytes, key = self._codec.both(change.key)
        number = self._partition[hash_bytes]
        headers = self._headers(change, resume_timestamp)
        beside = 0
        try:
            value = self._encoder.encode(change)
            size = len(value) + len(key)
            if size + _ROOM > self.largest and (size := record_size(value, key, headers)) > self.largest:
                value, beside = self._set_aside(publisher, change, RecordPlace(self.topic, number, key, headers), size)
        except Unencodable as fault:
            value, beside = self._refused(publisher, change, RecordPlace(self.topic, number, key, headers), fault)
        publisher.send(self.topic, value, key, number, headers)
        if self.tombstones and change.operation is Operation.DELETE:
            publisher.send(self.topic, None, key, number, headers)
        return len(value) + beside

    def send_everywhere(self, publisher: Sends, change: Change, resume_timestamp: int) -> None:
        """Send ``change``, which concerns no single item, to every partition of the topic."""
        headers = self._headers(change, resume_timestamp)
        value = self._encoder.encode(change)
        for number in range(self.partitions):
            # No item has this key, and a compacted topic takes no record without one.
            publisher.send(self.topic, value, change.event_id.encode(), number, headers)

    def _headers(self, change: Change, resume_timestamp: int) -> Headers:
        change.resume_timestamp = resume_timestamp
        change.relayed_at = time.time_ns() // 1000
        headers: Headers = [("event_id", change.event_id.encode())]
        token = change.token
        if token is not None:
            if token is not self._token:
                self._token, self._token_header = token, ("token", token.to_json_bytes())
            headers.append(self._token_header)
        return headers

    def _set_aside(self, publisher: Sends, change: Change, place: RecordPlace, size: int) -> tuple[bytes, int]:
        """Keep a change of ``size`` bytes whole among the dead letters. Return its stub, and the bytes kept."""
        whole = self._encoder.encode(_whole(change))
        detail = f"{size} bytes; {self.topic} takes {self.largest}"
        return self._stub(change, place), self._keep(publisher, change, whole, place, TOO_LARGE, detail, "avro")

    def _refused(self, publisher: Sends, change: Change, place: RecordPlace, fault: Unencodable) -> tuple[bytes, int]:
        """Do with a change that Avro cannot hold what the config says. Return as ``_set_aside``."""
        if fault.in_key:
            raise fault
        if self.on_unencodable == "fail":
            raise Unencodable(
                f"{fault}. Nothing was skipped. Set `on_unencodable: dead_letter` on the source to publish such a "
                "change without its images, and to keep it whole among the dead letters.",
                in_key=False,
            ) from fault
        whole = change_json(_whole(change), self._item_key(change))
        return self._stub(change, place), self._keep(publisher, change, whole, place, NOT_ENCODABLE, str(fault), "json")

    def _stub(self, change: Change, place: RecordPlace) -> bytes:
        stub = self._encoder.encode(replace(change, old=None, new=None, images=Images.OMITTED))
        size = record_size(stub, place.key, place.headers)
        if size > self.largest:
            raise RelayError(
                f"{change.source}: the {change.operation} of {change.table}, event {change.event_id}, takes {size} "
                f"bytes without its images, and {self.topic} takes {self.largest}: raise the topic's "
                "max.message.bytes, or the producer's message.max.bytes"
            )
        return stub

    def _keep(
        self,
        publisher: Sends,
        change: Change,
        whole: bytes,
        place: RecordPlace,
        reason: str,
        detail: str,
        encoding: Literal["avro", "json"],
    ) -> int:
        if self.letters is None:
            raise RelayError(f"{self.topic}: change {change.event_id} cannot be published: {reason}: {detail}")
        log.warning(
            "source %s: change %s of %s is published without its images and kept among the dead letters: %s: %s",
            change.source,
            change.event_id,
            change.table,
            reason,
            detail,
        )
        self.kept += 1
        key = self._item_key(change)
        return self.letters.send(
            publisher, change, whole, place, item_key=key, reason=reason, detail=detail, encoding=encoding
        )

    def _item_key(self, change: Change) -> bytes:
        return self._item_codec.kafka_key(change.key or {})


def _whole(change: Change) -> Change:
    """Return the change as it will be sent again: it says that its stub came before."""
    return replace(change, attributes={**change.attributes, REDRIVEN: "true"})
