"""Which shards this worker owns: its membership in a group, and the fence of every assignment (I3; see ``fence``)."""

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from relay.errors import RelayError, Unavailable, checkpoints_deleted, group_refused
from relay.kafka.checkpoints import CheckpointView
from relay.kafka.settings import barrier_timeout
from relay.kafka.transient_errors import is_transient
from relay.process.slow_call import SlowCall

log = logging.getLogger(__name__)

_STEP_TIMEOUT = 5.0  # seconds for one step of the fence, before the group is polled again


_LEAVE_TIMEOUT = 2.0

_HEARTBEAT = 0.2
"""Seconds between two heartbeats. A member learns only from the answer that the group changes. Until all members know,
nobody reads the shards that change hands."""

_KEEP = 1.0
"""How many seconds this worker keeps partitions that the group wants back. A new member gets them with its second
request to join, which librdkafka sends no sooner than this after the first; until then nobody else would read them."""


class NotAMember(Exception):
    """The group has expelled this worker: it must not commit anything until it has rejoined."""


class Assignment:
    """Membership in the group that shares the partitions of the checkpoints topic; its callbacks run in ``poll``."""

    def __init__(
        self, client: Mapping[str, Any], group: str, view: CheckpointView, *, transaction_timeout: float
    ) -> None:
        self.group = group
        self.view = view
        # Assigned and past the fence: this worker may read the shards of these partitions.
        self.owned: set[int] = set()
        self.gained: set[int] = set()  # assigned, but not past the fence yet
        # Partitions that the group wants back and this worker keeps a little longer, each until a monotonic time.
        self._wanted: list[TopicPartition] = []
        self._keep_until = 0.0
        self._is_closing = False
        self._revoked: set[int] = set()  # owned partitions that were given up since the last poll
        # A predecessor's transaction times out before the group expels it, and a worker whose main thread hangs is
        # expelled last: transaction < session < max.poll.interval.
        self.session_timeout = session = 1.5 * transaction_timeout
        self.barrier_timeout = barrier_timeout(transaction_timeout)
        self._member = ""  # the member id that this worker last passed the fence with
        # When this worker last served the group, and last woke the client for a heartbeat, by the monotonic clock.
        self._served_at = self._woken_at = time.monotonic()
        self._consumer = Consumer(
            {
                **client,
                "group.id": group,
                # The name of the owner in `relay status`.
                "client.id": f"{client.get('client.id', group)}-{socket.gethostname()}-{os.getpid()}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",  # makes committed() wait for open transactions
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(session * 1000),
                "heartbeat.interval.ms": int(min(_HEARTBEAT, session / 5) * 1000),
                "max.poll.interval.ms": int((2 * self.barrier_timeout + session) * 1000),
                "auto.offset.reset": "latest",
            }
        )

    def join(self) -> None:
        """Join the group. From here on ``poll`` has to be called all the time."""
        self._consumer.subscribe(
            [self.view.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    @property
    def joined(self) -> bool:
        """Whether this worker is still the member of the group that last passed the fence."""
        return bool(self._member) and self._consumer.memberid() == self._member

    @property
    def gives_up(self) -> bool:
        """Whether the next `poll` gives up partitions that this worker has kept: commit open transactions before it."""
        return bool(self._wanted) and (time.monotonic() >= self._keep_until or not self.joined)

    def close(self) -> None:
        """Leave the group, so that another worker takes over at once; without an answer, after the session timeout."""
        self._is_closing = True
        if self._wanted:
            self._give_up()
        try:
            SlowCall(f"{self.group}-leave", self._consumer.close).result(_LEAVE_TIMEOUT)
        except TimeoutError:
            log.info("group %s: left without an answer within %.0f s", self.group, _LEAVE_TIMEOUT)

    def poll(self, timeout: float = 0.0) -> set[int]:
        """Serve the group for up to ``timeout`` seconds; return the owned partitions that were given up."""
        if self.gives_up:
            self._give_up()
        now = time.monotonic()
        away = now - self._served_at
        if now - self._woken_at >= _HEARTBEAT / 2:
            # librdkafka's thread sends heartbeats, but sleeps for up to half a second. A request wakes it.
            self._consumer.consumer_group_metadata()
            self._woken_at = now
        message = self._consumer.poll(timeout)
        self._served_at = time.monotonic()
        error = message.error() if message is not None else None
        if error is not None:
            if error.code() == KafkaError._MAX_POLL_EXCEEDED:
                said = (
                    "group %s expelled this worker because its main loop did not serve the group for %.0f s: the "
                    "process was paused, or a call to Kafka took that long (see the messages before); rejoining"
                )
                log.warning(said, self.group, away)
            elif error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
                raise Unavailable(
                    f"group {self.group}: the broker refuses a session timeout of {self.session_timeout} s (1.5 times "
                    "transaction.timeout.ms): raise transaction.timeout.ms, or lower group.min.session.timeout.ms on "
                    "the broker"
                )
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise group_refused(self.group)
            elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise checkpoints_deleted(self.view.topic)
            elif error.fatal() or error.code() in _FATAL_ERRORS:
                raise Unavailable(f"group {self.group}: {error.str()}")
            else:
                log.warning("group %s: %s", self.group, error.str())
        revoked, self._revoked = self._revoked, set()
        return revoked

    def fence(self) -> set[int]:
        """Move the gained partitions to ``owned`` and return them; empty if the fence must be tried again (I3).

        1. Barrier: ``committed()`` does not answer while a predecessor's open transaction holds offsets of these
        partitions. A predecessor that sent its offsets and then lost the partitions may still commit. 2. Read: only
        then read their checkpoints to the end, to see what the predecessor committed. 3. Open: the caller opens shards
        only after that.
        """
        gained = set(self.gained)
        if not gained:
            return gained
        if not self._barrier(gained) or not self.view.read_to_end(gained, _STEP_TIMEOUT):
            self.view.require_topic()  # I10
            return set()  # retried in the next turn: meanwhile the group must be polled
        self._member = self._consumer.memberid() or ""
        # The group may have revoked some of them meanwhile.
        gained &= self.gained
        self.gained -= gained
        self.owned |= gained
        return gained

    def refence(self) -> None:
        """Send all owned partitions through the fence again, after a transaction of unknown outcome."""
        self.gained |= self.owned
        self.owned = set()

    def offsets(self, partitions: set[int]) -> list[TopicPartition]:
        """Return the offsets to send with a transaction that writes checkpoints in exactly these ``partitions``."""
        if not partitions <= self.owned:
            unowned = sorted(partitions - self.owned)
            raise RelayError(f"group {self.group}: this worker does not own the partitions {unowned}")
        return [TopicPartition(self.view.topic, p, self.view.positions[p]) for p in sorted(partitions)]

    def metadata(self) -> Any:
        """Return the group metadata that fences a transaction. Raises ``NotAMember``.

        In librdkafka's own thread, an expelled member falls back to no member id and no generation, and the broker
        accepts *any* transactional offsets from such a client. So the member id is compared after reading the metadata:
        it must still be the id that passed the fence. Member ids are never reused.
        """
        metadata = self._consumer.consumer_group_metadata()
        if not self._member or self._consumer.memberid() != self._member:
            raise NotAMember(self.group)
        return metadata

    def _barrier(self, partitions: set[int]) -> bool:
        wanted = [TopicPartition(self.view.topic, p) for p in sorted(partitions)]
        try:
            answers = self._consumer.committed(wanted, timeout=_STEP_TIMEOUT)
        except KafkaException as error:
            failed = error.args[0]
        else:
            failed = next((answer.error for answer in answers if answer.error is not None), None)
        if failed is None:
            return True
        if not is_transient(failed):
            raise Unavailable(f"group {self.group}: cannot read the committed offsets of its partitions: {failed}")
        said = "group %s: waiting for the transaction of the partitions' previous owner to end: %s"
        log.info(said, self.group, failed)
        return False

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The view, not this consumer, reads the partitions.
        consumer.incremental_assign([TopicPartition(p.topic, p.partition, 0) for p in partitions])
        if partitions:
            consumer.pause(partitions)
        self.gained |= {p.partition for p in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._wanted = partitions
        if self._is_closing or not self.joined or self.owned.isdisjoint(p.partition for p in partitions):
            self._give_up()
            return
        self._keep_until = time.monotonic() + _KEEP
        # I3: nobody else gets them before they are unassigned, which the client does without this call.
        consumer.incremental_assign([])

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._wanted = partitions
        self._give_up()

    def _give_up(self) -> None:
        wanted, self._wanted = self._wanted, []
        self._consumer.incremental_unassign(wanted)
        given_up = {p.partition for p in wanted}
        self._revoked |= given_up & self.owned
        self.owned -= given_up
        self.gained -= given_up


_FATAL_ERRORS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.INVALID_GROUP_ID,
}
