"""A transactional Kafka producer: records and the checkpoints that cover them become visible together (I3).

librdkafka repeats a request when its connection breaks, and the first copy may still reach the broker. A late EndTxn
ends whatever transaction of its producer epoch is then open. Transactions of version 2 would refuse it, but librdkafka
does not use them (KIP-890; librdkafka issue 5423; Jepsen's analysis of Bufstream 0.1.0). So a producer is *spent* once
a connection has failed or a transaction was aborted: it does not begin another transaction. Its successor has a new
epoch, and the broker refuses requests of the old one.

Tests stop a process between any two steps of a transaction through ``probe``.
"""

import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from relay.errors import NoAnswer, NotDrained, RelayError, Unavailable
from relay.kafka.bounded_call import BoundedCaller, CallTimedOut, keep_for_ever
from relay.kafka.limits import record_size, too_small

log = logging.getLogger(__name__)
T = TypeVar("T")

_STATE = re.compile(r"\(after \d+ms in state (\w+)")

_UNCONNECTED = {"INIT", "DOWN", "TRY_CONNECT", "CONNECT"}  # states of a connection without a request yet


class ConnectionLog:
    """Passes a client's log lines on to ``logger``: only there, librdkafka reports a connection that failed."""

    def __init__(self, logger: logging.Logger) -> None:
        self.has_failed = False
        self._logger = logger

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which a client logs each failed connection here."""
        return {"logger": self, "log.connection.close": True, "log_level": 6}

    def log(self, level: int, text: str, *parts: object) -> None:
        line = text % parts
        if line.startswith(("FAIL", "REQTMOUT")):
            state = _STATE.search(line)
            # I3: a line in an unknown form may be about a request that was sent.
            self.has_failed |= state is None or state[1] not in _UNCONNECTED
        self._logger.log(level, text, *parts)


Probe = Callable[[str], None]
"""Called at ``begin``, ``before_send_offsets``, ``after_send_offsets``, ``before_commit``, ``after_commit``."""

_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
_CALL_TIMEOUT = 2.0
_FLUSH_SLICE = 0.5
_FLUSH_SHARE = 0.8  # of the transaction timeout, for all records to be acknowledged; the rest is for the commit
_TRANSACTION_TIMEOUT = 60.0  # seconds; librdkafka's default
_IF_SLOW = "if the connection to it is slow, raise `transaction.timeout.ms` in `kafka.producer`"


class Aborted(Exception):
    """The transaction was aborted, and nothing in it is visible. Publish its pages again."""


class TooSlow(Aborted):
    """The broker did not accept the records of the transaction in time: there are too many for the connection."""


class Fenced(Exception):
    """This producer is unusable. Read from Kafka whether its last transaction was committed."""


class Abandoned(Fenced):
    """A call got no answer. Another producer with the same ``transactional.id`` aborts the open transaction."""


class Publisher:
    """A transactional producer. Used by one thread at a time. Raises ``NoAnswer`` after the transaction timeout.

    ``limits``: per topic, the bytes of the largest record; checked for the relay's own records, which have no headers.
    ``stop_by``: returns the monotonic time until which to wait for a broker; ``math.inf`` before a stop.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        transactional_id: str,
        *,
        limits: Mapping[str, int] | None = None,
        probe: Probe | None = None,
        stop_by: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.transactional_id = transactional_id
        self.open = False
        self._brokers = client.get("bootstrap.servers")
        self._limits = limits or {}
        self._probe = probe or (lambda step: None)
        self._stop_by = stop_by
        self._timeout = float(client.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT * 1000)) / 1000
        self._begun = 0.0
        self._client = client
        self._connect()

    @property
    def is_spent(self) -> bool:
        """Whether one of its requests may still reach the broker (I3). Then it must not begin another transaction."""
        try:
            self._producer.poll(0)  # delivers librdkafka's log lines
        except KafkaException:
            return True
        return self._connections.has_failed or self._has_aborted or self._gave_up or self._sends_offsets

    def renew(self) -> Self:
        """Take a new client and epoch; raises as the constructor does. I3: late requests of the old one are refused."""
        self.close()
        self._connect()
        return self

    def _connect(self) -> None:
        self._has_aborted = False
        self._gave_up = False  # whether it has given up on records that were not acknowledged in time
        # Whether librdkafka may still be sending offsets.
        self._sends_offsets = False
        self._connections = ConnectionLog(self._client.get("logger", log))
        settings = {**self._client, **self._connections.settings, "transactional.id": self.transactional_id}
        self._producer = Producer(settings)
        # Its thread calls the producer while this thread waits, and may still do so after a timeout. librdkafka's
        # producer is thread-safe, and is not used again after a timeout.
        self._bounded = BoundedCaller(f"{self.transactional_id}-offsets")
        try:
            self._call("init_transactions", lambda: self._producer.init_transactions(_CALL_TIMEOUT))
        except BaseException as error:
            self.close()
            if isinstance(error, Abandoned):
                raise NoAnswer(str(error)) from error
            raise

    def begin(self) -> None:
        """Begin a transaction, with a new epoch if the last one may be in use. Raises as ``renew`` does."""
        self._probe("begin")
        if self.is_spent:
            self.renew()
        self._call("begin_transaction", self._producer.begin_transaction)
        self._begun = time.monotonic()
        self.open = True

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Produce a record; wait while the queue is full. Raises ``Aborted``, ``Fenced``; ``RelayError``: too large."""
        if headers is None and value is not None:
            self._check_size(topic, value, key or b"")
        has_asked = False
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                try:
                    self._producer.poll(0.1)  # I11: the queue is bounded, so wait for the broker
                except KafkaException as error:
                    self._raise_failure("produce", error)
                self._check_stop("produce", "the queue of the producer is full")
            except KafkaException as error:
                if error.args[0].code() in (KafkaError._STATE, KafkaError._FATAL):
                    # The transaction failed in the background. This error has no flag; abort() will raise Fenced if the
                    # failure was fatal.
                    self._refuse_if_too_large()
                    raise Aborted(f"produce: {error.args[0].str()}") from error
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    self._raise_failure("produce", error)
                if has_asked:
                    raise Aborted(f"produce: {error.args[0].str()}") from error
                has_asked = True
                with suppress(KafkaException):  # the topic has got more partitions since the client asked last
                    self._producer.list_topics(topic, timeout=_CALL_TIMEOUT)

    def _check_size(self, topic: str, value: bytes, key: bytes) -> None:
        """I10: the broker would refuse the record for ever. A checkpoint grows with its GTID set."""
        limit = self._limits.get(topic)
        if limit is not None and (size := record_size(value, key, [])) > limit:
            name = key.decode(errors="replace")
            raise RelayError(f"the record {name} takes {size} bytes, but {too_small(topic, limit, size)}")

    def flush(self) -> None:
        """Wait for the acknowledgement of every record. Raises ``TooSlow``, then ``Aborted``, and ``Fenced``."""
        if self._gave_up:  # I1: the transaction must not be committed without them
            raise Aborted(f"the broker did not acknowledge some of its records in time: {_IF_SLOW}")
        deadline = self._begun + _FLUSH_SHARE * self._timeout
        try:
            while left := _unmasked(partial(self._producer.flush, _FLUSH_SLICE)):
                self._check_stop("flush", f"{left} records are not acknowledged")
                if time.monotonic() > deadline:
                    self._producer.purge(in_queue=True, in_flight=True, blocking=False)
                    self._gave_up = True
                    within = _FLUSH_SHARE * self._timeout
                    raise TooSlow(f"the broker did not acknowledge {left} records within {within:.0f} s: {_IF_SLOW}")
        except KafkaException as error:
            self._raise_failure("flush", error)

    def commit(self, offsets: list[TopicPartition], metadata: Callable[[], Any]) -> None:
        """Commit the open transaction with the group's ``offsets``. Raises ``Aborted``, ``Fenced``, ``NotDrained``."""
        self._probe("before_send_offsets")
        send = partial(self._producer.send_offsets_to_transaction, offsets, metadata(), _CALL_TIMEOUT)
        check = partial(self._check_stop, "send_offsets", "the call has not returned")  # calls may ignore timeouts
        self._sends_offsets = True
        try:
            self._call("send_offsets", lambda: self._bounded(send, self._timeout, check))
        except CallTimedOut as error:
            self._abandon("send_offsets", error, error)
        except (Aborted, Fenced) as error:
            self._sends_offsets = isinstance(error, Abandoned)  # I11: otherwise the call was answered
            raise
        self._sends_offsets = False
        self._probe("after_send_offsets")
        self.commit_without_offsets()

    def commit_without_offsets(self) -> None:
        """Commit the open transaction without offsets of a group. Raises ``Aborted`` or ``Fenced``."""
        self._probe("before_commit")
        self._call("commit", lambda: self._producer.commit_transaction(_CALL_TIMEOUT))
        self.open = False
        self._probe("after_commit")

    def close(self) -> None:
        """Close it, even twice. An open transaction stays open until the broker or a successor aborts it."""
        self.open = False
        self._bounded.close()
        producer = self.__dict__.pop("_producer", None)
        if producer is not None and self._sends_offsets:
            # Freeing it while librdkafka may be sending offsets would corrupt its memory.
            producer.purge(in_queue=True, in_flight=True, blocking=False)  # the client must not go on sending
            keep_for_ever(producer)

    def _abandon(self, name: str, reason: object, error: Exception) -> NoReturn:
        self.open = False
        what = f"no broker at {self._brokers} has answered {name} for {self._timeout:.0f} s"
        raise Abandoned(f"{self.transactional_id}: {what}: {reason}") from error

    def abort(self) -> None:
        """Abort the open transaction, if there is one. Raises ``Fenced``, or ``NotDrained`` if it is too late."""
        if not self.open:
            return
        self._check_stop("abort", "no time is left")
        self._has_aborted = True  # I3: a late abort would end part of a later transaction
        try:
            self._call("abort", lambda: self._producer.abort_transaction(_CALL_TIMEOUT))
        except Aborted as error:
            raise Fenced(f"{self.transactional_id}: cannot abort the transaction: {error}") from error
        self.open = False

    def _call(self, name: str, call: Callable[[], T]) -> T:
        """Retry ``call`` until the broker answers. A timed-out call may have taken effect; repeating it is safe.

        Raises ``Abandoned`` after the transaction timeout: another client may get through (librdkafka issue 3779).
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                # Delivers librdkafka's log lines, and raises a fatal error that has shown in the background.
                self._producer.poll(0)
                return _unmasked(call)
            except KafkaException as error:
                failure: KafkaError = error.args[0]
                ended = failure.fatal() or failure.txn_requires_abort()
                # A timed-out call is not flagged as retriable.
                if ended or not (failure.retriable() or failure.code() == KafkaError._TIMED_OUT):
                    self._raise_failure(name, error)
                self._check_stop(name, failure.str())
                if time.monotonic() > deadline:
                    self._abandon(name, failure.str(), error)
                log.info("%s: %s failed at %s, retrying: %s", self.transactional_id, name, self._brokers, failure.str())
                time.sleep(0.05)

    def _check_stop(self, name: str, reason: str) -> None:
        if time.monotonic() > self._stop_by():
            raise NotDrained(
                f"{self.transactional_id}: stopping, but no broker at {self._brokers} answers {name}: {reason}. "
                "The next start reads again what was not committed"
            )

    def _refuse_if_too_large(self) -> None:
        """Raise ``RelayError`` if a record was too large: the reason, which only the refused commit says."""
        try:
            self._producer.commit_transaction(_CALL_TIMEOUT)
        except KafkaException as refused:
            if refused.args[0].code() in _TOO_LARGE:
                self._raise_failure("produce", refused)

    def _raise_failure(self, name: str, error: KafkaException) -> NoReturn:
        failure: KafkaError = error.args[0]
        if failure.code() in _TOO_LARGE:
            # I10: the broker would refuse the same records for ever.
            raise RelayError(
                f"{self.transactional_id}: {name}: {failure.str()}: the max.message.bytes of a topic was lowered after "
                "this process started. Nothing was skipped; restart the relay to apply the new limit"
            ) from error
        if failure.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            # The error is fatal, but another producer would be refused as well.
            raise Unavailable(
                f"this user may not use the transactional id {self.transactional_id}: allow Describe and Write on it: "
                f"{failure.str()}"
            ) from error
        if failure.fatal():
            raise Fenced(f"{name}: {failure.str()}") from error
        if failure.txn_requires_abort():
            raise Aborted(f"{name}: {failure.str()}") from error
        if failure.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            what = "the broker does not allow this user to publish"
            raise Unavailable(f"{self.transactional_id}: {what}: {failure.str()}") from error
        raise RelayError(f"{self.transactional_id}: {name} failed: {failure.str()}") from error


def _unmasked(call: Callable[[], T]) -> T:
    """Return or raise the result of ``call``, whose error the log lines that a flush delivers may mask."""
    try:
        return call()
    except SystemError as error:
        cause: BaseException = error
        while isinstance(cause, SystemError) and cause.__cause__ is not None:
            cause = cause.__cause__
    try:
        raise cause  # not while the other error is handled: they would refer to each other, and keep the client
    finally:
        del cause  # see BoundedCaller
