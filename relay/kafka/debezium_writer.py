"""Writes the changes of one table as Debezium's connectors do (``relay.avro.debezium``), with our partitions (I2)."""

import logging
from dataclasses import KW_ONLY, InitVar, dataclass, replace
from typing import Any, Literal, Protocol

import orjson

from relay.avro.debezium import DebeziumEncoder, SourceInfo, TypedKey
from relay.change import Change, Operation
from relay.config.per_table import NO_READS
from relay.errors import RelayError
from relay.kafka.dead_letters import RecordPlace, RecordSender, change_json
from relay.kafka.keys import KeyCodec
from relay.kafka.limits import Headers
from relay.kafka.topic_writer import TopicWriter
from relay.token import EventToken

log = logging.getLogger(__name__)


class Subjects(Protocol):
    """A schema registry; see ``relay.avro.schema_registry``."""

    def register(self, topic: str, schema: dict[str, Any], part: Literal["key", "value"] = "value") -> bytes: ...

    def newest_envelope(self, topic: str) -> bytes | None: ...


@dataclass(eq=False)
class DebeziumWriter(TopicWriter):
    """``origin``: what the changes say about their source. ``typed_key``: see `DebeziumEncoder`."""

    _: KW_ONLY
    origin: InitVar[SourceInfo]
    typed_key: InitVar[TypedKey] = dict

    def __post_init__(  # type: ignore[override]
        self, key: Literal["hash", "item"], schemas: Subjects, origin: SourceInfo, typed_key: TypedKey
    ) -> None:
        self.tombstones = True
        self._debezium = DebeziumEncoder(self.table, self.topic, origin, typed_key)
        if self.table.is_key_only:  # I12: the registry would refuse types without their details
            self._key_header, self._header = b"", schemas.newest_envelope(self.topic) or b""
        else:
            self._key_header = schemas.register(self.topic, self._debezium.key_schema, "key")
            self._header = schemas.register(self.topic, self._debezium.value_schema)
        self._compiled = None
        self._codec = KeyCodec(self.table, key)
        self._item_codec = KeyCodec(self.table, "item")
        self._token, self._token_header = None, ("token", b"")

    def _keys(self, change: Change) -> tuple[bytes, bytes]:
        return self._codec.hash_bytes(change.key or {}), self._key_header + self._debezium.key(change)

    def _encode(self, change: Change) -> bytes:
        if change.operation is Operation.READ:  # I7: a sink would replace newer rows with it
            raise RelayError(f"source {change.source}: reading table {change.table} alongside its stream {NO_READS}")
        if change.new is None and change.operation in (Operation.INSERT, Operation.UPDATE):
            raise RelayError(
                f"source {change.source}: the {change.operation} of {change.table}, event {change.event_id}, has no "
                "image of the item after it, which `envelope: debezium` needs: let the table's stream have "
                "NEW_AND_OLD_IMAGES or NEW_IMAGE, or use `envelope: change`"
            )
        return self._header + self._debezium.value(change)

    def _headers(self, change: Change) -> Headers:
        """Return the headers with the event id in quotes: Connect takes digits with one `e` for a number."""
        (name, _), *others = super()._headers(change)
        return [(name, orjson.dumps(change.event_id)), *others]

    def _token_bytes(self, token: EventToken) -> bytes:
        """Return the token as a text in JSON. Connect takes an object for a map, which Debezium's sink refuses."""
        return orjson.dumps(token.to_json_bytes().decode())

    def _stub(
        self, publisher: RecordSender, change: Change, place: RecordPlace, reason: str, detail: str
    ) -> tuple[bytes | None, int]:
        """Write a change as a dead letter. A deletion is published without its image, anything else not at all."""
        item_key = self._item_codec.kafka_key(change.key or {})
        stub = self._encode(replace(change, old=None)) if change.operation is Operation.DELETE else None
        if stub is not None:
            self._check_size(change, stub, place.key, place.headers)
        letters = self._letters_for(change, "not at all" if stub is None else "without its image", reason, detail)
        full = change_json(change, item_key)
        place = replace(place, headers=super()._headers(change))
        return stub, letters.send(
            publisher, change, full, place, item_key=item_key, reason=reason, detail=detail, encoding="json"
        )

    def _send_to_all(self, publisher: RecordSender, change: Change, partitions: range) -> None:
        """Send a TRUNCATE only to the first partition: in others, it would empty tables of sinks that have read on."""
        if not self._header:
            said = "topic %s has no schema and no records, so the TRUNCATE of %s is not sent"
            log.warning(said, self.topic, change.table)
            return
        value, headers = self._encode(change), self._headers(change)
        self._check_size(change, value, b"", headers)
        publisher.send(self.topic, value, None, 0, headers)  # type: ignore[arg-type]  # the only one without a key
