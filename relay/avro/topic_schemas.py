"""The schemas in the compacted topic ``<name>.schemas``.

Its records (key: the fingerprint's 8 bytes as 16 hexadecimal characters, in the order of the header; value: the
schema's JSON) are a contract with readers.
"""

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from relay.avro.evolution import following, same, table_of
from relay.avro.framing import SINGLE_OBJECT_HEADER, SINGLE_OBJECT_MARK, fingerprint, single_object_header
from relay.errors import NoAnswer, RelayError, Unavailable, group_refused

_PATIENCE = 30.0  # seconds without progress until a read to the end, or one write, fails
_STEP = 2.0  # seconds: a signal is handled between two calls of the client
_PARTITION = 0  # the topic has only one, so that its records are ordered
_LOG = logging.getLogger("relay.kafka.client")
_FOREIGN = "only the relay may write to it. Delete the record, and stop the program that wrote it"


class TopicSchemas:
    """The schemas in a compacted topic, which has to exist. Thread-safe.

    A thread that needs the broker waits up to ``patience`` seconds for a thread that is reading. `all`, and `lookup` of
    a known schema, never wait.
    """

    def __init__(self, client: Mapping[str, Any], topic: str, patience: float = _PATIENCE) -> None:
        self._client = dict(client)
        self._topic = topic
        self.place = f"topic {topic}"
        self._group = f"{topic}.reader"  # required, but the group is never joined or committed to
        self._patience = patience
        # Shared by the threads: entries are only added, each in one step.
        self._known: dict[bytes, dict[str, Any]] = {}
        # Used only by the thread whose turn it is to read.
        self._turn = threading.Lock()
        self._next = 0  # the first offset that was not yet read
        # Set by the thread that closes: the client must not be closed while another thread waits in it.
        self._closed = False
        self._answered = -1  # the number of the last request before the last complete read
        # Shared; each number is taken in one step. It orders requests and reads.
        self._questions = itertools.count()
        self._consumer = Consumer(
            {
                **self._client,
                "group.id": self._group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
                # The broker waits this long for more records before it reports the end.
                "fetch.wait.max.ms": 20,
            },
            logger=_LOG,
        )

    def lacks(self, wanted: Sequence[tuple[str, Mapping[str, Any]]]) -> list[bool]:
        """Return, for each topic and schema, whether its table has no known schema. Raises as `refresh` does."""
        self.refresh()
        known = {table_of(schema) for schema in self.all().values()}
        return [table_of(schema) not in known for _, schema in wanted]

    def register(self, topic: str, schema: Mapping[str, Any]) -> bytes:
        """Publish a schema unless the topic has it, and return the header of its values.

        Returns once the schema is durable, so call it before, and outside, any transaction that uses it. Raises
        `RelayError` if another schema has its fingerprint, `Unavailable` if the topic cannot be read or written.
        """
        mine = dict(schema)
        mark = fingerprint(mine)
        header = single_object_header(mark)
        if header not in self._known:  # the first holder of a fingerprint never changes
            self.refresh()
        published = header not in self._known
        if published:
            mine = following(mine, [one for one in self.all().values() if table_of(one) == table_of(mine)])
            self._publish(mark, mine)
            # Read it back: if two processes register at once, the first in the topic holds the fingerprint.
            self.refresh()
        holder = self._known[header]
        if not same(holder, mine):
            if published:
                # Compaction keeps the last record of a key: write the holder's record again after mine.
                self._publish(mark, holder)
            raise RelayError(  # I8
                f"the schema of {topic} has the fingerprint {mark.hex()}, and so has another schema in the topic"
                f" {self._topic}: readers could not tell which of the two wrote a value. Rename one of the table's"
                " columns, or relay the table under another source name."
            )
        return header

    def lookup(self, header: bytes) -> dict[str, Any] | None:
        """Return the schema of values with this header. If it is unknown, read the topic to its end first."""
        known = self._known.get(header)
        if known is None and header.startswith(SINGLE_OBJECT_MARK) and len(header) == SINGLE_OBJECT_HEADER:
            self.refresh()
            known = self._known.get(header)
        return known

    def all(self) -> dict[bytes, dict[str, Any]]:
        return dict(self._known)

    def learn(self, topics: Iterable[str]) -> None:
        """Look up the schemas of all values now on ``topics``. Raises as `refresh` does."""
        self.refresh()

    def refresh(self) -> None:
        """Read the topic on to its end. Raises `Unavailable`, and `RelayError` for a record that is not a schema."""
        asked = next(self._questions)
        if not self._turn.acquire(timeout=self._patience):
            raise NoAnswer(self._named(f"was not read to its end by another thread within {self._patience:g} s"))
        try:
            if self._answered > asked:
                return  # by a read that began after this request: one read answers all waiting threads
            answered = next(self._questions)
            if self._next == 0:
                self._look_for_topic()
            # Assigning again makes the consumer report the end again.
            self._consumer.assign([TopicPartition(self._topic, _PARTITION, self._next)])
            try:
                self._read_to_end()
            finally:
                self._consumer.unassign()
            self._answered = answered
        finally:
            self._turn.release()

    def close(self) -> None:
        """End another thread's read and close the consumer; leave the closing to that thread if it hangs in a call."""
        self._closed = True
        if self._turn.acquire(timeout=_STEP + 1.0):
            self._consumer.close()
            self._turn.release()

    def _look_for_topic(self) -> None:
        # A consumer waits silently for a topic that does not exist.
        deadline = time.monotonic() + self._patience
        while True:
            try:
                found = self._consumer.list_topics(self._topic, timeout=min(_STEP, self._patience)).topics[self._topic]
                break
            except KafkaException as fault:
                if self._closed or time.monotonic() > deadline:
                    raise NoAnswer(self._named(f"cannot be looked up: {fault.args[0].str()}")) from fault
        if found.error is not None:
            if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise Unavailable(self._named("does not exist: start `relay run`, which creates it"))
            raise Unavailable(self._named(f"cannot be read: {found.error.str()}"))

    def _read_to_end(self) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            if self._closed:
                raise Unavailable(self._named("is no longer read: its reader was closed"))
            message = self._consumer.poll(0.2)
            if message is None:
                if time.monotonic() > deadline:
                    what = f"was not read to its end: nothing arrived for {self._patience:g} s at offset {self._next}"
                    raise NoAnswer(self._named(what))
                continue
            error = message.error()
            if error is None:
                self._add(message)
                deadline = time.monotonic() + self._patience
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise group_refused(self._group)
            elif not error.retriable():
                raise Unavailable(self._named(f"cannot be read: {error.str()}"))
            elif time.monotonic() > deadline:
                raise NoAnswer(self._named(f"cannot be read: {error.str()}"))

    def _add(self, message: Message) -> None:
        offset, key, value = message.offset(), message.key(), message.value()
        if offset is None or key is None:
            raise RelayError(f"the topic {self._topic} holds a record without a key at offset {offset}: {_FOREIGN}")
        if value is not None:
            try:
                schema = orjson.loads(value)
                mark = bytes.fromhex(key.decode())
                if fingerprint(schema) != mark:
                    raise ValueError("the schema has a different fingerprint")
                header = single_object_header(mark)
            except Exception as fault:
                # A parser may raise anything for a value that is not a schema.
                raise RelayError(
                    f"the topic {self._topic} holds a record at offset {offset}, key {key!r}, that is not a schema"
                    f" ({fault}): {_FOREIGN}"
                ) from fault
            # The first schema keeps its fingerprint: its values were published, and no value of a second one ever was.
            self._known.setdefault(header, schema)
        self._next = offset + 1

    def _publish(self, mark: bytes, schema: dict[str, Any]) -> None:
        answers: list[KafkaError | None] = []
        try:
            producer = self._producer
            producer.produce(
                self._topic,
                key=mark.hex().encode(),
                value=orjson.dumps(schema),
                partition=_PARTITION,
                on_delivery=lambda error, _: answers.append(error),
            )
            deadline = time.monotonic() + self._patience + 5
            while not answers and time.monotonic() < deadline:
                producer.flush(_STEP)
        except KafkaException as fault:
            raise Unavailable(self._named(f"cannot be written to: {fault}")) from fault
        if not answers:
            raise NoAnswer(self._named(f"cannot be written to: no answer within {self._patience:g} s"))
        if (error := answers[0]) is not None:
            failure = NoAnswer if error.code() == KafkaError._MSG_TIMED_OUT else Unavailable
            raise failure(self._named(f"cannot be written to: {error.str()}"))

    @cached_property
    def _producer(self) -> Producer:
        """Return the producer shared by the threads that publish. If two threads begin at once, each may create one."""
        settings = {"enable.idempotence": True, "acks": "all", "delivery.timeout.ms": int(self._patience * 1000)}
        return Producer({**self._client, **settings}, logger=_LOG)

    def _named(self, what: str) -> str:
        return f"the topic {self._topic} at {self._client.get('bootstrap.servers')} {what}"
