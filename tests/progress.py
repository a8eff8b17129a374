"""Says twice a minute how far a run of the tests has come, and what is still to come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.longest_first import file_of

_EVERY = 30.0  # seconds


class Progress:
    """A plugin of the process that reports. ``expected``: seconds of a test, whose file has so many."""

    def __init__(
        self,
        expected: Callable[[str, int], float],
        say: Callable[[str], object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = expected
        self._say = say
        self._now = now
        self._begun = self._said = now()
        self._left: dict[str, float] = {}  # by test, in the order in which they begin
        self._done = 0
        self._done_seconds = 0.0
        self._running: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if not self._left and not self._done:  # every process has the same
            self.begin(ids)

    def begin(self, tests: Sequence[str]) -> None:
        in_file = Counter(map(file_of, tests))
        self._left = {test: self._expected(test, in_file[file_of(test)]) for test in tests}
        self._begun = self._said = self._now()

    @property
    def is_complete(self) -> bool:
        """Whether every test has been run to its end: not one whose process crashed, and none after an interruption."""
        return not self._left

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running.add(file_of(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and report.nodeid in self._left:
            self.end(report.nodeid)

    def end(self, test: str) -> None:
        """Count a test that has ended."""
        self._done += 1
        self._done_seconds += self._left.pop(test)
        if self._now() - self._said >= _EVERY and self._left:
            self._said = self._now()
            self._say(self._line())

    def _line(self) -> str:
        files = dict.fromkeys(map(file_of, self._left))
        running = [file for file in files if file in self._running]
        coming = [file for file in files if file not in self._running]
        took = self._now() - self._begun
        left = took / max(self._done_seconds, 1e-9) * sum(self._left.values())
        text = f"{self._done} of {self._done + len(self._left)} tests in {took / 60:.0f} min, about {left / 60:.0f} min"
        text += f" to go with {', '.join(running[:5])}" if running else " to go"
        return f"{text}; then {', '.join(coming[:3])} ({len(coming)} files)" if coming else text
