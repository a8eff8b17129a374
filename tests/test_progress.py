"""What a run of the tests says about itself."""

from __future__ import annotations

from tests.clock import Clock
from tests.progress import Progress


def test_twice_a_minute_it_is_said_what_runs_what_comes_and_how_long_that_may_take() -> None:
    clock, said = Clock(), list[str]()
    progress = Progress(lambda test, in_file: 20.0 / in_file, said.append, clock)
    progress.begin(["a::1", "a::2", "b::1", "c::1", "d::1", "e::1", "f::1"])
    progress.pytest_runtest_logstart("a::1")
    clock.now += 29
    progress.end("a::1")
    assert said == []
    progress.pytest_runtest_logstart("b::1")
    clock.now += 31
    progress.end("b::1")
    assert said == ["2 of 7 tests in 1 min, about 3 min to go with a; then c, d, e (4 files)"]
    for test in ("a::2", "c::1", "d::1", "e::1"):
        progress.end(test)
    assert len(said) == 1
    clock.now += 240
    progress.end("f::1")
    assert len(said) == 1, "nothing is left to say"
