"""Read a stream from Python: ``next(stream)``, record by record, in the best order there is (seed 002)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from relay.dynamodb.coordinator import Coordinator
from relay.dynamodb.cursor import CALLS_TO_REACH_HEAD
from relay.dynamodb.session import StreamSession
from relay.dynamodb.shard import OnGap
from relay.dynamodb.stream_record import Record, Unpack, plain, unpacked
from relay.stream_token import InvalidPosition, InvalidStream, StreamToken

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient


class Stream:
    """All records of one DynamoDB stream, shards and their splits included::

        stream = Stream(boto3.client("dynamodbstreams"), stream_arn)
        while True:
            record = next(stream)  # None: nothing now

    Records of one item come in the order they were made, and a shard's before those of its children. Between
    shards the order is by creation time, which is approximate.

    ``position``: what ``move_to`` takes. ``unpack``: called with each image and key, DynamoDB-typed dicts, or True
    for plain Python values (``Decimal``, ``set``, boto3's ``Binary``); when it raises, the same record comes again.

    ``on_gap``: called with a ``relay.lineage.Gap`` before the first record after a loss: ``trimmed`` (older than 24
    hours), ``gone`` (the shard is), ``expired`` (its iterator, before it found a record). If it raises, the stream
    stays before the gap. Without it losses are logged as warnings, and an iterator that expires before its first
    record is raised as ``IteratorExpired``.

    ``calls_to_reach_head``: empty pages after which a shard counts as read up to now. ``clock``: seconds since the
    epoch. Not for several threads at once.

    Raises ``InvalidPosition``, ``InvalidStream``, and ``Unavailable`` when the service does not answer.
    """

    def __init__(
        self,
        client: DynamoDBStreamsClient,
        stream_arn: str,
        position: str | datetime | Mapping[str, Any] = "trim_horizon",
        *,
        unpack: Unpack | Literal[True] | None = None,
        on_gap: OnGap | None = None,
        calls_to_reach_head: int = CALLS_TO_REACH_HEAD,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if calls_to_reach_head < 1:
            raise ValueError(f"calls_to_reach_head is {calls_to_reach_head}: at least one call is needed")
        self.stream_arn = stream_arn
        self._session = StreamSession(client, stream_arn)
        self._unpack: Unpack | None = plain if unpack is True else unpack
        self._on_gap = on_gap
        self._calls_to_reach_head = calls_to_reach_head
        self._clock = clock
        self._sleep = sleep
        self._coordinator = self._at(position)

    def __repr__(self) -> str:
        return f"<Stream[{self.stream_arn}]>"

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Record | None:
        """Return the next record, or None when there is nothing now; never ``StopIteration``.

        Calls the service only when no record is left over from earlier calls.
        """
        coordinator = self._coordinator
        # A shard that ended has no more to give, its children may.
        while not coordinator.buffer and coordinator.advance_shards():
            pass
        if not coordinator.buffer:
            return None
        record, _ = coordinator.buffer.peek()
        if self._unpack is not None:
            record = unpacked(record, self._unpack)
        coordinator.pop()
        return record

    def move_to(self, position: str | datetime | Mapping[str, Any]) -> None:
        """Go to ``"trim_horizon"`` (the oldest record), ``"latest"`` (what comes from now on), the first record of an
        aware time, by whole seconds, or where a token was taken.

        A time is expensive: everything before it is read. Records read and not yet returned are dropped. If it
        raises, the stream stays where it was.
        """
        self._coordinator = self._at(position)

    def heartbeat(self) -> None:
        """Keep iterators from expiring: call it at least every 14 minutes, as often as you like.

        Fetches one page of each shard that has found no record yet; any other iterator can be replaced exactly.
        """
        self._coordinator.heartbeat()

    @property
    def token(self) -> dict[str, Any]:
        """Where the stream stands, as an object for ``json.dump``: after the last record that ``next`` returned.

        Not exact for shards that have found no record: the log warns of them. See ``relay.stream_token``.
        """
        return self._coordinator.token.to_json()

    def _at(self, position: object) -> Coordinator:
        coordinator = Coordinator(
            self._session,
            on_gap=self._on_gap,
            calls_to_reach_head=self._calls_to_reach_head,
            clock=self._clock,
            sleep=self._sleep,
        )
        if position == "trim_horizon":
            coordinator.start_at_horizon()
        elif position == "latest":
            coordinator.start_at_latest()
        elif isinstance(position, datetime):
            if position.utcoffset() is None:
                raise InvalidPosition(f"{position} has no time zone: give an aware datetime")
            coordinator.start_at_time(position)
        elif isinstance(position, Mapping):
            token = StreamToken.from_json(position)
            if token.stream_arn != self.stream_arn:
                raise InvalidStream(f"the token is of the stream {token.stream_arn}, not of {self.stream_arn}")
            coordinator.start_at_token(token)
        else:
            raise InvalidPosition(
                f'{position!r} is no position: give "trim_horizon", "latest", an aware datetime or a token'
            )
        return coordinator
