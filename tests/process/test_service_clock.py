"""The clock of a database: never ahead of any of its servers, whatever the clock of this machine does."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.process.service_clock import ServiceClock
from tests.clock import Clock

NOON = 1_700_049_600.0


@pytest.fixture
def monotonic() -> Clock:
    return Clock(500.0)


@pytest.fixture
def clock(monotonic: Clock) -> ServiceClock:
    return ServiceClock(monotonic)


def test_before_the_first_answer_it_is_the_time_of_this_machine(clock: ServiceClock) -> None:
    assert not clock.is_known
    assert abs(clock() - time.time()) < 60


def test_between_two_answers_the_monotonic_clock_counts(
    clock: ServiceClock, monotonic: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: a clock that somebody sets does not show how far a shard was read."""
    clock.note(NOON)
    monkeypatch.setattr(time, "time", lambda: NOON + 7200)
    monotonic.now += 10.0
    assert clock() == NOON + 10
    assert clock.at(monotonic.now - 3) == NOON + 7


def test_a_slow_answer_and_one_that_is_rounded_down_do_not_put_it_back(clock: ServiceClock, monotonic: Clock) -> None:
    clock.note(NOON)
    monotonic.now += 20.0
    clock.note(NOON + 5)
    assert clock() == NOON + 20


def test_it_follows_a_clock_that_was_put_forward_with_the_next_answer(clock: ServiceClock, monotonic: Clock) -> None:
    clock.note(NOON)
    monotonic.now += 1.0
    clock.note(NOON + 3600)
    assert clock() == NOON + 3600


def test_it_follows_a_clock_that_was_put_back_within_minutes(clock: ServiceClock, monotonic: Clock) -> None:
    """I1: the changes that come have earlier times."""
    clock.note(NOON)
    for _ in range(180):
        monotonic.now += 1.0
        clock.note(NOON - 3600 + monotonic.now)
    assert clock() == NOON - 3600 + monotonic.now


def test_a_machine_that_slept_is_behind_until_the_next_answer(clock: ServiceClock, monotonic: Clock) -> None:
    clock.note(NOON)
    monotonic.now += 1.0  # and an hour in which the monotonic clock stood still
    assert clock() == NOON + 1
    clock.note(NOON + 3601)
    assert clock() == NOON + 3601


def test_of_several_servers_the_last_counts_and_one_that_is_gone_is_forgotten(
    clock: ServiceClock, monotonic: Clock
) -> None:
    """I1: whichever of them dates a change."""
    clock.note(NOON, "one")
    clock.note(NOON - 100, "two")
    assert clock() == NOON - 100
    monotonic.now += 700.0
    clock.note(NOON + 700, "one")
    assert clock() == NOON + 700


@given(st.lists(st.tuples(st.floats(0.001, 90.0), st.floats(0.0, 20.0), st.sampled_from(["a", "b"])), min_size=1))
def test_it_is_never_ahead_of_a_service_that_rounds_down_and_answers_slowly(
    answers: list[tuple[float, float, str]],
) -> None:
    """I1. And behind by no more than a second and the quickest of the last answers."""
    monotonic = Clock(0.0)
    clock = ServiceClock(monotonic)
    for pause, transit, server in answers:
        monotonic.now += pause
        made = int(NOON + monotonic.now)
        monotonic.now += transit
        clock.note(made, server)
        assert NOON + monotonic.now - 21.0 - 1e-3 <= clock() <= NOON + monotonic.now + 1e-3
