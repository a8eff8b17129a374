"""What a source says of time is by the clock of DynamoDB, whatever that of this machine does meanwhile."""

from __future__ import annotations

import time
from typing import Any

import pytest

from relay.change import Snapshot
from relay.config import DynamoDBConfig
from relay.dynamodb.source import DynamoDBSource
from relay.dynamodb.stream_calls import AnswerDates
from relay.dynamodb.table_snapshots import MARGIN
from relay.errors import Unavailable
from relay.process.service_clock import ServiceClock
from relay.records import Shard, SnapshotPart
from relay.source import Page, Segment
from tests.clock import Clock
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.dynamodb.opened_source import reader
from tests.reads import read_page

HOUR = 3600.0


class Service:
    """A table whose clock the test holds."""

    def __init__(self, stream: ScriptedStream) -> None:
        self.clock = Clock()
        stream.set_clock(self.clock)
        place: dict[str, Any] = {"table": TABLE, "region": "us-east-1", "endpoint_url": stream.url}
        self.source = DynamoDBSource(DynamoDBConfig(name="orders", type="dynamodb", snapshot="initial", **place))
        self._begun = time.monotonic()
        self.source.connect()

    def is_now(self, seconds: float) -> bool:
        """Whether ``seconds`` may be the service's time, whose clock stands, while the monotonic one goes on."""
        return self.clock.now <= seconds <= self.clock.now + time.monotonic() - self._begun


@pytest.fixture
def service(stream: ScriptedStream) -> Any:
    service = Service(stream)
    yield service
    service.source.close()


@pytest.mark.parametrize("jump", [120.0, -120.0, 24 * HOUR, -24 * HOUR])
def test_a_clock_of_this_machine_that_jumps_changes_nothing(
    service: Service, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """I1, I4: progress and watermarks would promise what is still to come, or stand still."""
    stream.shard("s")
    stream.put("s", "k", 1, created=int(service.clock.now))
    reading = reader(service.source, read_until=service.clock.now)
    assert service.is_now(read_page(reading).begun)
    before = time.time
    monkeypatch.setattr(time, "time", lambda: before() + jump)
    pages = [read_page(reading) for _ in range(8)]
    assert all(service.is_now(page.begun) for page in pages)
    assert all(page.progress is None or page.progress < service.clock.now for page in pages[1:])
    assert not any(page.gap for page in pages)
    assert service.is_now(service.source.starting_points([]).decided_at)


def test_a_clock_of_the_service_that_jumps_is_followed_at_the_next_answer(
    service: Service, stream: ScriptedStream
) -> None:
    stream.shard("s")
    reading = reader(service.source, read_until=service.clock.now)
    for _ in range(3):
        read_page(reading)
    service.clock.now += HOUR
    read_page(reading)  # by a lean call, like each after the first
    assert service.is_now(read_page(reading).begun)


def test_rows_of_a_snapshot_are_dated_before_what_is_still_to_come(
    service: Service, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: they would replace newer ones."""
    stream.shard("s")
    stream.put("s", "k", 1)
    before = time.time
    monkeypatch.setattr(time, "time", lambda: before() + HOUR)
    assert service.source.snapshots is not None
    segment = Segment(Shard("snapshot/0"), Snapshot("snapshot", 1), 0, 1, part=SnapshotPart())
    page = service.source.snapshots.open(segment).read()
    assert isinstance(page, Page)
    [row] = page.changes
    assert row.snapshot is not None
    assert service.is_now(row.snapshot.as_of + MARGIN)
    assert service.is_now(row.committed_at / 1_000_000)


def test_a_service_that_does_not_say_what_time_it_is_is_refused(stream: ScriptedStream) -> None:
    """I1: nobody would know up to when an idle shard is read."""
    stream.set_clock(None)
    place: dict[str, Any] = {"table": TABLE, "region": "us-east-1", "endpoint_url": stream.url}
    source = DynamoDBSource(DynamoDBConfig(name="orders", type="dynamodb", **place))
    with pytest.raises(Unavailable, match="source orders: DynamoDB's answers have no `Date` header"):
        source.connect()
    source.close()


@pytest.mark.parametrize(
    "date", ["", "0", "yesterday", "Fri, 31 Feb 2026 10:00:00 GMT", "Fri, 27 Nov 99999 10:00:00 GMT"]
)
def test_an_answer_with_a_date_that_cannot_be_read_says_nothing(date: str) -> None:
    """I5, I10: it would end the relay, with an error that names neither the source nor the header."""
    clock = ServiceClock(Clock())
    dates = AnswerDates(clock)
    dates.note(date)
    assert not clock.is_known
    dates.note("Fri, 27 Nov 2026 10:00:00 GMT")
    assert clock() == 1_795_773_600.0
    dates.note(date)
    assert clock() == 1_795_773_600.0
