"""The clock of a source is that of its servers, whatever that of this machine does."""

from __future__ import annotations

import ast
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import relay
from relay.mysql.connection import connect
from relay.mysql.relayed_tables import Layouts
from relay.process.service_clock import ServiceClock
from tests.clock import Clock
from tests.mysql.reading import session
from tests.mysql.scripted import Scripted, running
from tests.mysql.shards import begin, config, open_at, read_to_head, source_of


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


ENDED = 600.0  # seconds since the clocks went back by an hour, so that each time of the day comes twice now


def _by_system() -> str:
    """Return a zone, as TZ has it, whose summer time has just ended."""
    ended = time.gmtime(time.time() - ENDED + 3600)
    day = min(ended.tm_yday, 365)
    return f"STD0DST-1,J{(day + 200) % 365 + 1}/0,J{day}/{ended.tm_hour}:{ended.tm_min:02}:{ended.tm_sec:02}"


def _by_tables(server: Any) -> None:
    """Give the server the zone `Some/City`, whose summer time has just ended, in its own tables."""
    ended = int(time.time() - ENDED)
    for statement in (
        *(f"DELETE FROM mysql.time_zone{each}" for each in ("", "_name", "_transition", "_transition_type")),
        "INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (1, 'N')",
        "INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES ('Some/City', 1)",
        "INSERT INTO mysql.time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation)"
        " VALUES (1, 0, 0, 0, 'STD'), (1, 1, 3600, 1, 'DST')",
        "INSERT INTO mysql.time_zone_transition (Time_zone_id, Transition_time, Transition_type_id)"
        f" VALUES (1, 0, 0), (1, {ended - 15_000_000}, 1), (1, {ended}, 0), (1, {ended + 15_000_000}, 1)",
    ):
        server.execute(statement)
    server.restart()


@pytest.mark.services
@pytest.mark.parametrize("zone", ["SYSTEM", "Some/City"])
def test_times_are_right_in_the_hour_after_summer_time_and_when_the_zone_changes(
    kind: Any, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """I1, I8: by the server's local time, an hour would be taken for the one before it."""
    if zone == "SYSTEM":
        monkeypatch.setenv("TZ", _by_system())
    with kind() as server:
        if zone != "SYSTEM":
            _by_tables(server)
        server.execute(f"SET GLOBAL time_zone = '{zone}'")
        ((wrong, of_system),) = server.execute("SELECT UNIX_TIMESTAMP(NOW()) - UNIX_TIMESTAMP(), @@system_time_zone")
        # This is that hour: in a zone of tables, NOW() is taken for the first of the two.
        assert (int(wrong) == -3600) if zone != "SYSTEM" else (of_system == "STD")
        with session(server, "shop") as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP, d DATETIME)")
            source = source_of("shop", server)
            with closing(open_at(source, begin(source)["-"])) as reader:
                found = []
                for number, changed in enumerate((zone, "+05:00", "-11:00", zone)):
                    server.execute(f"SET GLOBAL time_zone = '{changed}'")
                    begun = time.time()
                    with closing(server.connect(database="shop")) as written, written.cursor() as cursor:
                        cursor.execute(
                            "INSERT t VALUES (%s, FROM_UNIXTIME(1700000000), '2023-11-14 22:13:20')", (number,)
                        )
                    changes, pages = read_to_head(reader)
                    found += [(change.new or {})["at"] for change in changes]
                    assert [change.token and abs(change.token.timestamp - begun) < ENDED for change in changes] == [
                        True
                    ]
                    assert all(page.progress is None or abs(page.progress - begun) < ENDED for page in pages)
                    assert abs(source.clock() - begun) < ENDED
    assert len(set(found)) == 1


def test_no_statement_of_the_relay_depends_on_the_zone_of_the_server() -> None:
    """I1, I8: also with a zone that is set for the session, the hour that comes twice has times of two meanings."""
    of_zone = re.compile(
        r"\b(?:now|sysdate|curdate|curtime|from_unixtime|convert_tz|current_(?:date|time)|localtime(?:stamp)?)\s*\("
        r"|\bcurrent_timestamp\b|\bunix_timestamp\s*\(\s*[^)\s]",
        re.IGNORECASE,
    )
    assert of_zone.search("SELECT UNIX_TIMESTAMP(NOW(6))")
    assert not of_zone.search("select unix_timestamp() - 1, @@timestamp")
    for file in sorted(Path(relay.__file__).parent.rglob("*.py")):
        tree = ast.parse(file.read_text())
        texts = [
            each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        assert [text for text in texts if of_zone.search(text)] == [], file
