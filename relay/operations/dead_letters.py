"""``relay dead-letters``: inspects and redrives changes that could not be published in full or not be decoded.

A redrive sends the full change after its stub, with the same event id and token: consumers complete the stub and
overwrite nothing newer (``spark_consumers.fold``).
"""

import contextlib
import json
import time
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from confluent_kafka import IsolationLevel, Message
from confluent_kafka.admin import AdminClient

from relay.avro.decode import Undecodable, UnknownFraming, UnknownSchema, WriterSchemas, decode
from relay.avro.encode import with_attribute
from relay.avro.registry import open_schemas
from relay.change import REDRIVEN, UNDECODED
from relay.config import Config
from relay.config.value_types import duration_text, iso_time
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics
from relay.kafka.checkpoints import requested_partitions
from relay.kafka.committed import read_committed
from relay.kafka.dead_letters import DISMISSED_SUFFIX, REDRIVEN_SUFFIX
from relay.kafka.limits import Headers, largest_records, record_size, with_batches
from relay.kafka.partition_offsets import Partition, offset_bounds
from relay.kafka.publisher import Aborted, Fenced, Publisher
from relay.kafka.settings import KafkaSettings
from relay.kafka.topics import FoundTopic
from relay.operations.tail import decode_to_json, json_values

_RELAY = "relay"

_REMEMBERED = 0.9  # of ``copy.tombstone_retention`` a change may be redriven: a copy may lag for the rest
_Record = tuple[str, bytes, bytes, int, Headers]  # topic, value, key, partition and headers for `Publisher.send`


@dataclass
class DeadLetter:
    """The headers of a dead letter, without its value, and the ``topic`` and ``partition`` where the change belongs."""

    id: str
    headers: Mapping[str, bytes]
    topic: str
    partition: int
    offset: int | None  # of a record that a consumer could not decode; None if the relay could not publish it in full
    chunk_count: int
    written_at: datetime
    chunks: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset and size, by number from 1
    redriven: bool = False
    dismissed: bool = False

    def text(self, name: str) -> str:
        return self.headers.get(name, b"").decode("utf-8", "replace")

    @property
    def size(self) -> int:
        return sum(size for _, size in self.chunks.values())

    @property
    def is_pending(self) -> bool:
        return not self.redriven and not self.dismissed

    @property
    def is_complete(self) -> bool:
        return set(self.chunks) == set(range(1, self.chunk_count + 1))

    @property
    def encoding(self) -> str:
        return self.text("encoding") or "avro"

    def to_json(self, tables: Mapping[str, str]) -> dict[str, Any]:
        """Return the JSON values of ``list --json``. ``tables``: by topic, its only table."""
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
            "chunks": self.chunk_count,
            "whole": self.is_complete,
            "encoding": self.encoding,
            "written_at": json_values(self.written_at),
            "redriven": self.redriven,
            "dismissed": self.dismissed,
        }


class DeadLetters:
    """The content of the topic ``<name>.dead_letters``. Raises ``Unavailable`` if the topic does not exist."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.time) -> None:
        self.config = config
        self._clock = clock
        # By topic, if it has only one. Only the letters of consumers do not say their table.
        self.tables = {t: table for table in config.tables if (t := config.topic(table)) not in config.shared_topics}
        self._producer: Mapping[str, Any] = KafkaSettings.from_config(config).producer
        self._admin: AdminClient = topics.connect(config)
        self._topic = config.internal("dead_letters")
        if self._topic not in topics.list_topics(self._admin, config):
            servers = config.kafka.bootstrap_servers
            raise Unavailable(f"topic {self._topic!r} does not exist at {servers} yet; `relay run` creates it")
        self._letters: dict[str, DeadLetter] = {}
        self._next = 0  # the first offset that was not yet read
        self._read_on(IsolationLevel.READ_COMMITTED)

    def all(self) -> list[DeadLetter]:
        return list(self._letters.values())

    def pending(
        self, *, since: float | None = None, reason: str | None = None, at_most: int | None = None
    ) -> list[DeadLetter]:
        """Return the oldest ``at_most`` dead letters that were neither redriven nor dismissed.

        ``since``: only those written at or after this time, in seconds since the epoch. ``reason``: only those whose
        reason contains this text. Raises ``ConfigError`` if there are pending ones, but none with this reason.
        """
        found = [letter for letter in self.all() if letter.is_pending]
        if reason is not None:
            reasons = sorted({letter.text("reason") for letter in found})
            found = [letter for letter in found if reason in letter.text("reason")]
            if reasons and not found:
                known = ", ".join(reasons)
                raise ConfigError(f"--reason {reason}: no pending dead letter has this reason; pending: {known}")
        return [letter for letter in found if since is None or letter.written_at.timestamp() >= since][:at_most]

    def find(self, name: str) -> DeadLetter:
        """Return the dead letter with the id ``name``. Raises ``ConfigError``."""
        if name not in self._letters:
            raise ConfigError(f"topic {self._topic} has no dead letter {name!r}; `relay dead-letters list` lists all")
        return self._letters[name]

    def value(self, letter: DeadLetter) -> bytes:
        """Read the value of a dead letter and join its chunks. Raises ``RelayError`` if one is missing."""
        parts: list[bytes] = []
        for number in range(1, (count := letter.chunk_count) + 1):
            chunk = letter.chunks.get(number)
            message = None if chunk is None else self._read_one(self._topic, 0, chunk[0])
            if message is None:
                lacks = f"topic {self._topic} lacks its chunk {number} of {count}"
                raise RelayError(f"dead letter {letter.id} is incomplete: {lacks}")
            parts.append(message.value() or b"")
        return b"".join(parts)

    def show(self, letter: DeadLetter) -> dict[str, Any]:
        """Return a dead letter with its decoded change, or with its value in base64 and an ``error``."""
        value = self.value(letter)
        fields = letter.to_json(self.tables)
        if letter.encoding == "json":
            return {**fields, "change": json.loads(value)}  # orjson refuses half a surrogate pair
        with contextlib.closing(open_schemas(self.config)) as schemas:
            try:
                return {**fields, "change": decode_to_json(schemas, value)}
            except (UnknownFraming, UnknownSchema, Undecodable) as error:
                return {**fields, "value": b64encode(value).decode(), "error": str(error)}

    def redrive(
        self, letters: Sequence[DeadLetter], on_sent: Callable[[DeadLetter], None], *, dry_run: bool = False
    ) -> None:
        """Send ``letters`` again, each in its own transaction, and call ``on_sent`` after each.

        Leaves out what another command has redriven or dismissed meanwhile. ``dry_run``: send nothing. Raises
        ``RelayError`` at the end, a line for each letter that was not sent; ``Unavailable`` once another redrive has
        begun.
        """
        found = self._topics()
        targets = {each.topic.name: each for each in found if each.topic.key}
        limits = largest_records(found, self._producer)
        problems: list[str] = []
        publisher = None
        was_pending = {letter.id: letter.is_pending for letter in letters}
        with contextlib.closing(open_schemas(self.config)) as schemas:
            for letter in letters:
                try:
                    value, key, headers = self._build_record(letter, targets.get(letter.topic), schemas)
                    size, limit = record_size(value, key, headers), limits[letter.topic]
                    if size > limit:
                        raise RelayError(
                            f"its record has {size} bytes, but topic {letter.topic} allows {limit}: raise the topic's "
                            "max.message.bytes or the producer's message.max.bytes (`kafka.producer` in the config), "
                            "whichever is lower, and redrive it again"
                        )
                    if not dry_run:
                        publisher = publisher or self._publisher(limits, "redrive")
                        with self._transaction(publisher, letter, "redriven"):
                            # I3: another redrive that commits from here on ends this transaction. A reader of committed
                            # records would not see its marks behind an open transaction, such as a worker's.
                            self._read_on(IsolationLevel.READ_UNCOMMITTED)
                            is_left = self._letters[letter.id].is_pending or not was_pending[letter.id]
                            if is_left:
                                publisher.send(letter.topic, value, key, letter.partition, headers)
                                publisher.send(*self._mark(letter, REDRIVEN_SUFFIX))
                        if not is_left:
                            continue
                except Unavailable:
                    raise
                except RelayError as error:
                    said = "would not be" if dry_run else "was not"
                    problems.append(f"dead letter {letter.id} {said} redriven: {error}")
                    continue
                letter.redriven = letter.redriven or not dry_run
                on_sent(letter)
        if problems:
            raise RelayError("\n".join(problems))

    def dismiss(self, letters: Sequence[DeadLetter], on_dismissed: Callable[[DeadLetter], None]) -> None:
        """Mark ``letters`` as dismissed, and call ``on_dismissed`` after each."""
        publisher = self._publisher(largest_records(self._topics(), self._producer), "dismiss")
        for letter in letters:
            with self._transaction(publisher, letter, "dismissed"):
                publisher.send(*self._mark(letter, DISMISSED_SUFFIX))
            letter.dismissed = True
            on_dismissed(letter)

    def _topics(self) -> list[FoundTopic]:
        """Return the relay's topics that exist."""
        requested = partial(requested_partitions, self.config, self._admin)
        found = topics.survey(self._admin, self.config, list(self.config.tables), requested)
        return [each for each in found if each.exists]

    def _publisher(self, limits: Mapping[str, int], command: str) -> Publisher:
        """Return a producer. It fences the previous one of the same ``command`` and ends its transaction."""
        return Publisher(with_batches(self._producer, limits), f"{self.config.name}-{command}")  # I3

    def _mark(self, letter: DeadLetter, suffix: bytes) -> _Record:
        return self._topic, b"", letter.id.encode() + suffix, 0, [("consumer", _RELAY.encode())]

    @contextlib.contextmanager
    def _transaction(self, publisher: Publisher, letter: DeadLetter, done: str) -> Iterator[None]:
        try:
            publisher.begin()
            yield
            publisher.commit_without_offsets()
        except Aborted as error:
            raise Unavailable(f"dead letter {letter.id} was not {done}: {error}") from error
        except Fenced as error:
            raise Unavailable(
                f"dead letter {letter.id} may not have been {done}: another `dead-letters` command has since begun, "
                f"and continues with the rest ({error}). `relay dead-letters list` shows what is pending"
            ) from error
        except RelayError:
            with contextlib.suppress(Aborted, Fenced):
                publisher.abort()
            raise

    def _build_record(
        self, letter: DeadLetter, target: FoundTopic | None, schemas: WriterSchemas
    ) -> tuple[bytes, bytes, Headers]:
        """Return value, key and headers of the record that redrives a dead letter. ``target``: the topic, or None."""
        if target is None or letter.partition >= target.topic.partitions:
            raise RelayError(f"{letter.topic}[{letter.partition}] is not a partition of this config's topics")
        if letter.encoding != "avro":
            raise RelayError(
                f"it cannot be encoded: {letter.text('detail')}. The next change of the item supersedes it; "
                f"`relay dead-letters show` prints it, and `relay dead-letters dismiss` notes that you have seen it"
            )
        value = self.value(letter)
        headers: Headers = [(name, letter.headers[name]) for name in ("event_id", "token") if name in letter.headers]
        key = letter.headers.get("record_key")
        if letter.offset is not None:
            value = self._marked(value, schemas)
            found = self._read_one(letter.topic, letter.partition, letter.offset)
            if found is not None:
                key, headers = _key(found), _headers(found)
        if target.compacted or key is None:
            # I1: under the key of its item, Kafka would delete a newer change. No item has this key.
            key = letter.id.encode()
        return value, key, headers

    def _marked(self, value: bytes, schemas: WriterSchemas) -> bytes:
        """Return the change marked as late (I7); unchanged if it still cannot be decoded.

        Raises ``RelayError`` if the copy may have forgotten that its row has since been deleted.
        """
        try:
            change = decode(schemas, value)
        except (UnknownFraming, UnknownSchema, Undecodable):
            return value
        copy, relayed_at = self.config.copy_, change["relayed_at"].timestamp()
        # I7: the tombstone is younger than all changes before the deletion.
        oldest = 0.0 if copy is None else self._clock() - _REMEMBERED * copy.tombstone_retention
        if copy is not None and change["new"] is not None and relayed_at < oldest:
            raise RelayError(
                f"it was relayed at {iso_time(relayed_at)}, longer ago than nine tenths of `copy.tombstone_retention` "
                f"({duration_text(copy.tombstone_retention)}), so the copy may have forgotten that its row has "
                f"been deleted: read the table again with `relay snapshot`; if you know that the row exists, redrive "
                "it with a longer time, such as --set copy.tombstone_retention=365d"
            )
        return value if REDRIVEN in change["attributes"] else with_attribute(value, REDRIVEN, UNDECODED)

    # ------------------------------------------------------------------ reading

    def _add(self, message: Message) -> None:
        name = (_key(message) or b"").decode("utf-8", "replace")
        for suffix in (REDRIVEN_SUFFIX.decode(), DISMISSED_SUFFIX.decode()):
            if name.endswith(suffix):
                if letter := self._letters.get(name.removesuffix(suffix)):
                    letter.redriven |= suffix == REDRIVEN_SUFFIX.decode()
                    letter.dismissed |= suffix == DISMISSED_SUFFIX.decode()
                return
        headers = {header: text for header, text in _headers(message) if isinstance(text, bytes)}
        at = message.offset() or 0
        place: tuple[str, int, int | None]
        try:
            number, chunk_count = map(int, headers.get("chunk", b"1/1").split(b"/"))
            if headers["consumer"] == _RELAY.encode():
                name = name.rpartition("/")[0]
                place = headers["topic"].decode(), int(headers["partition"]), None
            else:
                of_topic, of_partition, of_offset, _ = name.rsplit("/", 3)
                place = of_topic, int(of_partition), int(of_offset)
        except (KeyError, ValueError):
            # A foreign record: it can be listed and shown, but not redriven.
            name, number, chunk_count, place = f"{self._topic}/0/{at}", 1, 1, (self._topic, 0, at)
            headers["reason"] = b"not a dead letter"
        letter = self._letters.get(name)
        if letter is None or number == 1:
            # A first chunk replaces the dead letter: its change was published again, and was not redriven since.
            written = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
            topic, partition, offset = place
            letter = DeadLetter(name, headers, topic, partition, offset, chunk_count, written)
            self._letters.pop(name, None)
            self._letters[name] = letter
        letter.chunks[number] = (at, len(message.value() or b""))

    def _read_one(self, topic: str, partition: int, offset: int) -> Message | None:
        """Return the record at ``offset``, or None if it no longer exists."""
        first, end = offset_bounds(self._admin, [(topic, partition)])[topic, partition]
        if not first <= offset < end:
            return None
        with contextlib.closing(self._read((topic, partition), offset, offset + 1)) as records:
            found = next(records, None)
        return found if found is not None and found.offset() == offset else None

    def _read_on(self, isolation: IsolationLevel) -> None:
        """Read new committed dead letters and marks, up to the end that ``isolation`` sees."""
        where = (self._topic, 0)
        first, end = offset_bounds(self._admin, [where], isolation=isolation)[where]
        with contextlib.closing(self._read(where, max(first, self._next), end)) as records:
            for message in records:
                self._add(message)
        self._next = end

    def _read(self, where: Partition, begin: int, end: int) -> Generator[Message, None, None]:
        return read_committed(self.config, {where: (begin, end)}, lambda: None, exit_at_end=True)


def _key(message: Message) -> bytes | None:
    key = message.key()
    return key.encode() if isinstance(key, str) else key


def _headers(message: Message) -> Headers:
    found = message.headers() or []
    return list(found.items() if isinstance(found, Mapping) else found)
