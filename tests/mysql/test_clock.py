"""The clock of a source is that of its servers, whatever that of this machine does."""

from __future__ import annotations

from contextlib import closing

from relay.mysql.connection import connect
from relay.mysql.layouts import Layouts
from relay.process.service_clock import ServiceClock
from tests.clock import Clock
from tests.mysql.scripted import Scripted, running
from tests.mysql.shards import config


def test_a_server_tells_its_time_whenever_it_is_asked_what_it_has_executed() -> None:
    """I1: a head that was reached says up to when everything is read."""
    of_server, monotonic = Clock(), Clock(100.0)
    clock = ServiceClock(monotonic)
    with (
        running(Scripted(clock=of_server)) as scripted,
        closing(connect("127.0.0.1", scripted.port, clock=clock)) as server,
    ):
        assert clock() == of_server.now
        of_server.now += 3600
        server.executed()
        assert clock() == of_server.now


def test_tables_are_as_they_were_by_the_clock_of_the_server_that_was_asked() -> None:
    """I8: by that of a server that is behind, a statement that ran meanwhile would seem to have begun afterwards."""
    of_server, monotonic = Clock(), Clock(100.0)
    clock = ServiceClock(monotonic)
    clock.note(of_server.now - 3600, "a server whose clock is behind")
    with (
        running(Scripted(clock=of_server)) as scripted,
        closing(connect("127.0.0.1", scripted.port, clock=clock)) as server,
    ):
        assert Layouts(config("d", {"-": [server.account.address]})).now(server).at == of_server.now
    assert clock() == of_server.now - 3600
