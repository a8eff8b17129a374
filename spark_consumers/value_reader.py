"""Reads Kafka values to what a cache needs of their changes, in plain Python, for both engines of its consumer.

Only a value's columns in cache keys are decoded, by the reader of the schema that its header names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from relay.avro.decode import Undecodable, WriterSchemas, part_decoder
from relay.avro.framing import CONFLUENT_MARK, SINGLE_OBJECT_HEADER, UnknownFraming, split
from relay.cache.keys import CacheRules, ReducedChange
from spark_consumers.dead_letters import NonChangeRecord
from spark_consumers.records import DecodeStatus, Layout
from spark_consumers.reduced_changes import decoded_reader, image_columns

KafkaRecord = tuple[str, int, int, bytes | None]
"""Topic, partition, offset, value."""


class ValueReader:
    """Reads values that any of ``schemas`` wrote. Threads may share it if they may share these.

    ``registry``: whether values may have the framing of a schema registry. ``others``: the topics whose records are not
    changes, and what these are.
    """

    def __init__(
        self, schemas: WriterSchemas, rules: CacheRules, *, registry: bool, others: Mapping[str, DecodeStatus]
    ) -> None:
        self._schemas = schemas
        self._rules = rules
        self._registry = registry
        self._others = others
        # By header. Any thread adds one, in one step; two for one header are the same.
        self._readers: dict[bytes, Callable[[bytes], ReducedChange]] = {}

    def read(
        self, records: Iterable[KafkaRecord], given_up: Collection[bytes] | None = None
    ) -> tuple[list[ReducedChange], list[NonChangeRecord]]:
        """Return the changes in order, and the other records.

        ``given_up``: the headers whose schemas are no longer waited for; None means all. Raises what ``schemas.lookup``
        raises.
        """
        changes: list[ReducedChange] = []
        others: list[NonChangeRecord] = []
        unknown: set[bytes] = set()
        readers, apart = self._readers, self._others
        found: ReducedChange | DecodeStatus
        for topic, partition, offset, value in records:
            # Nearly all are such, and take a fifth less here than by `_read`.
            reader = readers.get(value[:SINGLE_OBJECT_HEADER]) if value is not None and topic not in apart else None
            try:
                found = reader(value[SINGLE_OBJECT_HEADER:]) if reader and value else self._read(topic, value, unknown)
            except Undecodable:
                found = DecodeStatus.DAMAGED
            if isinstance(found, ReducedChange):
                changes.append(found)
                continue
            value = value or b""
            if found is DecodeStatus.SCHEMA:
                header = split(value)[0]
                if given_up is None or header in given_up:
                    found = DecodeStatus.FOREIGN
                else:
                    value = header  # there may be a backlog of them
            others.append(NonChangeRecord(found, topic, partition, offset, value))
        return changes, others

    def _read(self, topic: str, value: bytes | None, unknown: set[bytes]) -> ReducedChange | DecodeStatus:
        """Return the change in a value, or why there is none. Raises ``Undecodable``.

        ``unknown``: the headers whose schemas were looked up, and are not known.
        """
        if topic in self._others:
            return self._others[topic]
        if value is None:
            return DecodeStatus.TOMBSTONE
        if value.startswith(CONFLUENT_MARK) and not self._registry:
            return DecodeStatus.FRAMING
        try:
            header, body = split(value)
            reader = self._readers.get(header)
            if reader is None and header not in unknown:
                reader = self._open(header)
            if reader is not None:
                return reader(body)
        except UnknownFraming:
            return DecodeStatus.FRAMING
        unknown.add(header)  # a look-up reads all schemas again
        return DecodeStatus.SCHEMA

    def _open(self, header: bytes) -> Callable[[bytes], ReducedChange] | None:
        """Return the reader of the bodies behind a header, or None if its schema is not known."""
        schema = self._schemas.lookup(header)
        if schema is None:
            return None
        layout = Layout.of(schema)
        decode = part_decoder(schema, image_columns(layout, self._rules))
        reduce = decoded_reader(layout, self._rules)
        self._readers[header] = reader = lambda body: reduce(decode(body))
        return reader
