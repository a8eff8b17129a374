"""Which shards this worker owns: Kafka's own group protocol, and the fence that every assignment passes.

The order barrier, read, open is what makes two workers safe (I3); see ``fence``. Change nothing here without
running ``tests/faults``.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from relay.errors import RelayError, Unavailable
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.failures import passes

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds for one step of the fence, before the group is served again."""


class NotAMember(Exception):
    """The group has expelled this worker: nothing may be committed until it has joined again."""


class Assignment:
    """Membership in the group over the partitions of the checkpoints topic. Used by one thread."""

    def __init__(
        self, client: Mapping[str, Any], group: str, view: CheckpointView, *, transaction_timeout: float
    ) -> None:
        self.group = group
        self.view = view
        # Open for work: they have passed the fence.
        self.owned: set[int] = set()
        # Given by the group, not yet through the fence.
        self.gained: set[int] = set()
        # Taken by the group since the last look.
        self._lost: set[int] = set()
        # A predecessor's transaction times out before it is expelled, and a worker whose main thread is stuck
        # is expelled last: transaction < session < max.poll.interval.
        self.session_timeout = session = 1.5 * transaction_timeout
        # The broker looks for transactions that have timed out every ten seconds.
        self.barrier_timeout = transaction_timeout + 20.0
        self._member = ""
        self._consumer = Consumer(
            {
                **client,
                "group.id": group,
                # What `relay status` shows of an owner.
                "client.id": f"{client.get('client.id', group)}-{socket.gethostname()}-{os.getpid()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",  # committed() then waits for open transactions
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(session * 1000),
                "heartbeat.interval.ms": int(min(3.0, session / 5) * 1000),
                "max.poll.interval.ms": int((2 * self.barrier_timeout + session) * 1000),
                "auto.offset.reset": "latest",
            }
        )
        self._consumer.subscribe([view.topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    @property
    def joined(self) -> bool:
        """Whether this worker is still the member of the group that last passed the fence."""
        return bool(self._member) and self._consumer.memberid() == self._member

    def close(self) -> None:
        """Leave the group, so that another worker takes over at once."""
        self._consumer.close()

    def poll(self, timeout: float = 0.0) -> set[int]:
        """Serve the group; return the partitions that were taken away."""
        message = self._consumer.poll(timeout)
        error = message.error() if message is not None else None
        if error is not None:
            if error.code() == KafkaError._MAX_POLL_EXCEEDED:
                log.warning("expelled from group %s: the main thread did not come by in time", self.group)
            elif error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
                raise Unavailable(
                    f"group {self.group}: the broker does not allow a session timeout of {self.session_timeout} s, "
                    "1.5 times transaction.timeout.ms: see its group.min.session.timeout.ms"
                )
            elif error.fatal() or error.code() in _FINAL:
                raise Unavailable(f"group {self.group}: {error.str()}")
            else:
                log.warning("group %s: %s", self.group, error.str())
        lost, self._lost = self._lost, set()
        return lost

    def fence(self) -> set[int]:
        """Take the gained partitions into work: barrier, then read. The caller opens shards after it (I3).

        1. ``committed()`` does not answer while a predecessor's transaction holds offsets of these partitions:
           a predecessor that sent its offsets and then lost them may still commit, and must be waited for.
        2. Only then are their checkpoints read to the end, so that what it committed is seen.
        """
        gained = set(self.gained)
        if not gained:
            return gained
        if not self._barrier(gained) or not self.view.read_to_end(gained, _PATIENCE):
            return set()  # asked again in the next turn: the group must be served meanwhile
        self._member = self._consumer.memberid() or ""
        # The group may have moved on while this waited.
        gained &= self.gained
        self.gained -= gained
        self.owned |= gained
        return gained

    def refence(self) -> None:
        """Send everything owned through the fence again, when the fate of a transaction is not known."""
        self.gained |= self.owned
        self.owned = set()

    def offsets(self, partitions: set[int]) -> list[TopicPartition]:
        """The offsets to send with a transaction that writes checkpoints in exactly ``partitions``."""
        if not partitions <= self.owned:
            raise RelayError(f"group {self.group}: partitions {sorted(partitions - self.owned)} are not owned")
        return [TopicPartition(self.view.topic, p, self.view.position(p)) for p in sorted(partitions)]

    def metadata(self) -> Any:
        """Return the group metadata that fences a transaction. Raises ``NotAMember``.

        A member that the broker has expelled falls back, in librdkafka's own thread, to no member id and no
        generation, and the broker accepts *any* transactional offsets from such a client. So the metadata is
        used only if the member id is still, after it was taken, the one that passed the fence: member ids never
        come back.
        """
        metadata = self._consumer.consumer_group_metadata()
        if not self._member or self._consumer.memberid() != self._member:
            raise NotAMember(self.group)
        return metadata

    def _barrier(self, partitions: set[int]) -> bool:
        wanted = [TopicPartition(self.view.topic, p) for p in sorted(partitions)]
        try:
            answers = self._consumer.committed(wanted, timeout=_PATIENCE)
        except KafkaException as error:
            failed = error.args[0]
        else:
            failed = next((answer.error for answer in answers if answer.error is not None), None)
        if failed is None:
            return True
        if not passes(failed):
            raise Unavailable(f"group {self.group}: the offsets of its partitions cannot be had: {failed}")
        log.info("group %s: waiting for a predecessor's transaction: %s", self.group, failed)
        return False

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Nothing is ever read through the group: the view reads.
        consumer.incremental_assign([TopicPartition(p.topic, p.partition, 0) for p in partitions])
        if partitions:
            consumer.pause(partitions)
        self.gained |= {p.partition for p in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        taken = {p.partition for p in partitions}
        self._lost |= taken & self.owned
        self.owned -= taken
        self.gained -= taken


_FINAL = {
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.INVALID_GROUP_ID,
}
