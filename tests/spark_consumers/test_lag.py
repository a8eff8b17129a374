"""The alarm of a cache consumer that is far behind."""

from __future__ import annotations

from typing import Any

from spark_consumers.cache_batches import LagAlarm


class Logged:
    def __init__(self) -> None:
        self.now = 10_000.0
        self.lines: list[dict[str, Any]] = []
        self.alarm = LagAlarm(3600.0, log=self._log, clock=lambda: self.now)

    def _log(self, event: str, consumer: str, **fields: Any) -> None:
        self.lines.append({"event": event, "consumer": consumer, **fields})

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


def test_each_batch_says_how_long_after_its_oldest_commit_it_was_applied() -> None:
    logged = Logged()
    assert logged.alarm.lag(9_990) == {"lag": 10}
    assert logged.alarm.lag(10_005) == {"lag": 0}  # the clock of the database is ahead
    assert logged.alarm.lag(None) == {}
    assert logged.events() == []


def test_a_lag_of_more_than_half_of_the_tombstone_ttl_is_warned_of() -> None:
    logged = Logged()
    logged.alarm.lag(10_000 - 1800)
    assert logged.events() == []
    logged.alarm.lag(10_000 - 1801)
    (line,) = logged.lines
    assert (line["event"], line["consumer"], line["lag"], line["tombstone_ttl"]) == ("behind", "cache", 1801, 3600.0)
    assert "cache.tombstone_ttl (3600 s)" in line["error"]
    assert "`relay status`" in line["error"]


def test_each_crossing_is_said_once_and_so_is_its_end() -> None:
    logged = Logged()
    for lag in (1801, 5000, 1801, 1800, 0, 1801, 1900, 3):
        logged.alarm.lag(int(logged.now) - lag)
        logged.now += 61
        assert logged.alarm.lag(None) == {}  # a batch without changes has no lag
    assert [(line["event"], line["lag"]) for line in logged.lines] == [
        ("behind", 1801), ("no longer behind", 1800), ("behind", 1801), ("no longer behind", 3),
    ]  # fmt: skip


def test_two_sources_of_which_one_is_late_do_not_fill_the_log() -> None:
    logged = Logged()
    for number in range(1200):
        logged.alarm.lag(int(logged.now) - (5000 if number % 2 else 1))
        logged.now += 0.1
    assert logged.events() == ["behind"]
    logged.now += 60
    logged.alarm.lag(int(logged.now))
    assert logged.events() == ["behind", "no longer behind"]


def test_a_clock_that_is_set_back_does_not_hide_the_end() -> None:
    logged = Logged()
    logged.alarm.lag(5_000)
    logged.now -= 6000
    logged.alarm.lag(4_000)
    logged.now += 6000
    logged.alarm.lag(5_000)
    assert logged.events() == ["behind", "no longer behind", "behind"]
