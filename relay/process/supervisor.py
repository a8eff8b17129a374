"""Several workers on one machine: starts them, starts again those that die, stops them together.

Workers share nothing but Kafka: which of them reads what is the group's affair (``relay.kafka.assignment``). What
counts as a death worth another start, and how long is waited before it, is said here.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relay.errors import ConfigError, NotDrained, RelayError
from relay.process import die_with_parent
from relay.process.signals import Signals

log = logging.getLogger(__name__)

NUMBER = "RELAY_WORKER"
"""The environment variable that tells a worker which of its siblings it is, from 0."""

_SHORT_LIFE = 60.0  # seconds below which a worker has failed at once
_FAILURES = 5  # short lives in a row after which all are stopped
_LONGEST_BACKOFF = 30.0
_DRAIN = 20.0  # seconds for workers to stop in, longer than they take by themselves
_TURN = 0.1


class WorkersFailed(RelayError):
    """Workers die as soon as they are started. Carries the exit code of the last."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class _Worker:
    number: int
    process: subprocess.Popen[bytes] | None = None
    # When it was started, and when it is to be started again, by the monotonic clock.
    begun: float = 0.0
    due: float = 0.0
    failures: int = 0
    done: bool = False
    last_code: int = field(default=0)


class Supervisor:
    """Runs ``count`` processes of ``command``, each with its number in ``RELAY_WORKER``.

    ``until_done``: a worker that ends with exit code 0 is finished, and so is the supervisor once all are.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        until_done: bool = False,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.command = list(command)
        self.until_done = until_done
        self.environment = dict(environment)
        self.clock = clock
        self.stopping: int | None = None
        self._workers = [_Worker(number) for number in range(count)]

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Stop all workers. Safe to call from a signal handler."""
        self.stopping = signum

    def reload(self) -> None:
        """Let all workers read their config again. Safe to call from a signal handler."""
        for worker in self._workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.send_signal(signal.SIGHUP)

    def run(self) -> None:
        """Keep the workers running until stopped, or done. Raises ``WorkersFailed``, ``NotDrained``."""
        try:
            while self.stopping is None and not all(worker.done for worker in self._workers):
                for worker in self._workers:
                    self._look_after(worker)
                time.sleep(_TURN)
        finally:
            drained = self._stop_all()
        if self.stopping == signal.SIGTERM and not drained:
            raise NotDrained("not every worker could commit what it had begun: it is read again at the next start")

    def _look_after(self, worker: _Worker) -> None:
        if worker.done:
            return
        if worker.process is None:
            if self.clock() >= worker.due:
                self._start(worker)
            return
        code = worker.process.poll()
        if code is None:
            return
        worker.process = None
        worker.last_code = code
        if self.until_done and code == 0:
            worker.done = True
            return
        self._died(worker, code)

    def _died(self, worker: _Worker, code: int) -> None:
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if code == ConfigError.exit_code:
            raise WorkersFailed(f"worker {worker.number} {how}: see its message above", code)
        lived = self.clock() - worker.begun
        # One that was told to stop by somebody else did not fail, but is wanted all the same.
        worker.failures = worker.failures + 1 if lived < _SHORT_LIFE and code != 0 else 1
        if worker.failures >= _FAILURES:
            raise WorkersFailed(
                f"worker {worker.number} {how}, {worker.failures} times in a row within {_SHORT_LIFE:.0f} s of its "
                "start: see its message above",
                code if code > 0 else RelayError.exit_code,
            )
        # Jittered, so that workers which died together do not come back all at once.
        wait = random.uniform(0.5, 1.0) * min(_LONGEST_BACKOFF, 2.0 ** (worker.failures - 1))
        log.warning("worker %d %s after %.0f s; starting it again in %.1f s", worker.number, how, lived, wait)
        worker.due = self.clock() + wait

    def _start(self, worker: _Worker) -> None:
        worker.begun = self.clock()
        # Killed with -9, this process must not leave workers that nobody looks after.
        wrapper = [sys.executable, "-S", "-E", str(Path(die_with_parent.__file__)), str(os.getpid())]
        worker.process = subprocess.Popen(
            [*wrapper, *self.command], env={**self.environment, NUMBER: str(worker.number)}, stdin=subprocess.DEVNULL
        )
        log.info("worker %d started, pid %d", worker.number, worker.process.pid)

    def _stop_all(self) -> bool:
        """Stop what runs; return whether all could bring their work to an end."""
        running = [worker.process for worker in self._workers if worker.process is not None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _DRAIN
        drained = True
        for process in running:
            try:
                drained &= process.wait(max(0.0, deadline - time.monotonic())) != NotDrained.exit_code
            except subprocess.TimeoutExpired:
                log.warning("pid %d does not stop; killed. What it had not committed is read again", process.pid)
                process.kill()
                process.wait()
                drained = False
        return drained


def run(command: Sequence[str], count: int, *, until_done: bool) -> None:
    """Run ``count`` workers until SIGTERM (returns) or SIGINT (raises ``KeyboardInterrupt``).

    Call it from the main thread, for the signals' sake.
    """
    supervisor = Supervisor(command, count, until_done=until_done)
    with Signals() as signals:
        signals.stop = supervisor.stop
        signals.reload = supervisor.reload
        supervisor.run()
    if supervisor.stopping == signal.SIGINT:
        raise KeyboardInterrupt
