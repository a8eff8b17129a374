"""The first and the last offsets of partitions, even of new ones that have no leader yet."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from relay.errors import NoAnswer
from relay.kafka.transient_errors import failure_of, is_transient

Partition = tuple[str, int]  # a topic and a partition number
_PATIENCE = 30.0  # seconds
_REQUEST_TIMEOUT = 15.0


def offset_bounds(
    admin: AdminClient,
    partitions: Iterable[Partition],
    timeout: float = _PATIENCE,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[Partition, tuple[int, int]]:
    """Return the first and the end offset of each partition. Raises ``Unavailable`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    wanted = list(partitions)
    first = _offsets(admin, wanted, OffsetSpec.earliest(), deadline, isolation)  # type: ignore[no-untyped-call]
    end = _offsets(admin, wanted, OffsetSpec.latest(), deadline, isolation)  # type: ignore[no-untyped-call]
    return {partition: (first[partition], end[partition]) for partition in wanted}


def _offsets(
    admin: AdminClient, partitions: Sequence[Partition], spec: OffsetSpec, deadline: float, isolation: IsolationLevel
) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    timeout = 1.0
    while missing := [partition for partition in partitions if partition not in found]:
        answers = admin.list_offsets(
            {TopicPartition(*partition): spec for partition in missing},
            isolation_level=isolation,
            request_timeout=timeout,
        )
        timeout = min(2 * timeout, _REQUEST_TIMEOUT)
        for asked, future in answers.items():
            try:
                offset = future.result(_REQUEST_TIMEOUT + 5).offset
                if offset >= 0:
                    found[asked.topic, asked.partition] = offset
                elif time.monotonic() > deadline:  # a timed-out request gives offset -1001 without an error
                    raise NoAnswer(f"cannot look up the offsets of {asked.topic}[{asked.partition}]: no answer in time")
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if not is_transient(reason) or time.monotonic() > deadline:
                    what = f"cannot look up the offsets of {asked.topic}[{asked.partition}]"
                    raise failure_of(error, what) from error
        if len(found) < len(partitions):
            refresh_metadata(admin)
            time.sleep(0.1)
    return found


def refresh_metadata(admin: AdminClient) -> None:
    """Make the client fetch all topics. A client that asked for a topic before it existed never learns its leaders."""
    with suppress(KafkaException):  # the caller's retry reports that no broker answers
        admin.list_topics(timeout=5.0)
