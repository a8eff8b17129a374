"""Child processes that are awaited until ready and always cleaned up, and free ports for them."""

import atexit
import contextlib
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from relay.errors import Unavailable
from relay.process import die_with_parent
from relay.process.account import Account
from relay.process.slow_call import fill

HOST = "127.0.0.1"

_TAIL_BYTES = 64 << 10

_Popen = subprocess.Popen[bytes]

# Processes that are meant to outlive this one. Any thread may append; it is read at exit.
_left_running: list[_Popen] = []


@atexit.register
def _suppress_warnings() -> None:
    """Keep Python from warning about processes that are still running."""
    for process in _left_running:
        process.returncode = 0


@dataclass(eq=False, repr=False)
class ManagedProcess:
    """A command in its own session, with its output in a file. Only one thread at a time may use it."""

    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    dies_with_parent: bool = True  # the kernel kills it when this process ends (Linux only)
    account: Account | None = None  # its user; needs root
    stdin: Path = Path(os.devnull)
    _process: _Popen | None = field(default=None, init=False)
    _killed: bool = field(default=False, init=False)

    @property
    def process(self) -> _Popen:
        if self._process is None:
            raise RuntimeError(f"{self.command[0]} has not been started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.poll()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.alive:
            raise RuntimeError(f"{self.command[0]} is already running")
        self._killed = False
        if self.dies_with_parent:
            # To the kernel, the parent is the *thread* that forked, not the process.
            self._process = _call_in_lasting_thread(self._spawn)
        else:
            self._process = self._spawn()
            _left_running.append(self._process)

    def _spawn(self) -> _Popen:
        command = self.command
        if self.dies_with_parent or self.account is not None:
            how = [os.getpid() if self.dies_with_parent else 0]
            if self.account is not None:
                how += [self.account.uid, self.account.gid]
            command = [sys.executable, "-I", "-S", die_with_parent.__file__, ":".join(map(str, how)), *command]
        with self.stdin.open("rb") as stdin, self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                start_new_session=True,
            )

    def run(self, seconds: float) -> str | None:
        """Run the command until it has ended. Return what went wrong, or None for exit status 0."""
        self.start()
        try:
            if self.process.wait(seconds) == 0:
                return None
            return f"failed:\n{self.log_tail()}"
        except subprocess.TimeoutExpired:
            return f"did not end within {seconds:.0f} s:\n{self.log_tail()}"
        finally:
            self.kill()

    def stop(self, timeout: float = 20.0, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it and its children: send a signal, wait up to ``timeout`` seconds, then kill. May be called again."""
        if self.alive:
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill it and its children at once, and wait until it has ended. May be called again."""
        if self._process is None or self._killed:
            return
        # Signal the process group even if its leader has ended, for the leader's children; but only once, because the
        # system may reuse its number.
        self._killed = True
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of its output, from the last 64 KiB."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_until(self, ready: Callable[[], bool], timeout: float, name: str) -> None:
        """Wait until ``ready`` returns True. Raises ``Unavailable`` with the end of the log if it dies or times out."""
        deadline = time.monotonic() + timeout
        # It must be alive after an answer, which may have come from another server on the same port.
        while not (ready() and self.alive):
            if not self.alive:
                raise Unavailable(f"{name} ended with status {self.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} was not ready after {timeout:.0f} s:\n{self.log_tail()}")
            time.sleep(0.05)


def wait_for_end(pid: int, started: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while started_at(pid) == started:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def started_at(pid: int) -> str | None:
    """Return when a process started, in a form that can only be compared, or None if it has ended."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.joinpath("self").exists():
        try:
            # Read after the name, which may hold anything: the state is field 3, the start time field 22.
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] == "Z" else fields[19]
    # No /proc, as on macOS.
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def free_port() -> int:
    """Return a free TCP port of the loopback address, below those (from 32768 on) that outgoing connections take."""
    for _ in range(1000):
        # Not the random module: test tools seed it, so every process would pick the same port.
        port = 15_000 + secrets.randbelow(17_000)
        if not taken(port):
            return port
    raise Unavailable(f"no free port between 15000 and 32000 on {HOST}")


def taken(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return False
    return True


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
        return True
    return False


@cache
def _lasting_thread(process: int) -> queue.SimpleQueue[tuple[Callable[[], _Popen], Future[_Popen]]]:
    """Return the queue of calls for a thread that lasts until this ``process`` ends; a fork starts its own thread."""
    calls: queue.SimpleQueue[tuple[Callable[[], _Popen], Future[_Popen]]] = queue.SimpleQueue()

    def run() -> None:
        while True:
            call, answer = calls.get()
            fill(answer, call)

    threading.Thread(target=run, name="relay-spawner", daemon=True).start()
    return calls


def _call_in_lasting_thread(function: Callable[[], _Popen]) -> _Popen:
    """Call at once in the main thread, which lasts as long as the process; otherwise in a thread that lasts, too."""
    if threading.current_thread() is threading.main_thread():
        return function()
    answer: Future[_Popen] = Future()
    _lasting_thread(os.getpid()).put((function, answer))
    return answer.result()
