"""The relay's workers, which are killed, paused and stopped at random."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.faults.harness import Relay
from tests.soak.part import Fault

WORKERS = 3

_STOP_WITHIN = 30.0
_CATCH_UP_WITHIN = 1800.0
# Exit codes of workers that were not killed: a stop, a broker that was away for too long, a stop without a broker,
# a stop before anything was begun.
_EXPECTED_CODES = {0, 3, 143, -signal.SIGTERM}


class Workers:
    """``problems``: what is wrong, for whoever asks at the end."""

    def __init__(self, config: Path, seed: int) -> None:
        self.problems: list[str] = []
        self._config = config
        self._chance = random.Random(f"workers/{seed}")
        self._running: list[Relay | None] = [None] * WORKERS
        self._paused: set[int] = set()
        self._started = 0

    def start(self) -> None:
        for number in range(WORKERS):
            self._start(number)

    def faults(self) -> list[Fault]:
        return [Fault("worker", 2, self._kill), Fault("pause", 2, self._pause), Fault("stop", 1, self._stop)]

    def revive(self) -> None:
        """Start those that ended, now or another time."""
        for number, worker in enumerate(self._running):
            if worker is not None and worker.is_running:
                continue
            if worker is not None:
                self._expect(worker.wait(1), worker)
            if worker is None and self._chance.random() < 0.3:
                continue  # it stays away for a while
            self._start(number)

    def settle(self) -> None:
        """Let them run on undisturbed for a moment: they have to be alive and well."""
        deadline = time.monotonic() + 10.0
        while self._paused and time.monotonic() < deadline:
            time.sleep(0.1)
        self.revive()
        time.sleep(3.0)
        self.revive()

    def kill(self) -> None:
        for worker in self._running:
            if worker is not None:
                worker.kill()

    def finish(self) -> None:
        """Relay the rest."""
        last = self._relay("last", "--until-caught-up")
        try:
            code = last.wait(_CATCH_UP_WITHIN)
        except subprocess.TimeoutExpired:
            self.problems.append(f"the last relay is not caught up after {_CATCH_UP_WITHIN} s: {last.where_it_hangs()}")
            return
        if code != 0:
            self.problems.append(f"the last relay ended with exit code {code}: {last.log()}")

    def _kill(self) -> None:
        number = self._one()
        if (worker := self._running[number]) is not None:
            worker.kill()
            self._running[number] = None
            self._paused.discard(number)

    def _stop(self) -> None:
        number = self._one()
        worker = self._running[number]
        if worker is None or number in self._paused:
            return
        self._running[number] = None
        try:
            code = worker.stop(timeout=_STOP_WITHIN)
        except AssertionError as error:
            self.problems.append(f"a worker does not stop: {error}")
        else:
            self._expect(code, worker)

    def _pause(self) -> None:
        """Past the transaction's and the session's time-out, sometimes, and woken after others took over."""
        number = self._one()
        worker = self._running[number]
        if worker is None or number in self._paused:
            return
        worker.pause()
        self._paused.add(number)
        threading.Timer(self._chance.choice((0.3, 2.5, 6.0)), self._wake, (number, worker)).start()

    def _wake(self, number: int, worker: Relay) -> None:
        worker.wake()
        self._paused.discard(number)

    def _one(self) -> int:
        return self._chance.randrange(WORKERS)

    def _start(self, number: int) -> None:
        self._running[number] = self._relay(f"worker-{self._started}")
        self._started += 1

    def _relay(self, name: str, *arguments: str) -> Relay:
        command = [sys.executable, "-m", "relay.cli", "run", str(self._config), *arguments]
        return Relay(command, self._config.with_name(f"{name}.log"))

    def _expect(self, code: int, worker: Relay) -> None:
        if code not in _EXPECTED_CODES:
            self.problems.append(f"a worker ended with exit code {code}: {worker.log()}")
