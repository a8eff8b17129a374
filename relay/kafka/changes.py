"""The changes on the topics as Python objects, for programs without Spark.

::

    with relay.changes("relay.yaml", ["orders"], group="mailer") as changes:
        for change in changes:
            send_mail(change.new)
            changes.commit()
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from relay.avro.columns import microseconds
from relay.avro.decode import Undecodable, UnknownFraming, UnknownSchema, decode, token_of
from relay.avro.framing import CONFLUENT_MARK
from relay.avro.registry import open_schemas
from relay.change import Change, Images, Operation, Snapshot, Transaction
from relay.config import Config
from relay.config.config import loaded
from relay.config.locations import legal
from relay.config.topic_names import only_tables, topics_of_changes
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka import topics as kafka_topics
from relay.kafka.committed import open_reader, read_failure
from relay.kafka.group_offsets import EARLIEST, GroupOffsets, Offsets, refuse_errors, with_beginnings
from relay.kafka.key_ranges import is_within, key_range
from relay.kafka.offset_notes import with_id
from relay.kafka.partition_offsets import Partition
from relay.kafka.same_topics import SameTopics

_LOG = logging.getLogger("relay.changes")
_POLL = 0.5  # seconds that the client waits for one record, during which no signal is handled
_PATIENCE = 60.0  # seconds without progress after which a read to the end gives up
_SESSION = 45.0  # seconds without a heartbeat after which the group considers a program dead
_SHORTEST_SESSION = 6  # seconds, which brokers allow by default
_DAY = 86_400  # seconds, the longest pause that librdkafka allows
_QUEUE_KILOBYTES = 32 << 10  # records that librdkafka fetches ahead

OnGap = Callable[[Mapping[str, Any]], object]
OnUndecodable = Callable[[Message, RelayError], object]


@dataclass(slots=True, kw_only=True)
class ReceivedChange(Change):
    """A change and its place on Kafka. Columns have their names at the source, and images are Python values."""

    topic: str
    partition: int
    offset: int


class Reception:
    """The open stream of the changes on topics: an iterator and a context manager, for one thread.

    Only committed records are read (I3). Each change comes once, and an item's changes in order (I2), but a program
    that is behind when `relay repartition` moves the item may get later changes first: their tokens tell. After a
    restart, or after the group reassigns partitions, changes since the last `commit` come again. After an error, the
    next step tries the same record again.

    ``config``: the relay's config, or its file. ``topics`` may be named by table; by default they are the topics of all
    tables. A table that shares its topic comes without the others, and its name is added to that of the group, whose
    offsets skip the others. ``group``: the Kafka group that holds the offsets. Programs of one group share the
    partitions. Without a group all partitions are read, and nothing can be committed. ``start``: where a group without
    offsets starts, or a program without a group: earliest, latest, committed:GROUP, an ISO time, a relative time such
    as ``-2h``, or offsets as JSON. A topic that a group adds later starts at its beginning, and so does a partition
    that is added to a topic. ``until_caught_up``: stop at the present ends of the topics. ``longest_pause``: seconds
    (6 to 86400) between two changes after which the group considers the program dead and gives its partitions to
    others. ``typed_json``: return DynamoDB items as they are on the topic, as exact JSON text with DynamoDB's types,
    instead of Python values. ``keyrange``: such as ``-80``; skip changes of Vitess rows whose keyspace id is outside.

    ``on_gap`` is called with each gap, as on ``<name>.gaps``: the relay could not read the changes between two
    positions, and the receiver has to cope without them (I9). By default a warning is logged. ``on_undecodable`` is
    called with each record that is not a change, and an error that says why; by default that error is raised.
    """

    def __init__(
        self,
        config: Config | Path | str,
        topics: Sequence[str] = (),
        *,
        group: str | None = None,
        start: str = "earliest",
        until_caught_up: bool = False,
        longest_pause: float = 300.0,
        typed_json: bool = False,
        keyrange: str | None = None,
        on_gap: OnGap | None = None,
        on_undecodable: OnUndecodable | None = None,
    ) -> None:
        """Connect, and join the group. Raises ``ConfigError`` for wrong arguments, and ``Unavailable``."""
        if not _SHORTEST_SESSION <= longest_pause <= _DAY:
            raise ConfigError(
                f"longest_pause: {longest_pause:g} s is not possible: use {_SHORTEST_SESSION} to {_DAY} seconds"
            )
        config = loaded(config)
        self.group, self.longest_pause, self.on_gap = group, longest_pause, on_gap
        self._typed_json, self._on_undecodable = typed_json, on_undecodable
        self._gaps = config.internal("gaps")
        # The offsets up to which records were passed on, for this program's partitions.
        self._reached: dict[Partition, int] = {}
        # The ends up to which to read, and the partitions that have not reached them; None without ends.
        self._ends: Mapping[Partition, int] | None = None
        self._unread: set[Partition] | None = None
        self._advanced_at = time.monotonic()
        # The next record, if reading it has failed.
        self._pending: Message | None = None
        named, self._only = topics_of_changes(config, topics), only_tables(config, topics)
        self._topic_of, self._named = config.topic, frozenset(named)
        self._keyrange = None if keyrange is None else key_range(config, named, keyrange, asked_as="keyrange")
        if self.group is not None and self._keyrange is not None:
            # I1: a key range has its own group, because its offsets skip the changes of other ranges.
            self.group = f"{self.group}.{self._keyrange}"
        if self.group is not None:
            tables = sorted({legal(each) for of in self._only.values() for each in of})
            self.group = ":".join([self.group, *tables])  # I1: no name of a group or table has a colon
        with ExitStack() as stack:
            admin = kafka_topics.connect(config)  # raises a clear error if no broker can be reached
            read = [*named, self._gaps]
            self._same = SameTopics(admin, config, read)
            self._reader_group = name = self.group or f"{config.name}.changes"
            offsets = GroupOffsets(config, "changes", read, name=name)
            stack.callback(offsets.close)
            if until_caught_up:
                self._ends = _by_place(offsets.locate({})[1])
            schemas = stack.enter_context(contextlib.closing(open_schemas(config)))
            schemas.refresh()
            self._schemas, self._has_registry = schemas, config.schema_registry is not None
            settings = {
                "auto.offset.reset": "error",  # removed records mean lost changes (I1)
                "queued.max.messages.kbytes": _QUEUE_KILOBYTES,
                "max.poll.interval.ms": int(longest_pause * 1000),
                "session.timeout.ms": int(min(longest_pause, _SESSION) * 1000),
            }
            self._consumer = open_reader(config, "changes", name, settings)
            stack.callback(self._consumer.close)
            if self.group is None:
                places = _by_place(_first_offsets(offsets, start)).items()
                self._assign(self._consumer, [TopicPartition(*place, offset) for place, offset in places])
            else:
                _begin_group(offsets, start, self._same.ids)
                self._consumer.subscribe(read, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)
            self._stack = stack.pop_all()

    # ------------------------------------------------------------------ for the user

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group and close the connections. Uncommitted changes come again."""
        self._stack.close()

    def __iter__(self) -> Iterator[ReceivedChange]:
        return self

    def __next__(self) -> ReceivedChange:
        """Wait for the next change. Ends only if ``until_caught_up``. Raises ``RelayError``."""
        while self._ends is None or self._unread is None or self._unread:
            change = self.poll(_POLL)
            if change is not None:
                return change
            # A group waits for its slowest program before it gives partitions to a new one.
            patience = _PATIENCE if self._unread is not None else _PATIENCE + self.longest_pause
            if self._ends is not None and time.monotonic() - self._advanced_at > patience:
                raise Unavailable(f"cannot read the topics to their ends: nothing arrived for {patience:g} s")
        raise StopIteration

    def poll(self, seconds: float) -> ReceivedChange | None:
        """Return the next change, or None if none comes within ``seconds``. Raises ``RelayError``."""
        deadline = time.monotonic() + seconds
        while True:
            if self._pending is None:
                self._pending = self._next_record(max(0.0, deadline - time.monotonic()))
            if self._pending is None:
                return None
            change = self._read(self._pending)
            self._pending = None
            if change is not None or time.monotonic() >= deadline:
                return change

    def commit(self) -> None:
        """Commit every change returned so far. After ``Unavailable`` they may come again, here or in other programs."""
        if self.group is None:
            raise ConfigError("commit: name the group whose offsets to commit: changes(..., group=...)")
        if not self._reached:
            return
        wanted = [with_id(*place, offset, self._same.ids) for place, offset in self._reached.items()]
        try:
            refuse_errors(self._consumer.commit(offsets=wanted, asynchronous=False))
        except KafkaException as error:
            raise Unavailable(
                f"cannot commit the offsets of group {self.group}: {error.args[0].str()}; changes since the last "
                "commit may be delivered again"
            ) from error

    # ------------------------------------------------------------------ partitions

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start with partitions at the group's offsets. The client calls this while it is polled."""
        if self.group is not None and partitions:
            partitions = consumer.committed(partitions, timeout=_PATIENCE)
            refuse_errors(partitions)
            self._same.compare(partitions)  # I1
        self._unread = set()
        for each in partitions:
            if each.offset < 0:
                each.offset = EARLIEST  # the partition was added after the group's first start
            place = each.topic, each.partition
            if self._ends is not None and each.offset < self._ends.get(place, EARLIEST):
                self._unread.add(place)
        consumer.assign(partitions)
        self._advanced_at = time.monotonic()

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget partitions that another program of the group takes over. Called by the client, as above."""
        consumer.unassign()
        self._unread = None
        self._reached.clear()
        self._pending = None

    def _advance(self, place: Partition, offset: int) -> None:
        self._reached[place] = offset
        self._advanced_at = time.monotonic()
        if self._unread and place in self._unread and self._ends is not None and offset >= self._ends[place]:
            self._unread.discard(place)

    # ------------------------------------------------------------------ records

    def _next_record(self, seconds: float) -> Message | None:
        if self.group is None and self._ends is None:  # the members of a group get new partitions from Kafka
            self._same.read_added(self._consumer)  # I1
        try:
            found = self._consumer.poll(seconds)
        except KafkaException as error:  # raised in a callback
            raise Unavailable(f"cannot read the offsets of group {self.group}: {error.args[0].str()}") from error
        for topic in self._same.created_again():  # the client continues at the old topic's offset
            raise RelayError(f"topic {topic} was created again: to read all its changes, {self._another_start()}")
        return found

    def _another_start(self) -> str:
        offsets = f"delete the offsets of group {self.group} and " if self.group else ""
        return f"{offsets}choose another start"

    def _read(self, message: Message) -> ReceivedChange | None:
        place, offset, error = (message.topic() or "", message.partition() or 0), message.offset() or 0, message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                self._pending = None
                raise self._failure(place, error)
            # The end lies behind the marker of the last transaction, which is never delivered.
            self._advance(place, offset)
            return None
        change = None
        if (value := message.value()) is not None:
            if place[0] == self._gaps:
                gap = _gap(value, place, offset)
                if self._concerns(gap.get("table")):
                    (self.on_gap or _warn_of_gap)(gap)
            else:
                change = self._decode(message, value, place, offset)
        self._advance(place, offset + 1)
        return change

    def _concerns(self, table: str | None) -> bool:
        """Whether a gap of one ``table``, or None, is one of the tables that were asked for."""
        topic = None if table is None else self._topic_of(table)
        return topic is None or (topic in self._named and table in self._only.get(topic, (table,)))  # I12

    def _failure(self, place: Partition, error: KafkaError) -> RelayError:
        where = f"{place[0]}[{place[1]}]" if place[0] else "the topics"
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return RelayError(
                f"records of {where} were removed before they were read, or the topic was created again: changes are "
                f"lost. To go on without them, {self._another_start()}; give the topic a longer retention"
            )
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            return Unavailable(
                f"group {self.group} took the partitions away, because more than {self.longest_pause:g} s passed "
                "between two changes: changes that were not committed will be delivered again; increase longest_pause"
            )
        return read_failure(error, place, self._reader_group)

    def _decode(self, message: Message, value: bytes, place: Partition, offset: int) -> ReceivedChange | None:
        """Return the change in a record; None if it is not a change, or of another table or key range."""
        try:
            if value.startswith(CONFLUENT_MARK) and not self._has_registry:
                raise UnknownFraming("the value has the framing of a schema registry, but the config has none")
            change = read_change(decode(self._schemas, value, typed_json=self._typed_json), *place, offset)
        except (UnknownFraming, UnknownSchema, Undecodable) as error:
            named = type(error)(f"{place[0]}[{place[1]}] offset {offset}: {error}")
            if self._on_undecodable is None:
                raise named from error
            self._on_undecodable(message, named)
            return None
        if (only := self._only.get(change.topic)) is not None and change.table not in only:
            return None
        if self._keyrange is not None and change.key is not None:
            shard = change.token.shard if change.token else None
            return change if is_within(self._keyrange, change.keyspace_id, shard, change.table) else None
        return change


changes = Reception  # opens the stream of changes on topics


def read_change(fields: Mapping[str, Any], topic: str, partition: int, offset: int) -> ReceivedChange:
    snapshot, transaction = fields["snapshot"], fields["transaction"]
    return ReceivedChange(
        event_id=fields["event_id"],
        operation=Operation(fields["operation"]),
        source=fields["source"],
        table=fields["table"],
        key=fields["key"],
        old=fields["old"],
        new=fields["new"],
        images=Images(fields["images"]),
        token=token_of(fields["token"]),
        committed_at=microseconds(fields["committed_at"]),
        relayed_at=microseconds(fields["relayed_at"]),
        resume_timestamp=fields["resume_timestamp"],
        snapshot=None if snapshot is None else Snapshot(**snapshot),
        transaction=None if transaction is None else Transaction(**transaction),
        keyspace_id=fields["keyspace_id"],
        attributes=fields["attributes"],
        topic=topic,
        partition=partition,
        offset=offset,
    )


def _begin_group(offsets: GroupOffsets, start: str, ids: Mapping[str, str]) -> None:
    """Commit ``start`` for a group without offsets. ``ids``: the topics' ids, read before ``start`` is resolved."""
    if offsets.committed() is not None:
        return
    try:
        offsets.commit(_first_offsets(offsets, start), ids=ids, wait=True)  # I1
    except Unavailable:
        if offsets.committed() is None:
            raise  # otherwise another program of the group was first


def _first_offsets(offsets: GroupOffsets, start: str) -> Offsets:
    """Return where to begin. Removed records are not skipped, so that reading them fails (I1)."""
    return with_beginnings(offsets.resolve(start, option="start"), offsets.locate({})[0])


def _by_place(offsets: Offsets) -> dict[Partition, int]:
    return {(topic, int(number)): offset for topic, of_topic in offsets.items() for number, offset in of_topic.items()}


def _gap(value: bytes, place: Partition, offset: int) -> Mapping[str, Any]:
    try:
        gap: Mapping[str, Any] = orjson.loads(value)
    except ValueError as error:
        raise Undecodable(f"{place[0]}[{place[1]}] offset {offset}: not valid JSON: {error}") from error
    return gap


def _warn_of_gap(gap: Mapping[str, Any]) -> None:
    if "table" in gap:
        said = "table %s of source %s may have other values than its changes say: %s"
        _LOG.warning(said, gap["table"], gap.get("source"), gap.get("statement"))
        return
    what = (gap.get(name) for name in ("source", "reason", "shard", "from", "to"))
    _LOG.warning("changes of source %s are missing (%s, shard %s): from %s to %s", *what)
