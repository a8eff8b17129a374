"""Questions to servers that may not answer: reading goes on meanwhile, and a page says what is wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relay.mysql.binlog.events import BinlogEvent
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Interrupted, NotCarried
from relay.mysql.origins import CheckpointTable
from relay.mysql.positions import BinlogPosition
from relay.mysql.probe import BackgroundProbe
from relay.mysql.reader import BinlogShardReader
from relay.mysql.relayed_tables import Layouts
from relay.mysql.reshard import HandoverCheck
from relay.records import Shard
from tests.mysql.fake_servers import A, B, FakeServer, FakeShard
from tests.mysql.scripted_events import Binlog, transaction
from tests.mysql.shards import config
from tests.reads import read_page
from tests.waiting import wait_until

PATIENCE = 120.0  # seconds after which a test gives up


class SilentServers:
    """Servers that do not answer until ``give_up``, when connecting to them fails. ``answered``: how often it has."""

    def __init__(self) -> None:
        self.answered = 0
        self._given_up = threading.Event()

    def connect(self, name: str) -> ServerConnection:
        self._given_up.wait(PATIENCE)
        self.answered += 1
        raise Interrupted(f"{name} does not answer")

    def give_up(self) -> None:
        self._given_up.set()


@pytest.fixture
def silent() -> Iterator[SilentServers]:
    servers = SilentServers()
    yield servers
    servers.give_up()


def reading_of(shard: FakeShard, events: Iterator[list[BinlogEvent]], **more: Any) -> BinlogShardReader:
    return BinlogShardReader(
        Shard("-"),
        BinlogPosition(f"MySQL56/{A}:1-100"),
        shard.servers,
        Layouts(config("shop", {"-": ["one:3306"]})),
        Binlog(events),
        clock=time.time,
        **more,
    )


def some(count: int) -> Iterator[list[BinlogEvent]]:
    """Transactions with one row each, each in a page of its own."""
    for number in range(101, 101 + count):
        yield transaction(f"{A}:{number}", f"MySQL56/{A}:1-{number}")
        yield []


def read_all(reader: BinlogShardReader, count: int) -> None:
    end = f"MySQL56/{A}:1-{100 + count}"
    while read_page(reader).position != {"gtid": end}:
        pass


def warning_of(reader: BinlogShardReader) -> str:
    """Read until a page has a warning."""
    return wait_until(lambda: read_page(reader).warning)


def test_a_shard_is_read_on_while_a_target_of_its_reshard_does_not_answer(silent: SilentServers) -> None:
    """I10: every page asks a question, and none may stop the reading until it times out."""
    end = HandoverCheck("-", lambda: ("-", "-80", "80-"), silent.connect, CheckpointTable.named("_vt.vreplication"))
    reader = reading_of(FakeShard(FakeServer("one", f"{A}:1-150")), some(20), find_handover=end)
    read_all(reader, 20)
    assert silent.answered == 0
    silent.give_up()
    assert "-80 does not answer (since 20" in warning_of(reader)
    reader.close()


def test_a_lagging_replica_is_read_on_while_its_primary_does_not_answer(
    silent: SilentServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: so it is while the search for a better server, and that for the primary, wait for it."""
    monkeypatch.setattr("relay.mysql.current_server._ROLE_EVERY", 0.0)
    replica = FakeServer("one", f"{A}:1-150", replica=True, uuid=B)
    shard = FakeShard(replica, FakeServer("two", f"{A}:1-150"))
    reader = reading_of(shard, some(20))
    read_page(reader)
    replica.status = [{"Seconds_Behind_Source": 500}]
    shard.silent["two:3306"] = silent
    read_all(reader, 20)
    assert silent.answered == 0
    silent.give_up()
    warning = warning_of(reader)
    assert "read from one:3306, which is far behind" in warning
    assert "two:3306 does not answer" in warning
    replica.status = [{"Seconds_Behind_Source": 0}]
    while read_page(reader).warning is not None:
        pass
    reader.close()


def test_opening_a_replica_does_not_wait_for_its_primary(silent: SilentServers) -> None:
    """I10, I4: until it is known whether the primary answers, the replica's own position is not taken for the head."""
    shard = FakeShard(FakeServer("one", f"{A}:1-120", replica=True, uuid=B), FakeServer("two", f"{A}:1-150"))
    shard.silent["two:3306"] = silent
    reader = reading_of(shard, some(20))
    while True:
        page = read_page(reader)
        assert page.reached is None
        if page.position == {"gtid": f"MySQL56/{A}:1-120"}:
            break
    assert silent.answered == 0
    silent.give_up()
    wait_until(lambda: read_page(reader).reached is not None)
    reader.close()


# ---------------------------------------------------------------------- the probe itself


class Asked:
    """A question whose answers a test gives, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.times: list[float] = []
        self.answer: Callable[[], str] = lambda: "yes"
        self.probe = BackgroundProbe("test", self.ask, every=1.0, clock=lambda: self.now)

    def ask(self) -> str:
        self.times.append(self.now)
        return self.answer()

    def result(self) -> str | None:
        self.probe.start()
        return self.probe.wait()


def test_a_question_is_asked_again_after_a_pause_that_grows_while_it_fails() -> None:
    asked = Asked()

    def fail() -> str:
        raise Interrupted("down")

    asked.answer = fail
    for _ in range(400):
        assert asked.result() is None
        asked.now += 0.1
    pauses = [after - before for before, after in zip(asked.times, asked.times[1:], strict=False)]
    assert [round(pause) for pause in pauses] == [1, 2, 4, 8, 10, 10]
    assert (asked.probe.trouble or "").startswith("down (since 20")
    asked.answer = lambda: "yes"
    asked.now += 10
    assert asked.result() == "yes"
    assert asked.probe.trouble is None
    assert asked.result() is None
    asked.now += 1
    assert asked.result() == "yes"


def test_an_error_that_no_retry_can_change_is_raised_where_the_answer_is_taken() -> None:
    asked = Asked()

    def refuse() -> str:
        raise NotCarried("a tag")

    asked.answer = refuse
    asked.probe.start()
    with pytest.raises(NotCarried, match="a tag"):
        asked.probe.wait()


def test_an_answer_that_comes_after_the_probe_was_closed_is_discarded() -> None:
    discarded: list[str] = []
    go = threading.Event()

    def ask() -> str:
        go.wait(PATIENCE)
        return "late"

    probe = BackgroundProbe("test", ask, every=1.0, discard=discarded.append)
    probe.start()
    probe.close()
    assert not probe.is_asking
    go.set()
    wait_until(lambda: bool(discarded))
    assert probe.take() is None
