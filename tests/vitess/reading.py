"""Opens readers of shards, and reads with them until a condition holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from relay.change import Change, Snapshot
from relay.config import VitessConfig
from relay.mysql_dialect.followed_tables import FollowedTables
from relay.mysql_dialect.layout_cache import LayoutCache, SkippedTables
from relay.mysql_dialect.tables import Table, lay_out
from relay.records import Shard, ShardCheckpoint, ShardState, SnapshotPart, StreamId
from relay.source import Opening, Page, ReadResult, Segment, ShardReader, Unreadable
from relay.vitess.client import Vtgate
from relay.vitess.moved_tables import TableMoves
from relay.vitess.position import VitessShard
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.reader import VitessShardReader
from relay.vitess.rows import decoder
from relay.vitess.settings import Portion, VStreamSettings
from relay.vitess.source import VitessSource
from relay.vitess.table_reader import CopiedTableReader
from relay.vitess.tables import Tables
from tests.reads import pages_of, reason
from tests.vitess.scripted import KEYSPACE, Answer, Log, Script, ScriptedVtgate, fields

SOURCE = "shop"
START = {"gtid": "MariaDB/0-1-10"}
VINDEX = "show vschema vindexes on `customer`"
TABLES = ("customer", "other")


def layout(name: str, columns: Any, primary: Any) -> Table:
    return replace(lay_out(SOURCE, name, columns, primary), is_strict=True)  # as a source does by default


NOW = {name: made.table for name in TABLES if (made := decoder(fields(name), layout)) is not None}


@contextmanager
def opened(
    vtgate: str,
    start: Mapping[str, Any],
    *,
    shard: str = "0",
    keyspace: str = "commerce",
    tables: tuple[str, ...] | None = ("customer",),
    after: Page | None = None,
    now: Mapping[str, Table] | None = None,
    relayed: Mapping[str, Table] | None = None,
    floor: int = 0,
    clock: Callable[[], float] = time.time,
    skipped: SkippedTables | None = None,
    **settings: Any,
) -> Iterator[VitessShardReader]:
    """Open a reader at ``start``, or at the position of the page ``after`` if it has one.

    ``floor``: seconds, no token is earlier; nor is one earlier than that of ``after``.
    """
    checkpoint = None
    if after is not None and after.position is not None:
        checkpoint = ShardCheckpoint(ShardState.READING, after.position, after.token)
    floor = max(floor, after.token.timestamp if after is not None and after.token is not None else 0)
    settings.setdefault("ask_every", 0.05)
    settings.setdefault("silence", 20.0)
    settings.setdefault("wait", 0.03)
    stream = VStreamSettings(keyspace, tables, portion=Portion.of(start), **settings)
    followed = FollowedTables("", stream.is_wanted, lambda _: {}, lambda: True)
    with closing(Vtgate(vtgate)) as gate:
        reader = VitessShardReader(
            gate,
            StreamId(SOURCE, keyspace),
            Opening(Shard(shard), start, checkpoint, floor),
            Tables(
                layout if skipped is None else LayoutCache(layout, skipped),
                now or {},
                relayed=relayed,
                followed=followed,
                moves=TableMoves(
                    gate, VitessShard.of(StreamId(SOURCE, keyspace), Shard(shard), keyspace), stream, start
                ),
                skipped=skipped,
            ),
            stream,
            clock=clock,
        )
        with closing(reader):
            yield reader


@contextmanager
def copying(
    vtgate: str,
    published: Callable[[], Mapping[str, ShardCheckpoint]],
    *,
    table: str = "customer",
    shard: str = "0",
    keyspace: str = "commerce",
    after: Page | None = None,
    as_of: int = 0,
    now: Mapping[str, Table] | None = None,
    clock: Callable[[], float] = time.time,
    skipped: SkippedTables | None = None,
    **settings: Any,
) -> Iterator[CopiedTableReader]:
    """Open a reader of the rows of ``table``, after those of the page ``after``, for a snapshot.

    ``published``: the checkpoints of the shards. ``now``: the tables that the keyspace has.
    """
    settings.setdefault("silence", 20.0)
    settings.setdefault("wait", 0.03)
    part = SnapshotPart(shard, table)
    position = after.position if after is not None else None
    segment = Segment(Shard("snapshot/0"), Snapshot("snapshot", as_of), 0, 1, position, part, published)
    stream, copied = StreamId(SOURCE, keyspace), VStreamSettings(keyspace, [table], **settings)
    with closing(Vtgate(vtgate)) as gate:
        reader = CopiedTableReader(
            gate,
            stream,
            segment,
            Tables(
                layout,
                {},
                followed=FollowedTables("", lambda _: True, lambda _: {}, lambda: True),
                moves=TableMoves(gate, VitessShard.of(stream, Shard(shard), keyspace), copied, {}),
                skipped=skipped,
            ),
            lambda: NOW if now is None else now,
            copied,
            clock=clock,
        )
        with closing(reader):
            yield reader


def until(reader: ShardReader, enough: Callable[[Page], bool], most: int = 2000) -> list[Page]:
    """Read up to and including a page that is ``enough``. Reads that fail are repeated."""
    return pages_of(results_until(reader, lambda read: isinstance(read, Page) and enough(read), most))


def results_until(reader: ShardReader, enough: Callable[[ReadResult], bool], most: int = 2000) -> list[ReadResult]:
    """Read up to and including a result that is ``enough``. AssertionError after ``most`` reads and half a minute."""
    results: list[ReadResult] = []
    until = time.monotonic() + 30
    while len(results) < most or time.monotonic() < until:
        results.append(reader.read())
        if enough(results[-1]):
            return results
        if isinstance(results[-1], Unreadable):
            time.sleep(0.001)  # as a relay waits: time may be what is missing
    raise AssertionError(f"the condition does not hold after {len(results)} reads; the last was {results[-1]}")


def failure(reader: ShardReader, text: str = "") -> str:
    """Read until a read fails for a reason that has ``text``, and return the whole reason."""
    return reason(results_until(reader, lambda read: isinstance(read, Unreadable) and text in read.reason)[-1])


def is_at_head(page: Page) -> bool:
    return page.reached is not None and not page.changes


def summary(pages: list[Page]) -> list[tuple[Any, ...]]:
    """Return what must be equal whenever the same transactions are read."""
    return [
        (c.event_id, c.operation, c.table, c.key, c.old, c.new, c.token, c.transaction, c.committed_at)
        for page in pages
        for c in page.changes
    ]


def new(*ids: int, text: bytes = b"x") -> list[tuple[None, tuple[bytes, bytes]]]:
    return [(None, (b"%d" % i, text)) for i in ids]


def journal(shards: list[str], targets: list[str]) -> pb.Journal:
    return pb.Journal(
        id=77,
        migration_type=1,
        participants=[pb.KeyspaceShard(keyspace=KEYSPACE, shard=shard) for shard in shards],
        shard_gtids=[pb.ShardGtid(keyspace=KEYSPACE, shard=target, gtid="MariaDB/0-2-5") for target in targets],
    )


def read_all(
    log: Log, after: Page | None = None, answers: Mapping[str, Answer] | None = None, **options: Any
) -> list[Page]:
    with (
        ScriptedVtgate(log.script, answers) as vtgate,
        opened(vtgate.address, START, after=after, tables=TABLES, now=NOW, **options) as reader,
    ):
        return until(reader, is_at_head)


@contextmanager
def source_of(
    log: Log,
    vindex: list[dict[str, str | None]] | str,
    tables: list[str] | None = None,
    script: Script | None = None,
    answers: Mapping[str, Answer | Callable[[], Answer]] | None = None,
    **settings: Any,
) -> Iterator[VitessSource]:
    with ScriptedVtgate(script or log.script, {VINDEX: vindex, **(answers or {})}) as vtgate:
        place = {"type": "vitess", "vtgate": vtgate.address, "keyspace": KEYSPACE, "keyrange": "-"}
        entry = {"name": "s", "tables": tables, **place, **settings}
        with closing(VitessSource(VitessConfig.model_validate(entry))) as source:
            yield source


def read(source: VitessSource, shard: str, wanted: int) -> list[Page]:
    """Read a shard from its start until there are ``wanted`` changes."""
    named = next(each for each in source.shards() if each.id == shard)
    start = source.starting_points([named]).shards[shard]
    with closing(source.open(Opening(named, start))) as reader:
        return list(until_changes(reader, wanted))


def until_changes(reader: Any, wanted: int) -> Iterator[Page]:
    deadline = time.monotonic() + 600
    while wanted > 0:
        assert time.monotonic() < deadline
        read = reader.read()
        if not isinstance(read, Page):
            assert "is not present in the database" in reason(read)  # a tablet learns of a new table later
            time.sleep(0.5)
            continue
        wanted -= len(read.changes)
        yield read


def copied_rows(
    source: VitessSource, parts: Sequence[SnapshotPart], published: Mapping[str, ShardCheckpoint]
) -> list[Change]:
    """Read the segments of a snapshot to their ends."""
    read: list[Change] = []
    for number, part in enumerate(parts):
        place = Shard(f"s/{number}")
        segment = Segment(place, Snapshot("s", 1), number, len(parts), part=part, published=lambda: published)
        with closing(source.snapshots.open(segment)) as reader:
            read += [change for page in until(reader, lambda page: page.finished) for change in page.changes]
    return read
