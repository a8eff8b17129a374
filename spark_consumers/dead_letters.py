"""Records that are no changes: which of them are wrong, and the topic that keeps those.

The key of a dead letter is ``topic/partition/offset/consumer``, its value the record's, its headers say ``reason``
and ``consumer``. A batch that is applied again sends its dead letters again, under the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from relay.avro.framing import split
from relay.config import Config
from relay.errors import RelayError, Unavailable
from relay.kafka.topics import LARGEST_MESSAGE, SILENT_LOG
from spark_consumers.decode import DecodeStatus

_PATIENCE = 30.0  # seconds for one batch's letters
_ROOM = 4096  # bytes that a letter's key and headers may add to its value

_REASONS = {
    DecodeStatus.FRAMING: "unknown framing",
    DecodeStatus.DAMAGED: "not what its schema says",
}


class UnknownSchemas(RelayError):
    """Values name schemas that are not known yet. Nothing of the batch was applied: look again, then retry it."""

    def __init__(self, records: Sequence[RejectedRecord]) -> None:
        self.headers = {split(record.value)[0] for record in records}
        first = records[0]
        super().__init__(
            f"no schema is known for {len(records)} records, the first at {first.topic}[{first.partition}] "
            f"offset {first.offset}, whose value begins with {split(first.value)[0].hex()}"
        )


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that is no change."""

    status: DecodeStatus
    topic: str
    partition: int
    offset: int
    value: bytes

    @property
    def wrong(self) -> bool:
        return self.status in _REASONS


def refuse_unknown_schemas(records: Iterable[RejectedRecord]) -> None:
    """Raise ``UnknownSchemas`` if one of the records has a schema that is not known."""
    unknown = [record for record in records if record.status is DecodeStatus.SCHEMA]
    if unknown:
        raise UnknownSchemas(unknown)


class UndecodableRecords:
    """The topic ``<name>.dead_letters``, written by one consumer."""

    def __init__(self, config: Config, consumer: str) -> None:
        self._topic = config.internal("dead_letters")
        self._consumer = consumer
        self._producer = Producer(
            {
                **config.client(f"{consumer}-dead-letters"),
                "enable.idempotence": True,
                "acks": "all",
                "message.max.bytes": LARGEST_MESSAGE,
                "delivery.timeout.ms": int(_PATIENCE * 1000),
            },
            logger=SILENT_LOG,
        )
        self._failures: list[KafkaError] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.flush(0)

    def send(self, records: Iterable[RejectedRecord]) -> int:
        """Send those records that are wrong; return how many, once they are durable. Raises ``Unavailable``."""
        self._failures.clear()
        sent = 0
        for record in records:
            if record.wrong:
                sent += 1
                self._send(record)
        if sent and (self._producer.flush(_PATIENCE) or self._failures):
            why = self._failures[0].str() if self._failures else f"no answer within {_PATIENCE:g} s"
            raise Unavailable(f"dead letters cannot be written to {self._topic}: {why}")
        return sent

    def _send(self, record: RejectedRecord) -> None:
        key = f"{record.topic}/{record.partition}/{record.offset}/{self._consumer}".encode()
        size = LARGEST_MESSAGE - _ROOM
        parts = [record.value[at : at + size] for at in range(0, len(record.value), size)] or [b""]
        for number, part in enumerate(parts, 1):
            headers: dict[str, str | bytes | None] = {"reason": _REASONS[record.status], "consumer": self._consumer}
            if len(parts) > 1:
                headers["chunk"] = f"{number}/{len(parts)}"
            while not self._produced(key, part, headers):
                self._producer.poll(1.0)  # the queue is full (I11)

    def _produced(self, key: bytes, value: bytes, headers: dict[str, str | bytes | None]) -> bool:
        try:
            self._producer.produce(
                self._topic, value=value, key=key, headers=headers, partition=0, on_delivery=self._delivered
            )
        except BufferError:
            return False
        except KafkaException as error:
            raise Unavailable(f"dead letters cannot be written to {self._topic}: {error.args[0].str()}") from error
        self._producer.poll(0)
        return True

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)
