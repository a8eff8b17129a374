"""Where schemas are published before they are used, and found again by readers.

`TopicSchemas` keeps them in the compacted topic ``<name>.schemas``, `RegistrySchemas` in a Confluent Schema
Registry; `open_schemas` chooses by the config. The topic's records (key: the fingerprint's 8 bytes as 16
hexadecimal characters, in the order of the header; value: the schema's JSON) are a contract with readers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError

from relay.avro.evolution import differences, following, of_one_table, same
from relay.avro.framing import (
    SINGLE_OBJECT_HEADER,
    SINGLE_OBJECT_MARK,
    confluent_header,
    fingerprint,
    schema_id,
    single_object_header,
)
from relay.config_fields import redacted
from relay.errors import RelayError, Unavailable

if TYPE_CHECKING:
    from relay.config import Config

_PATIENCE = 30.0  # seconds for one read to the end or one write
_REGISTRY_TIMEOUT = 10  # seconds for one request
_PARTITION = 0  # the topic has one, so that its records have one order
_LOG = logging.getLogger("relay.kafka.client")
log = logging.getLogger(__name__)
T = TypeVar("T")

COMPATIBILITY = "BACKWARD"
"""Of the subjects that the relay creates: whoever has the newest schema can read what older ones wrote."""


def open_schemas(config: Config) -> TopicSchemas | RegistrySchemas:
    """Open what the config says: the registry where there is one, else the schemas topic."""
    if config.schema_registry is not None:
        return RegistrySchemas(config.schema_registry.url, config.schema_registry.on_incompatible)
    return TopicSchemas(config.client("schemas"), config.internal("schemas"))


class TopicSchemas:
    """The schemas in a compacted topic, which has to exist. May be used by several threads."""

    def __init__(self, client: Mapping[str, Any], topic: str, patience: float = _PATIENCE) -> None:
        self._client = dict(client)
        self._topic = topic
        self._patience = patience
        self._known: dict[bytes, dict[str, Any]] = {}
        self._next = 0  # the first offset that was not read
        self._lock = threading.RLock()
        self._consumer = Consumer(
            {
                **self._client,
                "group.id": f"{topic}.reader",  # demanded, but never joined and never committed to
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
                # The broker says that this is the end only once it has waited for more.
                "fetch.wait.max.ms": 20,
            },
            logger=_LOG,
        )

    def __repr__(self) -> str:
        return f"<TopicSchemas[{self._topic}, {len(self._known)} known]>"

    def register(self, topic: str, schema: Mapping[str, Any]) -> bytes:
        """Publish a schema, unless it is there, and give the header of its values.

        Returns once it is durable, so before and outside any transaction that uses it. Raises `RelayError` if
        its fingerprint is held by another schema, `Unavailable` if the topic cannot be read or written.
        """
        mine = dict(schema)
        mark = fingerprint(mine)
        header = single_object_header(mark)
        with self._lock:
            self.refresh()
            published = header not in self._known
            if published:
                mine = following(mine, [one for one in self._known.values() if of_one_table(one, mine)])
                self._publish(mark, mine)
                # Read it back: of two that register at once, the first in the topic holds the fingerprint.
                self.refresh()
            holder = self._known[header]
            if not same(holder, mine):
                if published:
                    # Compaction keeps the last record of a key: put the holder's back behind mine.
                    self._publish(mark, holder)
                raise RelayError(  # I8
                    f"the schema of {topic} has the fingerprint {mark.hex()}, which another schema in"
                    f" {self._topic} holds: values of the two could not be told apart"
                )
        return header

    def lookup(self, header: bytes) -> dict[str, Any] | None:
        """Give the schema of values with this header; reads on to the topic's end once if it is not known."""
        known = self._known.get(header)
        if known is None and header.startswith(SINGLE_OBJECT_MARK) and len(header) == SINGLE_OBJECT_HEADER:
            self.refresh()
            known = self._known.get(header)
        return known

    def all(self) -> dict[bytes, dict[str, Any]]:
        """Give the schemas known so far, by header."""
        with self._lock:
            return dict(self._known)

    def refresh(self) -> None:
        """Read the topic on to its end."""
        with self._lock:
            if self._next == 0:
                self._look_for_topic()
            # Assigning anew makes the consumer say once more where the end is.
            self._consumer.assign([TopicPartition(self._topic, _PARTITION, self._next)])
            try:
                self._read_to_end()
            finally:
                self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()

    def _look_for_topic(self) -> None:
        # A consumer waits in silence for a topic that is not there.
        try:
            found = self._consumer.list_topics(self._topic, timeout=self._patience).topics[self._topic]
        except KafkaException as fault:
            raise self._unavailable(f"cannot be looked for: {fault.args[0].str()}") from fault
        if found.error is not None:
            if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise self._unavailable("does not exist: `relay run` creates it")
            raise self._unavailable(f"cannot be read: {found.error.str()}")

    def _read_to_end(self) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            message = self._consumer.poll(0.2)
            if message is None:
                if time.monotonic() > deadline:
                    raise self._unavailable(f"did not answer within {self._patience:g} s")
                continue
            error = message.error()
            if error is None:
                self._take(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif not error.retriable() or time.monotonic() > deadline:
                raise self._unavailable(f"cannot be read: {error.str()}")

    def _take(self, message: Message) -> None:
        offset, key, value = message.offset(), message.key(), message.value()
        if offset is None or key is None:
            raise RelayError(f"the topic {self._topic} holds a record without a key at offset {offset}")
        if value is not None:
            try:
                schema = orjson.loads(value)
                mark = bytes.fromhex(key.decode())
                if fingerprint(schema) != mark:
                    raise ValueError("the schema has another fingerprint")
                header = single_object_header(mark)
            except Exception as fault:
                # What a parser makes of a schema that is none is its own affair.
                raise RelayError(
                    f"the topic {self._topic} holds no schema at offset {offset}, under key {key!r}: {fault}"
                ) from fault
            # The first holder keeps its fingerprint: its values are out, those of a second never were.
            self._known.setdefault(header, schema)
        self._next = offset + 1

    def _publish(self, mark: bytes, schema: dict[str, Any]) -> None:
        failures: list[KafkaError] = []
        producer = Producer(
            {
                **self._client,
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": int(self._patience * 1000),
            },
            logger=_LOG,
        )

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            producer.produce(
                self._topic,
                key=mark.hex().encode(),
                value=orjson.dumps(schema),
                partition=_PARTITION,
                on_delivery=delivered,
            )
            left = producer.flush(self._patience + 5)
        except KafkaException as fault:
            raise self._unavailable(f"cannot be written: {fault}") from fault
        if left or failures:
            reason = failures[0].str() if failures else "no answer"
            raise self._unavailable(f"cannot be written: {reason}")

    def _unavailable(self, what: str) -> Unavailable:
        return Unavailable(f"the topic {self._topic} at {self._client.get('bootstrap.servers')} {what}")


@dataclass(frozen=True, slots=True)
class _Version:
    number: int
    id: int
    schema: dict[str, Any]


class RegistrySchemas:
    """The schemas in a registry that speaks Confluent's API, under the subject ``<topic>-value``.

    ``on_incompatible``: ``fail`` or ``register``, what to do when the registry refuses the next version of a subject.
    """

    def __init__(
        self, url: str, on_incompatible: str = "fail", *, timeout: float = _REGISTRY_TIMEOUT, retries: int = 2
    ) -> None:
        self._shown = redacted(url)
        self._on_incompatible = on_incompatible
        self._client = SchemaRegistryClient({"url": url, "timeout": timeout, "max.retries": retries})
        self._known: dict[bytes, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"<RegistrySchemas[{self._shown}, {len(self._known)} known]>"

    def register(self, topic: str, schema: Mapping[str, Any]) -> bytes:
        """Register a schema, unless the subject has it, and give the header of its values.

        Raises `RelayError` if the registry refuses it, naming what is different from the version before, or gives
        back another schema under its id; `Unavailable` if the registry cannot be reached.
        """
        subject = f"{topic}-value"
        with self._asking(f"register a schema under {subject}"):
            versions = self._versions(subject)
            held = next((version for version in reversed(versions) if same(version.schema, schema)), None)
            if held is None:
                held = self._add(topic, subject, versions, schema)
        if not same(held.schema, schema):
            raise RelayError(  # I8
                f"the schema registry at {self._shown} holds another schema under id {held.id}, which it gave for"
                f" {subject}: values of the two could not be told apart"
            )
        header = confluent_header(held.id)
        self._known[header] = held.schema
        return header

    def subject(self, topic: str) -> tuple[int, str | None]:
        """Return how many versions the subject of ``topic`` has, and its compatibility. Raises `Unavailable`."""
        subject = f"{topic}-value"
        with self._asking(f"look up {subject}"):
            return len(self._numbers(subject)), self._level(subject)

    def lookup(self, header: bytes) -> dict[str, Any] | None:
        """Give the schema of values with this header, from the registry the first time."""
        known = self._known.get(header)
        number = schema_id(header)
        if known is not None or number is None:
            return known
        with self._asking(f"look up schema id {number}"):
            try:
                text = self._client.get_schema(number).schema_str
            except SchemaRegistryError as fault:
                if fault.http_status_code == 404:
                    return None
                raise
        if text is None:
            return None
        schema: dict[str, Any] = orjson.loads(text)
        return self._known.setdefault(header, schema)

    def all(self) -> dict[bytes, dict[str, Any]]:
        """Give the schemas known so far, by header."""
        return dict(self._known)

    def refresh(self) -> None:
        """Do nothing: an id means one schema for ever, and `lookup` asks for those that are not known."""

    def close(self) -> None:
        self._client.close()

    def _add(self, topic: str, subject: str, versions: Sequence[_Version], schema: Mapping[str, Any]) -> _Version:
        """Register the next version of a subject, or its first."""
        mine = following(schema, [version.schema for version in versions])
        candidate = Schema(orjson.dumps(mine).decode(), "AVRO")
        level = self._level(subject)
        if not versions:
            if level is None:
                # Only where nobody has decided: what others said about a subject is left alone.
                self._client.set_compatibility(subject, COMPATIBILITY)
            number = self._client.register_schema(subject, candidate)
        elif self._accepts(subject, candidate, level):
            number = self._client.register_schema(subject, candidate)
        else:
            problem = (
                f"the schema of the topic {topic} has changed so that the registry at {self._shown} refuses it after"
                f" version {versions[-1].number} of the subject {subject}, compatibility {level or 'by default'}:"
                f" {'; '.join(differences(versions[-1].schema, mine))}"
            )
            if self._on_incompatible == "fail":
                raise RelayError(
                    f"{problem}. Nothing was published with it. Consumers that read with one schema could not go on:"
                    " undo the change, or let them read each value with its writer's schema, as ours do, and set"
                    " `schema_registry: {on_incompatible: register}`"
                )
            number = self._register_all_the_same(subject, candidate, level, problem)
        # The client remembers what it sent; what counts is what readers will be given.
        self._client.clear_caches()  # type: ignore[no-untyped-call]
        return _Version(len(versions) + 1, number, _parsed(self._client.get_schema(number)))

    def _accepts(self, subject: str, candidate: Schema, level: str | None) -> bool:
        """Ask, before anything is published with it, whether a schema can be the next version of a subject."""
        if level is not None and level.endswith("_TRANSITIVE"):
            return self._client.test_compatibility_all_versions(subject, candidate)
        return self._client.test_compatibility(subject, candidate)

    def _register_all_the_same(self, subject: str, candidate: Schema, level: str | None, problem: str) -> int:
        log.warning(
            "%s. on_incompatible is register: setting the compatibility of %s to NONE, registering, setting it back",
            problem,
            subject,
        )
        self._client.set_compatibility(subject, "NONE")
        try:
            return self._client.register_schema(subject, candidate)
        finally:
            if level in (None, "NONE"):  # what refused it is not the subject's own, so it had none
                self._client.delete_config(subject)
            else:
                self._client.set_compatibility(subject, level)

    def _versions(self, subject: str) -> list[_Version]:
        """Return the versions of a subject, oldest first."""
        found = [self._client.get_version(subject, number) for number in self._numbers(subject)]
        return [
            _Version(one.version, one.schema_id, _parsed(one.schema))
            for one in found
            if one.version is not None and one.schema_id is not None
        ]

    def _numbers(self, subject: str) -> list[int]:
        return sorted(self._or_none(self._client.get_versions, subject) or [])

    def _level(self, subject: str) -> str | None:
        """Return the compatibility of a subject, None if it has none of its own."""
        return self._or_none(self._client.get_compatibility, subject)

    @staticmethod
    def _or_none(ask: Callable[[str], T], subject: str) -> T | None:
        try:
            return ask(subject)
        except SchemaRegistryError as fault:
            if fault.http_status_code == 404:
                return None
            raise

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except SchemaRegistryError as fault:
            if fault.http_status_code in (409, 422):
                raise RelayError(
                    f"the schema registry at {self._shown} refuses to {what}: {redacted(str(fault))}"
                ) from fault
            raise Unavailable(
                f"the schema registry at {self._shown} fails to {what}: {redacted(str(fault))}"
            ) from fault
        except httpx.HTTPError as fault:
            raise Unavailable(
                f"the schema registry at {self._shown} does not answer, to {what}: {redacted(repr(fault))}"
            ) from fault


def _parsed(schema: Schema | None) -> dict[str, Any]:
    """Return a schema as it stands in the registry; of somebody else's there may be any under our subject."""
    found = orjson.loads((schema and schema.schema_str) or "null")
    return found if isinstance(found, dict) else {"type": found}
