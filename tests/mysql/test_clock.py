"""The clock of a source is that of its servers, whatever that of this machine does."""

from __future__ import annotations

from contextlib import closing

from relay.mysql.connection import connect
from relay.process.service_clock import ServiceClock
from tests.clock import Clock
from tests.mysql.scripted import Scripted, running


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
