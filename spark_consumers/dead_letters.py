"""Records that carry no change, and the topic for records that cannot be decoded.

The key of a dead letter is ``topic/partition/offset/consumer``, the same if its batch is applied again. Its value is
the record's value, and its headers are ``reason``, ``consumer`` and perhaps ``detail``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from relay.avro.decode import WriterSchemas
from relay.avro.framing import split
from relay.config import Config
from relay.errors import RelayError, Unavailable
from relay.kafka.topics import LARGEST_MESSAGE, SILENT_LOG
from spark_consumers.records import DecodeStatus

_SEND_TIMEOUT = 30.0  # seconds for the dead letters of one batch
_KEY_AND_HEADERS = 4096  # bytes that a dead letter's key and headers may add to its value
_LONGEST_DETAIL = 500  # characters

_REASONS = {
    DecodeStatus.FRAMING: "unknown framing",
    DecodeStatus.DAMAGED: "not what its schema says",
    DecodeStatus.FOREIGN: "unknown schema",
    DecodeStatus.REFUSED: "refused by the table",
}


@dataclass(frozen=True, slots=True)
class NonChangeRecord:
    """A record that carries no change: a gap, an unknown schema, or bytes that cannot be decoded; or a refused one."""

    status: DecodeStatus
    topic: str
    partition: int
    offset: int
    value: bytes
    detail: str = ""

    @property
    def is_undecodable(self) -> bool:
        """Whether it belongs in the dead letters."""
        return self.status in _REASONS


class UnknownSchemas(RelayError):
    """Values name schemas that are not known yet. Read the schemas again, then retry the batch."""

    def __init__(self, records: Sequence[NonChangeRecord]) -> None:
        self.headers = {split(record.value)[0] for record in records}
        first = records[0]
        super().__init__(
            f"no schema is known for {len(records)} records; the first is at {first.topic}[{first.partition}] offset "
            f"{first.offset} and starts with {split(first.value)[0].hex()}: check the schemas topic or the registry"
        )


class DeadLetterTopic:
    """The topic ``<name>.dead_letters``. One consumer writes to it, from one thread at a time."""

    def __init__(self, config: Config, consumer: str, schemas: WriterSchemas) -> None:
        self._topic = config.internal("dead_letters")
        self._consumer = consumer
        self._schemas = schemas
        self._settings = {
            **config.client(f"{consumer}-dead-letters"),
            "enable.idempotence": True,
            "acks": "all",
            "message.max.bytes": LARGEST_MESSAGE,
            "delivery.timeout.ms": int(_SEND_TIMEOUT * 1000),
        }
        self._producer = Producer(self._settings, logger=SILENT_LOG)
        # Filled by delivery reports, which poll and flush deliver in the thread that sends.
        self._failures: list[KafkaError] = []

    def refuse_unknown_schemas(self, records: Sequence[NonChangeRecord]) -> None:
        """Raise ``UnknownSchemas`` if a record waits for a schema, or need not be given up; or ``Unavailable``."""
        unknown = [record for record in records if record.status is DecodeStatus.SCHEMA]
        foreign = {split(record.value)[0]: record for record in records if record.status is DecodeStatus.FOREIGN}
        # I1: the schema may have been published since it was given up.
        unknown += [record for header, record in foreign.items() if self._schemas.lookup(header) is not None]
        if unknown:
            raise UnknownSchemas(unknown)

    def send(self, records: Iterable[NonChangeRecord]) -> int:
        """Send the undecodable records; return their number once they are durable. Raises ``Unavailable``."""
        self._failures.clear()
        sent = 0
        try:
            for record in records:
                if record.is_undecodable:
                    sent += 1
                    self._send(record)
            if sent and (self._producer.flush(_SEND_TIMEOUT) or self._failures):
                why = self._failures[0].str() if self._failures else f"no answer within {_SEND_TIMEOUT:g} s"
                raise Unavailable(f"cannot write dead letters to topic {self._topic}: {why}")
        except Unavailable:
            # This producer's late reports would count for later letters, and after a fatal error it sends none.
            self._producer.purge()
            self._producer = Producer(self._settings, logger=SILENT_LOG)
            raise
        return sent

    def _send(self, record: NonChangeRecord) -> None:
        key = f"{record.topic}/{record.partition}/{record.offset}/{self._consumer}".encode()
        size = LARGEST_MESSAGE - _KEY_AND_HEADERS
        chunks = [record.value[start : start + size] for start in range(0, len(record.value), size)] or [b""]
        for number, chunk in enumerate(chunks, 1):
            headers: dict[str, str | bytes | None] = {"reason": _REASONS[record.status], "consumer": self._consumer}
            if record.detail:
                headers["detail"] = record.detail[:_LONGEST_DETAIL]
            if len(chunks) > 1:
                headers["chunk"] = f"{number}/{len(chunks)}"
            while not self._enqueue(key, chunk, headers):
                self._producer.poll(1.0)  # the queue is full (I11)

    def _enqueue(self, key: bytes, value: bytes, headers: dict[str, str | bytes | None]) -> bool:
        """Hand one message to the producer; return False if its queue is full."""
        try:
            self._producer.produce(
                self._topic, value=value, key=key, headers=headers, partition=0, on_delivery=self._on_delivery
            )
        except BufferError:
            return False
        except KafkaException as error:
            raise Unavailable(f"cannot write dead letters to topic {self._topic}: {error.args[0].str()}") from error
        self._producer.poll(0)
        return True

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)
