"""Kafka transactions: records and the checkpoints that cover them become visible together, or not at all (I3).

The steps of ``commit`` are where exactly-once is decided; ``probe`` is called between them, so that a process
can be stopped at each.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from relay.errors import NotDrained, RelayError, Unavailable
from relay.kafka.bounded_call import PatientCaller, Stuck

log = logging.getLogger(__name__)
T = TypeVar("T")

Probe = Callable[[str], None]
"""Called with ``begin``, ``before_send_offsets``, ``after_send_offsets``, ``before_commit``, ``after_commit``."""

_CALL_TIMEOUT = 2.0
_GIVE_UP = 120.0
_STUCK_AFTER = _CALL_TIMEOUT + 2.0


class Aborted(Exception):
    """The transaction was aborted; nothing of it is visible. Publish its pages again."""


class Fenced(Exception):
    """This producer can do nothing more. Whether its last transaction is visible must be read from Kafka."""


class Abandoned(Fenced):
    """A call of the client never returned. Another producer with the same ``transactional.id`` ends what it left."""


class Publisher:
    """One transactional producer. Used by one thread.

    ``stop_by``: returns the time, by the monotonic clock, after which an unreachable broker is not waited for,
    ``math.inf`` while no stop was asked for.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        transactional_id: str,
        *,
        probe: Probe | None = None,
        stop_by: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.transactional_id = transactional_id
        self.open = False
        self._probe = probe or (lambda step: None)
        self._stop_by = stop_by
        self._producer = Producer({**client, "transactional.id": transactional_id})
        self._call("init_transactions", lambda: self._producer.init_transactions(_CALL_TIMEOUT))
        self.produce = self._producer.produce
        self._patiently = PatientCaller(f"{transactional_id}-offsets")

    def __repr__(self) -> str:
        return f"<Publisher[{self.transactional_id}{', open' if self.open else ''}]>"

    def begin(self) -> None:
        self._probe("begin")
        self._call("begin_transaction", self._producer.begin_transaction)
        self.open = True

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes,
        partition: int,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Produce one record in the open transaction, waiting for room. Raises ``Aborted`` or ``Fenced``."""
        while True:
            try:
                if headers is None:
                    self.produce(topic, value, key, partition)
                else:
                    self.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.1)  # I11: the queue is bounded, wait for the broker
                self._check_stop("produce", "its queue is full")
            except KafkaException as error:
                if error.args[0].code() in (KafkaError._STATE, KafkaError._FATAL):
                    # The transaction failed in the background; produce says so without any flag, and
                    # abort() will tell whether it was fatal.
                    raise Aborted(f"produce: {error.args[0].str()}") from error
                self._handle("produce", error)

    def commit(self, offsets: list[TopicPartition], metadata: Callable[[], Any]) -> None:
        """Commit the open transaction with the group's ``offsets``. Raises ``Aborted`` or ``Fenced``."""
        self._probe("before_send_offsets")
        send = partial(self._producer.send_offsets_to_transaction, offsets, metadata(), _CALL_TIMEOUT)
        try:
            self._call("send_offsets", lambda: self._patiently(send, _STUCK_AFTER))
        except Stuck as error:
            self.open = False
            raise Abandoned(f"send_offsets: {error}") from error
        self._probe("after_send_offsets")
        self.commit_alone()

    def commit_alone(self) -> None:
        """Commit the open transaction, which has to do with no group. Raises ``Aborted`` or ``Fenced``."""
        self._probe("before_commit")
        self._call("commit", lambda: self._producer.commit_transaction(_CALL_TIMEOUT))
        self.open = False
        self._probe("after_commit")

    def close(self) -> None:
        """End its thread. What is open stays open until the broker or a successor ends it."""
        self._patiently.close()

    def abort(self) -> None:
        """Abort the open transaction, if there is one. Raises ``Fenced``."""
        if not self.open:
            return
        try:
            self._call("abort", lambda: self._producer.abort_transaction(_CALL_TIMEOUT))
        except Aborted as error:
            raise Fenced(f"{self.transactional_id}: the abort itself failed: {error}") from error
        self.open = False

    def _call(self, name: str, call: Callable[[], T]) -> T:
        """Call until it is answered: a timed-out call may have happened, and asking again is safe."""
        deadline = time.monotonic() + _GIVE_UP
        while True:
            self._producer.poll(0)  # for what librdkafka has to log
            try:
                return call()
            except KafkaException as error:
                failure: KafkaError = error.args[0]
                ended = failure.fatal() or failure.txn_requires_abort()
                # A timed-out call has no flag of its own.
                if ended or not (failure.retriable() or failure.code() == KafkaError._TIMED_OUT):
                    self._handle(name, error)
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{self.transactional_id}: {name} is not answered by the broker: {failure.str()}"
                    ) from error
                self._check_stop(name, failure.str())
                log.info("%s: %s: %s, asking again", self.transactional_id, name, failure.str())
                time.sleep(0.05)

    def _check_stop(self, name: str, reason: str) -> None:
        if time.monotonic() > self._stop_by():
            raise NotDrained(
                f"{self.transactional_id}: stopped, but {name} is not answered by the broker: {reason}. What was not "
                "committed is read again at the next start."
            )

    def _handle(self, name: str, error: KafkaException) -> None:
        failure: KafkaError = error.args[0]
        if failure.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            # I10: the same records would be refused again, for ever.
            raise RelayError(
                f"{self.transactional_id}: {name}: {failure.str()}: a topic takes less than when this process "
                "started, since its max.message.bytes was lowered. Nothing was skipped: start again."
            ) from error
        if failure.fatal():
            raise Fenced(f"{name}: {failure.str()}") from error
        if failure.txn_requires_abort():
            raise Aborted(f"{name}: {failure.str()}") from error
        if failure.code() in (
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        ):
            raise Unavailable(f"{self.transactional_id}: not allowed to publish: {failure.str()}") from error
        raise RelayError(f"{self.transactional_id}: {name} failed: {failure.str()}") from error
