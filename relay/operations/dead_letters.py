"""``relay dead-letters``: what could not be published whole, or not be read, looked into and sent again.

A redrive sends the whole change after its stub, with the same event id and token. What it completes, and that it
undoes nothing newer, is for the consumers' rules to see to (``spark_consumers.fold``).
"""

from __future__ import annotations

import contextlib
import json
import secrets
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from relay.avro.decode import Undecodable, UnknownFraming, UnknownSchema, WriterSchemas, decode
from relay.avro.registry import open_schemas
from relay.config import Config
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.committed import read_committed
from relay.kafka.dead_letters import REDRIVEN_SUFFIX
from relay.kafka.limits import Headers, Limits, record_size
from relay.kafka.publisher import Aborted, Fenced, Publisher
from relay.kafka.settings import KafkaSettings
from relay.operations.tail import plain

_RELAY = "relay"

Records = Generator[Message, None, None]


@dataclass
class Letter:
    """A dead letter, of which only the headers are kept. ``chunks``: offset and size of each part of it, from 1.

    ``offset``: where on its topic a consumer found it; None for a change that the relay could not publish whole.
    """

    id: str
    headers: Mapping[str, bytes]
    topic: str
    partition: int
    offset: int | None
    of: int
    written_at: datetime
    chunks: dict[int, tuple[int, int]] = field(default_factory=dict)
    redriven: bool = False

    def text(self, name: str) -> str:
        return self.headers.get(name, b"").decode("utf-8", "replace")

    @property
    def size(self) -> int:
        return sum(size for _, size in self.chunks.values())

    @property
    def is_whole(self) -> bool:
        return set(self.chunks) == set(range(1, self.of + 1))

    @property
    def encoding(self) -> str:
        return self.text("encoding") or "avro"

    def to_json(self, tables: Mapping[str, str]) -> dict[str, Any]:
        """Return what ``list --json`` shows. ``tables``: by topic."""
        key = self.text("key")
        return {
            "id": self.id,
            "consumer": self.text("consumer"),
            "reason": self.text("reason"),
            "detail": self.text("detail") or None,
            "source": self.text("source") or None,
            "table": self.text("table") or tables.get(self.topic),
            "key": orjson.loads(key) if key else None,
            "shard": self.text("shard") or None,
            "position": self.text("position") or None,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "size": self.size,
            "chunks": self.of,
            "whole": self.is_whole,
            "encoding": self.encoding,
            "written_at": plain(self.written_at),
            "redriven": self.redriven,
        }


class Letters:
    """The topic ``<name>.dead_letters`` of a config, as it is now. Raises ``Unavailable`` if it is not there."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tables = {config.topic(table): table for table in config.tables}
        self._admin: AdminClient = topics.connect(config)
        self._topic = config.internal("dead_letters")
        self._require(self._topic)
        self._letters: dict[str, Letter] = {}
        for message in self._records((self._topic, 0)):
            self._take(message)

    def all(self) -> list[Letter]:
        return list(self._letters.values())

    def find(self, name: str) -> Letter:
        """Return the letter called ``name``. Raises ``ConfigError``."""
        if name not in self._letters:
            raise ConfigError(f"there is no dead letter {name!r} on {self._topic}: `relay dead-letters list` shows all")
        return self._letters[name]

    def value(self, letter: Letter) -> bytes:
        """Read a letter's value, its chunks joined. Raises ``RelayError`` if some are not there (any more)."""
        parts: list[bytes] = []
        for number in range(1, letter.of + 1):
            at = letter.chunks.get(number)
            message = None if at is None else self._record(self._topic, 0, at[0])
            if message is None:
                raise RelayError(f"dead letter {letter.id}: chunk {number} of {letter.of} is not on {self._topic}")
            parts.append(message.value() or b"")
        return b"".join(parts)

    def shown(self, letter: Letter) -> dict[str, Any]:
        """Return all there is to a letter, decoded. What cannot be decoded is in base64, with an ``error``."""
        value = self.value(letter)
        fields = letter.to_json(self.tables)
        if letter.encoding == "json":
            return {**fields, "change": json.loads(value)}  # orjson refuses half a surrogate pair
        with contextlib.closing(open_schemas(self.config)) as schemas:
            return {**fields, **_decoded(value, schemas)}

    def redrive(self, letters: Sequence[Letter], tell: Callable[[Letter], None]) -> None:
        """Send ``letters`` again, each in a transaction of its own; ``tell`` of each that was.

        Raises ``RelayError`` in the end, with a line for each that could not be sent.
        """
        found = topics.survey(self._admin, self.config, list(self.tables.values()))
        places = {each.topic.name: each for each in found if each.exists and each.topic.name in self.tables}
        settings = KafkaSettings.from_config(self.config)
        limits = Limits.from_topics([each for each in found if each.exists], settings.producer)
        problems: list[str] = []
        publisher = None
        for letter in letters:
            try:
                place = places.get(letter.topic)
                if place is None or letter.partition >= place.topic.partitions:
                    raise RelayError(f"{letter.topic}[{letter.partition}] is no partition of a topic of this config")
                value, key, headers = self._record_of(letter, compacted=place.compacted)
                _refuse_too_large(letter, record_size(value, key, headers), limits.records[letter.topic])
                if publisher is None:
                    name = f"{self.config.name}-redrive-{secrets.token_hex(8)}"
                    publisher = Publisher(limits.producer(settings.producer), name)
                self._send(publisher, letter, value, key, headers)
            except RelayError as error:
                if isinstance(error, Unavailable):
                    raise
                problems.append(f"dead letter {letter.id} was not sent again: {error}")
            else:
                letter.redriven = True
                tell(letter)
        if problems:
            raise RelayError("\n".join(problems))

    def _send(self, publisher: Publisher, letter: Letter, value: bytes, key: bytes, headers: Headers) -> None:
        try:
            publisher.begin()
            publisher.send(letter.topic, value, key, letter.partition, headers)
            publisher.send(self._topic, b"", letter.id.encode() + REDRIVEN_SUFFIX, 0, [("consumer", _RELAY.encode())])
            publisher.commit_without_offsets()
        except (Aborted, Fenced) as error:
            raise Unavailable(f"dead letter {letter.id} was not sent again: {error}") from error
        except RelayError:
            with contextlib.suppress(Aborted, Fenced):
                publisher.abort()
            raise

    def _record_of(self, letter: Letter, *, compacted: bool) -> tuple[bytes, bytes, Headers]:
        """Return value, key and headers of the record that a letter becomes."""
        if letter.encoding != "avro":
            raise RelayError(
                f"it cannot be encoded: {letter.text('detail')}. A later change of the item makes up for it; "
                f"`relay dead-letters show {letter.id}` prints what it was"
            )
        value = self.value(letter)
        headers: Headers = [(name, letter.headers[name]) for name in ("event_id", "token") if name in letter.headers]
        key = letter.headers.get("record_key")
        if letter.offset is not None:
            found = self._record(letter.topic, letter.partition, letter.offset)
            if found is not None:
                key, headers = _key(found), _headers(found)
        if compacted or key is None:
            # I1: as the last of its key it would have Kafka delete a newer change. No item has this key.
            key = letter.id.encode()
        return value, key, headers

    # ------------------------------------------------------------------ reading

    def _take(self, message: Message) -> None:
        name = (_key(message) or b"").decode("utf-8", "replace")
        if name.endswith(REDRIVEN_SUFFIX.decode()):
            if letter := self._letters.get(name.removesuffix(REDRIVEN_SUFFIX.decode())):
                letter.redriven = True
            return
        headers = {header: text for header, text in _headers(message) if isinstance(text, bytes)}
        at = message.offset() or 0
        try:
            number, of = map(int, headers.get("chunk", b"1/1").split(b"/"))
            place: tuple[str, int, int | None]
            if headers["consumer"] == _RELAY.encode():
                name = name.rpartition("/")[0]
                place = headers["topic"].decode(), int(headers["partition"]), None
            else:
                on, number_of, offset_of, _ = name.rsplit("/", 3)
                place = on, int(number_of), int(offset_of)
        except (KeyError, ValueError):
            # Somebody else's. It is shown, and no more.
            name, number, of, place = f"{self._topic}/0/{at}", 1, 1, (self._topic, 0, at)
            headers["reason"] = b"not a dead letter"
        letter = self._letters.get(name)
        if letter is None or number == 1:
            # Again from its first chunk: what was published anew is not redriven.
            written = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            topic, partition, offset = place
            letter = Letter(name, headers, topic, partition, offset, of, written)
            self._letters.pop(name, None)
            self._letters[name] = letter
        letter.chunks[number] = (at, len(message.value() or b""))

    def _require(self, topic: str) -> None:
        if topic not in topics.list_topics(self._admin, self.config):
            raise Unavailable(
                f"there is no topic {topic!r} at {self.config.kafka.bootstrap_servers} yet: `relay run` creates it"
            )

    def _record(self, topic: str, partition: int, offset: int) -> Message | None:
        """Return one record, None if it is not there (any more)."""
        begin, end = topics.offset_bounds(self._admin, [(topic, partition)])[topic, partition]
        if not begin <= offset < end:
            return None
        with contextlib.closing(self._records((topic, partition), offset, offset + 1)) as records:
            found = next(records, None)
        return found if found is not None and found.offset() == offset else None

    def _records(
        self, where: topics.Partition, begin: int | None = None, end: int | None = None
    ) -> Generator[Message, None, None]:
        first, last = topics.offset_bounds(self._admin, [where])[where]
        ends = {where: (first if begin is None else begin, last if end is None else end)}
        return read_committed(self.config, ends, lambda: None, from_beginning=True, exit_at_end=True)


def _key(message: Message) -> bytes | None:
    key = message.key()
    return key.encode() if isinstance(key, str) else key


def _headers(message: Message) -> Headers:
    found = message.headers() or []
    return list(found.items() if isinstance(found, Mapping) else found)


def _refuse_too_large(letter: Letter, size: int, limit: int) -> None:
    if size > limit:
        raise RelayError(
            f"it takes {size} bytes, and {limit} is the most for {letter.topic}: raise that topic's max.message.bytes "
            "and the producer's message.max.bytes (`kafka.producer` in the config), whichever is lower, and try again"
        )


def _decoded(value: bytes, schemas: WriterSchemas) -> dict[str, Any]:
    try:
        change = decode(schemas, value)
    except (UnknownFraming, UnknownSchema, Undecodable) as error:
        return {"value": b64encode(value).decode(), "error": str(error)}
    opened = {name: orjson.loads(change[name]) for name in ("old", "new") if isinstance(change[name], str)}
    return {"change": plain({**change, **opened})}
