"""Read a stream from Python, record by record: ``next(stream)``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from relay.dynamodb.coordinator import Coordinator
from relay.dynamodb.cursor import CALLS_TO_REACH_HEAD
from relay.dynamodb.stream_calls import StreamSession
from relay.dynamodb.stream_record import Record, Unpack, unpacked
from relay.dynamodb.stream_shard import OnGap
from relay.stream_token import InvalidPosition, InvalidStream, StreamToken
from relay.types.items import item_values

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

    from relay.dynamodb.models import Model


class Stream:
    """Iterates over the records of one DynamoDB stream, across its shards and their splits::

        stream = Stream(boto3.client("dynamodbstreams"), stream_arn)
        while True:
            record = next(stream)  # None: no new record now
            if record is None:
                time.sleep(1)
            else:
                print(record["new"], record["meta"]["created_at"])

    The records of one item come in the order of its changes, and a shard's records before its children's. Between
    shards the order is by creation time, which is approximate.

    ``client``: a boto3 client of ``dynamodbstreams``, or a `StreamSession`. ``position``: where to start, see
    ``move_to``. ``unpack``: converts each image and key, which are DynamoDB-typed dicts; True converts them to plain
    Python values, as ``relay.item_values`` does. If it raises, the next call returns the same record. ``model``: a
    class of ``relay.dynamodb.models``, instead of ``unpack``: images become objects, and keys objects with only the key
    read.

    ``on_gap``: called with a ``relay.records.Gap`` before the first record after a gap. Reasons: ``trimmed`` (records
    are older than 24 hours), ``gone`` (the stream no longer has the shard), ``expired`` (the iterator expired before it
    returned a record). If the callback raises, the stream stays before the gap. Without a callback, gaps are logged as
    warnings, and an iterator that expires before its first record raises ``IteratorExpired``.

    ``calls_to_reach_head``: empty pages after which a shard counts as read up to now.

    The constructor and all methods raise ``InvalidPosition`` and ``InvalidStream``, both ``ValueError``, and
    ``Unavailable`` if the service does not answer after 8 tries. Use a stream in one thread at a time.
    """

    def __init__(
        self,
        client: DynamoDBStreamsClient | StreamSession,
        stream_arn: str,
        position: str | datetime | Mapping[str, Any] = "trim_horizon",
        *,
        unpack: Unpack | Literal[True] | None = None,
        model: type[Model] | None = None,
        on_gap: OnGap | None = None,
        calls_to_reach_head: int = CALLS_TO_REACH_HEAD,
    ) -> None:
        if calls_to_reach_head < 1:
            raise ValueError(f"calls_to_reach_head must be at least 1, not {calls_to_reach_head}")
        self.stream_arn = stream_arn
        session = client if isinstance(client, StreamSession) else StreamSession(client, stream_arn)
        if model is not None and unpack is not None:
            raise ValueError("pass only one of `unpack` and `model`: both convert images")
        self._unpack: Unpack | None = item_values if unpack is True else unpack
        self._unpack_key: Unpack | None = None
        if model is not None:
            self._unpack = partial(model.__from_image__, is_key=False)
            self._unpack_key = partial(model.__from_image__, is_key=True)
        self._new = partial(Coordinator, session, on_gap=on_gap, calls_to_reach_head=calls_to_reach_head)
        self._coordinator = self._at(position)

    def __repr__(self) -> str:
        return f"<Stream[{self.stream_arn}]>"

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Record | None:
        """Return the next record, or None if there is none now. Never raises ``StopIteration``."""
        coordinator = self._coordinator
        # Another round may read the children of a shard that ended.
        while not coordinator.buffer and coordinator.advance_shards():
            pass
        if not coordinator.buffer:
            return None
        record, _ = coordinator.buffer.peek()
        if self._unpack is not None:
            record = unpacked(record, self._unpack, self._unpack_key)
        coordinator.pop()
        return record

    def move_to(self, position: str | datetime | Mapping[str, Any]) -> None:
        """Move to another position, and drop records that were read but not returned.

        ``position``: ``"trim_horizon"`` (the oldest record), ``"latest"`` (only new records), a datetime or an Arrow
        (the first record created then or later, to the second; without a time zone it is local time), or a token (the
        records after it). A time is expensive: the stream is read from its beginning.

        Raises ``InvalidPosition`` if ``position`` is not one of these; ``InvalidStream`` if the stream does not exist,
        or lists none of the token's shards. If it raises, the stream stays at its position.
        """
        self._coordinator = self._at(position)

    def heartbeat(self) -> None:
        """Keep iterators from expiring. Call it at least every 14 minutes: an iterator lives 15 (AWS, "GetRecords").

        Fetches one page of each shard that has not returned a record. All other iterators can be replaced exactly.
        """
        self._coordinator.heartbeat()

    @property
    def token(self) -> dict[str, Any]:
        """The position after the last record that ``next`` returned, for ``json.dump``: see ``relay.stream_token``.

        In a shard that has not returned a record the position is not exact, and a warning is logged.
        """
        return self._coordinator.token.to_json()

    def _at(self, position: object) -> Coordinator:
        coordinator = self._new()
        position = getattr(position, "datetime", position)  # for an Arrow
        if position == "trim_horizon":
            coordinator.start_at_horizon()
        elif position == "latest":
            coordinator.start_at_latest()
        elif isinstance(position, datetime):
            coordinator.start_at_time(position.astimezone())
        elif isinstance(position, Mapping):
            token = StreamToken.from_json(position)
            if token.stream_arn != self.stream_arn:
                raise InvalidStream(f"the token belongs to stream {token.stream_arn}, not to {self.stream_arn}")
            coordinator.start_at_token(token)
        else:
            positions = '"trim_horizon", "latest", a datetime or a token'
            raise InvalidPosition(f"{position!r} is not a position: pass {positions}")
        return coordinator
