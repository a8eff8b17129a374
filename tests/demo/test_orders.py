"""When the incidents of a load happen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relay.demo.orders import Incident, run_all
from tests.clock import Clock


def played(seconds: float, *lasting: tuple[float, float]) -> tuple[list[float], list[float]]:
    """Run incidents that are given as fraction and duration; return when each began, and what was shown as left."""
    clock = Clock()
    start = clock.now
    began: list[float] = []
    shown: list[float] = []

    def incident(lasts: float) -> Callable[[], str]:
        def do() -> str:
            began.append(clock.now - start)
            clock.now += lasts
            return "it happened"

        return do

    def sleep(pause: float) -> None:
        clock.now += pause

    said: list[str] = []
    incidents = [Incident(at, incident(lasts)) for at, lasts in lasting]
    run_all(incidents, seconds, said.append, shown.append, clock=clock, sleep=sleep)
    assert said == [f"after {when:.0f} s: it happened" for when in began]
    lasted = clock.now - start
    assert lasted >= seconds
    # Writers go on after each for as long as if it had begun in time.
    assert all(lasted - when >= seconds * (1 - at) for when, (at, _) in zip(began, lasting, strict=True))
    return began, shown


def test_incidents_begin_when_they_are_due() -> None:
    began, shown = played(8, (0.25, 0.5), (0.5, 0.5))
    assert began == [2, 4]
    assert shown[0] == 8
    assert shown == sorted(shown, reverse=True)
    assert shown[-1] > 0


@pytest.mark.parametrize("lasts", [3.0, 4.5, 60.0])
def test_an_incident_that_takes_longer_than_the_load_leaves_none_out(lasts: float) -> None:
    began, _ = played(6, (0.2, lasts), (0.5, 1.0), (0.6, 0.0))
    assert began == [1.25, 1.25 + lasts, 2.25 + lasts]


def test_a_load_without_incidents_lasts_as_long_as_it_should() -> None:
    assert played(1) == ([], [1.0, 0.75, 0.5, 0.25])
