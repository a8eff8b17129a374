"""The offsets of a Kafka group, and the start of a reader of topics: a word, an ISO time, or offsets as JSON."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from time import monotonic, sleep
from time import time as now
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._topic import TopicDescription

from relay.config import Config
from relay.config.value_types import start_time
from relay.errors import ConfigError, Unavailable
from relay.kafka.committed import open_reader
from relay.kafka.created_again import NO_ID, created_again
from relay.kafka.offset_notes import noted, with_id
from relay.kafka.topics import connect
from relay.kafka.transient_errors import is_transient

EARLIEST, LATEST = -2, -1  # Spark's numbers for the beginning and the end of a partition
Offsets = dict[str, dict[str, int]]  # by topic and partition, as in Spark's JSON, batches' log lines and ``--from``
Answers = Mapping[str, Future[TopicDescription]]  # of brokers about topics, pending
_TIMEOUT = 15.0  # seconds
_GRACE = 5.0  # additional seconds, in which the client reports that no broker has answered
_STEP = 0.1


def group(config: Config, consumer: str) -> str:
    return f"{config.name}.{own_name(config, consumer)}"


def own_name(config: Config, consumer: str) -> str:
    """Return the name of a consumer in its group and its folder: several caches of a relay each have their own name."""
    if consumer == "cache" and config.cache is not None and config.cache.name is not None:
        return f"{consumer}.{config.cache.name}"
    return consumer


def count_between(begin: Offsets, end: Offsets) -> int:
    """Return the number of offsets from ``begin`` to ``end``, which is at least the number of records."""
    return sum(
        offset - max(0, begin.get(topic, {}).get(partition, 0))
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def up_to(offsets: Offsets, ends: Offsets) -> Offsets:
    """Return ``offsets``, cut at ``ends``."""
    return {t: {p: min(offset, ends[t][p]) for p, offset in ps.items()} for t, ps in offsets.items()}


def with_beginnings(offsets: Offsets, beginnings: Offsets) -> Offsets:
    """Return ``offsets`` with ``beginnings`` instead of -2. An offset whose record was removed stays as it is."""
    return {t: {p: beginnings[t][p] if o == EARLIEST else o for p, o in ps.items()} for t, ps in offsets.items()}


def read_before(committed: Iterable[TopicPartition], ids: Mapping[str, str]) -> set[str]:
    """Return the topics whose ``ids`` differ from those committed with offsets. Offsets without an id are ignored."""
    return {
        each.topic
        for each in committed  # partition by partition: programs of one group may have seen different topics
        if (number := noted(each).topic_id) and created_again({each.topic: number}, ids)
    }


def consumer_addresses(config: Config) -> dict[str, list[str]]:
    """Return where consumers serve their status, as their offsets of the gaps topic say. Raises ``Unavailable``."""
    kinds = {"cache": config.cache, "log": config.log, "copy": config.copy_}
    found: dict[str, list[str]] = {}
    failed: KafkaException | None = None
    for kind, section in kinds.items():
        if section is None:
            continue
        try:
            with contextlib.closing(open_reader(config, "status", group(config, kind), {})) as consumer:
                committed = consumer.committed([TopicPartition(config.internal("gaps"), 0)], timeout=_TIMEOUT)
            refuse_errors(committed)
            for address in {each.http for each in map(noted, committed)} - {""}:
                found.setdefault(address, []).append(kind)
        except KafkaException as error:
            failed = error  # the relay may lack permission for one of the groups
    if failed is not None and not found:
        servers = config.kafka.bootstrap_servers
        raise Unavailable(f"cannot look up the consumers at {servers}: {failed.args[0].str()}") from failed
    return found


def topic_ids(admin: AdminClient, config: Config, topics: Sequence[str]) -> dict[str, str]:
    """Return the ids of topics, which older brokers lack; a topic created again has another. Raises ``Unavailable``."""
    return answered_ids(ask_topic_ids(admin, topics), config)


def ask_topic_ids(admin: AdminClient, topics: Sequence[str]) -> Answers:
    return admin.describe_topics(TopicCollection([*topics]), request_timeout=_TIMEOUT)


def answered_ids(answers: Answers, config: Config) -> dict[str, str]:
    servers, topic = config.kafka.bootstrap_servers, ""
    ids: dict[str, str] = {}
    try:
        for topic, described in answers.items():
            ids[topic] = str(described.result(_TIMEOUT + _GRACE).topic_id)
        return {topic: number for topic, number in ids.items() if number != NO_ID}
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise _missing(topic, servers) from error
        raise Unavailable(f"cannot describe the topics at {servers}: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise Unavailable(f"cannot describe the topics at {servers}: no broker has answered") from error


def _missing(topic: str, servers: str) -> Unavailable:
    return Unavailable(f"topic {topic!r} does not exist at {servers}: start `relay run`, which creates it")


def refuse_errors(partitions: Sequence[TopicPartition] | None) -> None:
    """Raise ``KafkaException`` if a partition has an error: the client itself raises only if all have one."""
    for each in partitions or ():
        if each.error is not None:
            raise KafkaException(each.error)


def check_start(start: str, *, option: str = "--from", has_group: bool = True) -> None:
    """Raise ``ConfigError`` for a start that is never resolved. ``has_group``: whether the reader commits offsets.

    It is ``earliest``, ``latest``, ``committed``, ``committed:GROUP``, an ISO time, a relative time such as ``-2h``, or
    offsets as JSON.
    """
    word, _, other = start.partition(":")
    if start in ("earliest", "latest") or (word == "committed" and (other or (start == word and has_group))):
        return
    if start.lstrip().startswith("{"):
        _named_offsets(start, option)
        return
    with contextlib.suppress(ValueError):
        if start_time(start, now()) is not None:
            return
    committed = "committed, committed:GROUP" if has_group else "committed:GROUP"
    raise ConfigError(
        f"{option} {start}: use earliest, latest, {committed}, an ISO time, a relative time such as -2h, "
        "or offsets as JSON"
    )


class GroupOffsets:
    """The offsets of a consumer's topics and of its Kafka group. Threads may share it, like Kafka's client.

    ``name``: the group, by default ``<name>.<consumer>``. ``cache``: the place of the cache that the consumer
    invalidates, or "". ``http``: the address of its status, or "". Both are noted with each commit.
    """

    def __init__(
        self,
        config: Config,
        consumer: str,
        topics: Sequence[str],
        *,
        name: str = "",
        admin: AdminClient | None = None,
        cache: str = "",
        http: str = "",
    ) -> None:
        self._config = config
        self._servers = config.kafka.bootstrap_servers
        self.topics = topics
        self._client = consumer
        self._cache = cache
        self.http = http
        self.group = name or group(config, consumer)
        self._consumer = self._open(self.group)
        self._open_admin = admin

    def _open(self, group: str) -> Consumer:
        return open_reader(self._config, self._client, group, {"allow.auto.create.topics": False})

    def close(self) -> None:
        self._consumer.close()

    @cached_property
    def _admin(self) -> AdminClient:
        return self._open_admin or connect(self._config)

    def topic_ids(self) -> dict[str, str]:
        return topic_ids(self._admin, self._config, self.topics)

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions. Raises ``Unavailable`` if a topic is missing: Spark would silently wait for it."""
        try:
            found = self._consumer.list_topics(timeout=_TIMEOUT).topics
        except KafkaException as error:
            raise Unavailable(f"no Kafka broker answers at {self._servers}: {error.args[0].str()}") from error
        for topic in self.topics:
            if topic not in found or not found[topic].partitions:
                raise _missing(topic, self._servers)
        return [TopicPartition(topic, number) for topic in self.topics for number in sorted(found[topic].partitions)]

    def resolve(self, start: str, *, option: str = "--from", others: int = EARLIEST, makes_up: bool = False) -> Offsets:
        """Return the present offsets for ``start``, as `check_start` knows it. ``option``: names it in errors.

        ``others``: the offset for partitions that JSON leaves out. ``makes_up``: whether this start makes up for unread
        records of a topic that was created again. Raises ``ConfigError``.
        """
        check_start(start, option=option)
        partitions = self.partitions()
        _, _, other = start.partition(":")
        if start == "earliest":
            return _as_offsets(TopicPartition(p.topic, p.partition, EARLIEST) for p in partitions)
        if start == "latest":
            return _as_offsets(map(self._end_of, partitions))
        if start.startswith("committed"):
            with contextlib.closing(self._open(other)) if other else contextlib.nullcontext(self._consumer) as consumer:
                committed = self._committed(consumer)
            if (offsets := _where_committed(committed)) is None:
                raise ConfigError(
                    f"{option} {start}: group {other or self.group} has no committed offsets for "
                    f"{', '.join(self.topics)}: use earliest or latest"
                )
            is_made_up = makes_up and other in ("", self.group)
            if not is_made_up and (again := self._read_before(committed)):  # I1
                raise ConfigError(
                    f"{option} {start}: topic {min(again)} was created again since group {other or self.group} "
                    f"read it, so the offsets do not apply to its records: use earliest"
                )
            return offsets
        if start.lstrip().startswith("{"):
            return self._at_the_end(_parse(start, partitions, option, others))
        return self._at(partitions, int((start_time(start, now()) or 0) * 1000))

    def locate(self, start: Offsets) -> tuple[Offsets, Offsets]:
        """Return the first offset to read from ``start`` on, even if past the end, and the end of each partition."""
        starts, ends = Offsets(), Offsets()
        for p in self.partitions():
            low, end = self._call(self._consumer.get_watermark_offsets, p, timeout=_TIMEOUT)
            wanted = start.get(p.topic, {}).get(str(p.partition), EARLIEST)
            starts.setdefault(p.topic, {})[str(p.partition)] = end if wanted == LATEST else max(wanted, low)
            ends.setdefault(p.topic, {})[str(p.partition)] = end
        return starts, ends

    def commit(self, offsets: Mapping[str, Mapping[str, int]], *, ids: Mapping[str, str], wait: bool = False) -> None:
        """Report the group's offsets, with the topics' ``ids``. Raises ``Unavailable`` only when asked to ``wait``."""
        beside = (ids, self._cache, self.http)
        wanted = [with_id(t, int(p), o, *beside) for t, ps in offsets.items() for p, o in ps.items() if o >= 0]
        try:
            if wait:
                refuse_errors(self._consumer.commit(offsets=wanted, asynchronous=False))
            else:
                self._consumer.commit(offsets=wanted, asynchronous=True)
        except KafkaException as error:
            if wait:
                raise Unavailable(f"cannot commit the offsets of group {self.group}: {error.args[0].str()}") from error

    def _end_of(self, partition: TopicPartition) -> TopicPartition:
        _, end = self._call(self._consumer.get_watermark_offsets, partition, timeout=_TIMEOUT)
        return TopicPartition(partition.topic, partition.partition, end)

    def committed(self) -> Offsets | None:
        """Return the group's committed offsets, or None if there are none. Raises ``Unavailable``."""
        return _where_committed(self._committed(self._consumer))

    def other_cache(self) -> str | None:
        """Return why this cache must not begin, if the group has another cache's offsets. Raises ``Unavailable``."""
        caches = {noted(each).cache for each in self._committed(self._consumer)} - {"", self._cache}
        if not caches:  # I10
            return None
        return (
            f"group {self.group} has the offsets of the cache {min(caches)}, and {self._cache}, which this consumer "
            "invalidates, seems to be a different one: give this cache a `name` under `cache`, so that it has its own "
            f"group and checkpoint. If it replaces the other, add --from committed:{self.group}, once"
        )

    def _committed(self, consumer: Consumer) -> list[TopicPartition]:
        found: list[TopicPartition] = self._call(consumer.committed, self.partitions(), timeout=_TIMEOUT)
        return found

    def _read_before(self, committed: Sequence[TopicPartition]) -> set[str]:
        """Return the topics that were created again since a group committed these offsets."""
        have_ids = sorted({each.topic for each in committed if noted(each).topic_id})
        return read_before(committed, topic_ids(self._admin, self._config, have_ids)) if have_ids else set()

    def _at(self, partitions: list[TopicPartition], milliseconds: int) -> Offsets:
        # Before the times: otherwise a record that is committed in between would be skipped.
        ends = {(p.topic, p.partition): self._end_of(p) for p in partitions}
        asked = [TopicPartition(p.topic, p.partition, milliseconds) for p in partitions]
        found = self._call(self._consumer.offsets_for_times, asked, timeout=_TIMEOUT)
        # Negative: the partition has no record at or after that time.
        return _as_offsets(p if p.offset >= 0 else ends[p.topic, p.partition] for p in found)

    def _at_the_end(self, offsets: Offsets) -> Offsets:
        """Return ``offsets`` with the present ends instead of -1: a restarted reader would find other ends."""
        return {
            t: {p: o if o != LATEST else self._end_of(TopicPartition(t, int(p))).offset for p, o in ps.items()}
            for t, ps in offsets.items()
        }

    def _call(self, call: Any, *arguments: Any, timeout: float) -> Any:
        """Retry until ``timeout``: brokers do not immediately know the leaders of a topic that was just created."""
        deadline = monotonic() + timeout
        while True:
            try:
                answer = call(*arguments, timeout=max(_STEP, deadline - monotonic()))
                if isinstance(answer, list):
                    refuse_errors(answer)
                return answer
            except KafkaException as error:
                reason = error.args[0]
                # Brokers' codes are positive. The client's own say that no broker has answered in all that time.
                if reason.code() <= 0 or not is_transient(reason) or monotonic() > deadline:
                    raise Unavailable(f"cannot read offsets from Kafka at {self._servers}: {reason.str()}") from error
            sleep(_STEP)


def _where_committed(found: Sequence[TopicPartition]) -> Offsets | None:
    if all(p.offset < 0 for p in found):
        return None
    # A partition that was added after the commit has not been read.
    return _as_offsets(TopicPartition(p.topic, p.partition, p.offset if p.offset >= 0 else EARLIEST) for p in found)


def _parse(text: str, partitions: Sequence[TopicPartition], option: str, others: int) -> Offsets:
    """Parse offsets in Spark's JSON. ``others``: the offset for partitions that it does not name."""
    wanted = _as_offsets(TopicPartition(p.topic, p.partition, others) for p in partitions)
    for topic, partition, offset in _named_offsets(text, option):
        if partition not in wanted.get(topic, {}):
            raise ConfigError(f"{option}: this consumer does not read partition {topic}[{partition}]")
        wanted[topic][partition] = offset
    return wanted


def _named_offsets(text: str, option: str) -> list[tuple[str, str, int]]:
    """Return topic, partition and offset of each partition named in offsets in Spark's JSON."""
    try:
        given = json.loads(text)
        named = [(str(t), str(p), o) for t, ps in given.items() for p, o in ps.items()]
    except (ValueError, AttributeError):
        raise ConfigError(f'{option}: write offsets as JSON, such as {{"shop.orders": {{"0": 17, "1": -2}}}}') from None
    for topic, partition, offset in named:
        if type(offset) is not int or offset < EARLIEST:
            raise ConfigError(
                f"{option}: {offset!r} is not an offset of {topic}[{partition}]: use 0 or more, -2 for the "
                "beginning, or -1 for the end"
            )
    return named


def _as_offsets(partitions: Iterable[TopicPartition]) -> Offsets:
    offsets: Offsets = {}
    for p in partitions:
        offsets.setdefault(p.topic, {})[str(p.partition)] = p.offset
    return offsets
