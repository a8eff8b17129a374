"""The DynamoDB source: finds a table's stream, lists its shards and opens them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from relay.config.value_types import StartAtToken
from relay.dynamodb import config_match
from relay.dynamodb.account_pace import pace_of
from relay.dynamodb.columns import TypedRows
from relay.dynamodb.describe import CREATION_PATIENCE, Description, NotAllowed, TableCalls, created
from relay.dynamodb.protection import ProtectedItems
from relay.dynamodb.reader import DynamoDBShardReader
from relay.dynamodb.records import RecordFormat
from relay.dynamodb.resume_at_token import HORIZON, begin_at_token
from relay.dynamodb.stream_calls import ShardNotFound, StreamSession, Transient, TrimmedData
from relay.dynamodb.table_snapshots import TableSnapshots
from relay.dynamodb.values import image_json
from relay.errors import ConfigError, StreamGone, Unavailable
from relay.process.service_clock import ServiceClock
from relay.records import Shard, Start, StreamId
from relay.source import Opening, StartingPoints
from relay.stream_token import LATEST, StreamToken
from relay.table import TableSchema

if TYPE_CHECKING:
    from relay.config import DynamoDBConfig

log = logging.getLogger(__name__)


def table_schema(config: DynamoDBConfig, found: Description) -> TableSchema:
    rows, rules = _typed_rows(config), config.rules(found.table)
    protected = tuple((name, rule.kind) for name, rule in rules.items())
    row = None if rows is None else rows.columns
    return TableSchema(config.name, found.table, found.key, hash_columns=1, row=row, protected=protected)


def _typed_rows(config: DynamoDBConfig) -> TypedRows | None:
    return TypedRows(config.columns, config.rules(config.table_name).keys()) if config.columns else None


class DynamoDBSource:
    """Reads the stream of one table. Call ``connect`` first."""

    has_journals = False
    left_out: Mapping[str, str] = {}

    def __init__(self, config: DynamoDBConfig) -> None:
        self.config = config
        self.name = config.name
        self.start = str(config.start)
        self.on_gap = config.on_gap
        self._rows = _typed_rows(config)
        image = self._rows.checked if self._rows else image_json
        rules = config.rules(config.table_name)
        self._protected = ProtectedItems(rules, image) if rules else None
        self.clock = ServiceClock()
        self._calls = TableCalls(config, clock=self.clock)
        if self._protected is not None:
            image = self._protected.image
        self.snapshots = TableSnapshots(self._calls, lambda: self.table, image, self.clock)
        # The start of this source's last plan, and iterators at the heads of its shards from just before, by shard.
        # Replaced by the thread that makes the plan.
        self._heads: tuple[Start, dict[str, str]] = {}, {}

    def close(self) -> None:
        self._calls.close()

    def has_keys(self, tables: Set[str]) -> None:
        """Nothing follows: a DynamoDB table always has its key."""

    def reload(self, entry: DynamoDBConfig) -> None:
        if entry != self.config:
            raise ConfigError("this source's settings changed; restart the relay to apply them")

    def connect(self, label: str | None = None) -> StreamId:
        # Only the first connection waits for the table to be created: later ones would stop sources that are read.
        found = self._calls.describe(CREATION_PATIENCE if label is None else 0.0)
        config_match.verify(found, self.config)
        if not self.clock.is_known:  # I1
            raise Unavailable(
                f"source {self.name}: DynamoDB's answers have no `Date` header, so the relay cannot tell up to "
                "which time a shard has been read: make the proxy in front of DynamoDB pass it on"
            )
        arn = found.stream_arn
        if label is not None and label != found.stream_label:
            arn = f"{arn.removesuffix(found.stream_label)}{label}"
        self.table = table_schema(self.config, found)
        # With the stream in `stream_arn`, or the table's newest.
        self._described = found
        self.stream = StreamId(self.name, label or found.stream_label)
        streams = self._calls.streams
        self.session = StreamSession(streams, arn, clock=self.clock, pace=pace_of(streams, arn))
        return self.stream

    def first(self) -> str:
        # Not repeated later: which items are seen first is chance, and the name was right once.
        if problem := config_match.unseen_rule(self._calls, self._described):
            raise ConfigError(f"source {self.name}: {problem}")
        start = self.config.start
        if self.config.stream_arn is not None or isinstance(start, StartAtToken) or start == "latest":
            return self.stream.label
        since = self.config.start_time(self.clock())  # I1: by the clock of the service, which dates records and streams
        labels = self._labels()
        begun = [label for label in labels if since is not None and created(label) <= since]
        return begun[-1] if begun else labels[0]

    def following(self) -> str:
        own = self.stream.label
        if self.config.stream_arn is not None:
            return own
        # DescribeTable may lag: never return an older stream.
        newest = max(self._calls.table().get("LatestStreamLabel") or "", own)
        return newest if newest == own else min(label for label in (*self._labels(), newest) if label > own)

    def _labels(self) -> list[str]:
        """Return the labels of the readable streams of the table, oldest first; its newest if it may not list them."""
        try:
            return self._calls.stream_labels(self._described)
        except NotAllowed as error:
            lost = "if the table had another stream in the last 24 hours, its changes are not read"
            log.warning("%s; %s: allow dynamodb:ListStreams", error, lost)
            return [self._described.stream_label]

    def tables(self) -> Sequence[TableSchema]:
        return (self.table,)

    def dropped(self, keys: Mapping[str, Sequence[Sequence[str]]], hashed: Mapping[str, int]) -> Sequence[TableSchema]:
        return ()  # without its table, a source cannot connect

    def config_hash(self) -> str:
        identity = orjson.dumps(["dynamodb", self.session.stream_arn])
        return hashlib.blake2b(identity, digest_size=8).hexdigest()

    def starting_points(self, shards: Sequence[Shard]) -> StartingPoints:
        heads = self._take_heads(shards) if self.start == "latest" else {}
        now = self.clock()  # I1: by the clock of the service
        if isinstance(start := self.config.start, StartAtToken):
            if start.stream_arn != self.session.stream_arn:
                raise ConfigError(
                    f"source {self.name}: the token in {start.path} belongs to the stream {start.stream_arn}, but the "
                    f"source reads {self.session.stream_arn}"
                )
            token = StreamToken.from_json(start.content)
            return begin_at_token(token, shards, self.shards, self.session.has, now)
        since = self.config.start_time(now)
        # I1: changes would be dropped until then.
        begin: Start = HORIZON if since is None else {"since": min(since, now)}
        self._heads = begin, heads
        return StartingPoints({shard.id: begin for shard in shards}, now)

    def _take_heads(self, shards: Sequence[Shard]) -> dict[str, str]:
        """Return, by shard, iterators at the heads. Request them before the time of the plan.

        Unlike creation times they are exact, and they save reading each shard from its horizon. If the relay stops
        before the first record, only the time remains: then it reads from the horizon, and drops older records.
        """
        heads = {}
        for shard in shards:
            with suppress(Transient, ShardNotFound, TrimmedData):
                if (head := self.session.iterator(shard.id, LATEST)) is not None:
                    heads[shard.id] = head
        return heads

    def shards(self) -> list[Shard]:
        """Return one complete listing. Raises ``StreamGone``, or ``Unavailable`` if DynamoDB does not answer."""
        try:
            return list(self.session.describe().shards)
        except ShardNotFound as error:
            gone = f"stream {self.session.stream_arn} does not exist, or no longer exists"
            raise StreamGone(f"source {self.name}: {gone}") from error
        except Unavailable as error:
            raise Unavailable(f"source {self.name}: {error}") from error

    def open(self, opening: Opening) -> DynamoDBShardReader:
        shard = opening.shard.id
        wanted = config_match.wanted_key(self.table.key, self.config.conditions(self.table.table))
        qualified = self.stream.qualified(shard)
        record_format = RecordFormat(self.table, qualified, self._rows, self._protected, wanted)
        planned, heads = self._heads
        # I1: if another worker has made the plan meanwhile, these heads may be later than the plan's start.
        head = heads.pop(shard, None) if opening.position is None and opening.start == planned else None
        return DynamoDBShardReader(self.session, self.stream, opening, record_format, head=head)
