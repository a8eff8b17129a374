"""Runs several workers on one machine, which share only Kafka: starts, restarts and stops them."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from relay.errors import ConfigError, NotDrained, RelayError
from relay.process import die_with_parent
from relay.process.signals import Signals

log = logging.getLogger(__name__)

# The environment variables with the number of a worker, from 0, and the number of workers on this machine.
WORKER_NUMBER, WORKERS = "RELAY_WORKER", "RELAY_WORKERS"

_EARLY_DEATH = 60.0  # a worker that dies within this many seconds of its start has failed
_MOST_FAILURES = 5  # such failures in a row, after which all workers are stopped
_LONGEST_BACKOFF = 30.0
_DRAIN_TIMEOUT = 20.0  # seconds, longer than a worker's own
_POLL_INTERVAL = 0.1


class WorkersFailed(RelayError):
    """A worker keeps dying soon after its start. Carries its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class _Worker:
    number: int
    process: subprocess.Popen[bytes] | None = None
    # Monotonic times of its start and of its next restart.
    started: float = 0.0
    restart_at: float = 0.0
    failures: int = 0
    done: bool = False


class Supervisor:
    """Runs ``count`` processes of ``command``, with ``RELAY_WORKERS`` and the number of each in ``RELAY_WORKER``.

    ``until_done``: a worker that ends with exit code 0 or 1 is done, and ``run`` ends when all are. Other threads may
    only call ``stop``.
    """

    def __init__(self, command: Sequence[str], count: int, *, until_done: bool = False) -> None:
        self.command = list(command)
        self.until_done = until_done
        self._failed: WorkersFailed | None = None
        # The signal that asked to stop. Set by a signal handler or by another thread, and polled by ``run``.
        self.stopping: int | None = None
        # Whether SIGHUP has asked for a reload that was not passed on to the workers. Set and polled in the same way.
        self._reloading = False
        self._workers = [_Worker(number) for number in range(count)]

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Stop all workers. Safe to call from a signal handler."""
        self.stopping = signum

    def reload(self) -> None:
        """Make all workers reload their config. Safe to call from a signal handler."""
        self._reloading = True

    def run(self) -> None:
        """Keep the workers running until stopped or done. Raises ``WorkersFailed`` and ``NotDrained``."""
        try:
            while self.stopping is None and not all(worker.done for worker in self._workers):
                if self._reloading:
                    self._reloading = False
                    for process in self._running():
                        process.send_signal(signal.SIGHUP)
                for worker in self._workers:
                    self._check(worker)
                time.sleep(_POLL_INTERVAL)
        finally:
            drained = self._stop_all()
        if self.stopping == signal.SIGTERM and not drained:
            raise NotDrained(
                "not every worker could commit its open transaction; the next start reads those changes again"
            )
        if self._failed is not None and self.stopping is None:
            raise self._failed

    def _check(self, worker: _Worker) -> None:
        if worker.done:
            return
        if worker.process is None:
            if time.monotonic() >= worker.restart_at:
                self._start(worker)
            return
        if (code := worker.process.poll()) is None:
            return
        worker.process = None
        if self.until_done and code in (0, RelayError.exit_code):
            worker.done = True
            if code:  # I12
                self._failed = WorkersFailed(f"worker {worker.number} ended with exit code 1; see its error", code)
            return
        self._schedule_restart(worker, code)

    def _schedule_restart(self, worker: _Worker, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if code == ConfigError.exit_code:
            raise WorkersFailed(f"worker {worker.number} {how}; see its error above", code)
        lived = time.monotonic() - worker.started
        # Exit code 0 means that somebody else stopped it: that is not a failure, but the worker is still wanted.
        worker.failures = worker.failures + 1 if lived < _EARLY_DEATH and code != 0 else 1
        if worker.failures >= _MOST_FAILURES:
            raise WorkersFailed(
                f"worker {worker.number} {how}, {worker.failures} times in a row within {_EARLY_DEATH:.0f} s of its "
                "start; see its error above",
                code if code > 0 else RelayError.exit_code,
            )
        # Jitter, so that workers that died together do not restart together.
        wait = random.uniform(0.5, 1.0) * min(_LONGEST_BACKOFF, 2.0 ** (worker.failures - 1))
        log.warning("worker %d %s after %.0f s; restarting it in %.1f s", worker.number, how, lived, wait)
        worker.restart_at = time.monotonic() + wait

    def _start(self, worker: _Worker) -> None:
        worker.started = time.monotonic()
        # If this process is killed with SIGKILL, its workers must die too.
        wrapper = [sys.executable, "-S", "-E", die_with_parent.__file__, str(os.getpid())]
        # A worker inherits the mask, so that SIGHUP waits until it can handle it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            worker.process = subprocess.Popen(
                [*wrapper, *self.command],
                env={**os.environ, WORKER_NUMBER: str(worker.number), WORKERS: str(len(self._workers))},
                stdin=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        log.info("worker %d started, pid %d", worker.number, worker.process.pid)

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [worker.process for worker in self._workers if worker.process is not None]

    def _stop_all(self) -> bool:
        """Stop all running workers; return whether all of them could commit their open transactions."""
        running = self._running()
        for process in running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _DRAIN_TIMEOUT
        drained = True
        for process in running:
            try:
                drained &= process.wait(max(0.0, deadline - time.monotonic())) != NotDrained.exit_code
            except subprocess.TimeoutExpired:
                said = "killed pid %d, which did not stop in %.0f s; the next start reads its uncommitted changes again"
                log.warning(said, process.pid, _DRAIN_TIMEOUT)
                process.kill()
                process.wait()
                drained = False
        return drained


def run(command: Sequence[str], count: int, *, until_done: bool) -> None:
    """Run ``count`` workers, from the main thread, until SIGTERM (returns) or SIGINT (raises ``KeyboardInterrupt``)."""
    supervisor = Supervisor(command, count, until_done=until_done)
    with Signals(supervisor.reload) as signals:
        signals.stop = supervisor.stop
        supervisor.run()
    if supervisor.stopping == signal.SIGINT:
        raise KeyboardInterrupt
