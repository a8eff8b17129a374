"""Pages of a snapshot that cannot be read to their end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from relay.change import Snapshot
from relay.mysql.chunks import COLUMNS, INDEXES, PRIMARY
from relay.mysql.database_snapshots import ChunkReader
from relay.mysql.positions import BinlogPosition
from relay.mysql_dialect.tables import lay_out
from relay.records import Shard, ShardCheckpoint, ShardState, SnapshotPart
from relay.source import Page, Segment, Unreadable
from tests.mysql.fake_servers import A, FakeServer

ROWS = [b"\x011\x01a", b"\x012\x01b"]


class DamagedAnswers(FakeServer):
    """Has a table, and answers each SELECT of its rows with the next of ``answers``, which are packets."""

    def __init__(self, *answers: Sequence[bytes]) -> None:
        super().__init__("a", f"{A}:1-9")
        self.answers = list(answers)

    def execute(self, statement: str, arguments: Sequence[object] | None = None) -> Sequence[tuple[Any, ...]]:
        if statement == COLUMNS:
            return [("id", "bigint", None, None), ("name", "varchar(9)", "utf8mb4", "utf8mb4_bin")]
        return [(PRIMARY, "id", 0, None, 0, 0)] if statement == INDEXES else []

    def row_packets(self, statement: str) -> Iterator[bytes]:  # type: ignore[override]
        return (packet for packet in self.answers.pop(0))


@pytest.fixture(params=["core", "core that is not used", "no core"])
def installation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what an installation makes the READs."""
    monkeypatch.setenv("RELAY_NATIVE", "off" if request.param == "core that is not used" else "")
    if request.param == "no core":
        monkeypatch.setitem(sys.modules, "relay.native._core", None)


@pytest.mark.usefixtures("installation")
def test_a_page_with_a_damaged_row_is_read_again_and_each_row_is_there_once() -> None:
    """I3: no READ of the rows before the damaged one is left for a later page."""
    server = DamagedAnswers([ROWS[0], b"\x012\x05b"], ROWS)
    config: Any = SimpleNamespace(name="s", database="d", snapshot_rows_per_second=None)
    layouts: Any = lambda _, table, columns, primary: lay_out("s", table, columns, primary)  # noqa: E731
    published = {"-": ShardCheckpoint(ShardState.READING, BinlogPosition(f"MySQL56/{A}:1-5").to_json(), None)}
    segment = Segment(Shard("s/0"), Snapshot("s", 1), 0, 1, None, SnapshotPart("-", "t"), lambda: published)
    snapshots: Any = SimpleNamespace(config=config, layouts=layouts, clock=time.time, server_of=lambda *_: server)
    reader = ChunkReader(snapshots, segment)
    assert isinstance(reader.read(), Unreadable)
    page = reader.read()
    assert isinstance(page, Page)
    assert [change.key for change in page.changes] == [{"id": 1}, {"id": 2}]
