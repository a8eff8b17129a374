"""A child process that is ready when it says so, and gone when it should be.

May be changed here: how long things may take, and which ports are picked.
"""

from __future__ import annotations

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
from pathlib import Path

from relay.errors import Unavailable
from relay.process import die_with_parent
from relay.process.account import Account

HOST = "127.0.0.1"

_LAUNCH = Path(die_with_parent.__file__)
_TAIL_BYTES = 64 << 10

# Processes that are meant to outlive this one.
_left_running: list[subprocess.Popen[bytes]] = []


@atexit.register
def _let_go() -> None:
    """Keep Python from warning about processes that still run."""
    for process in _left_running:
        process.returncode = 0


class ManagedProcess:
    """A command in a session of its own, its output in a file.

    With ``dies_with_parent`` the kernel kills it when this process ends, however it ends (Linux only; elsewhere
    call ``stop``). With an ``account`` it runs as that one, which only root can ask for.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        dies_with_parent: bool = True,
        account: Account | None = None,
        stdin: Path | None = None,
    ) -> None:
        self.command = list(command)
        self.log = log
        self.environment = dict(environment or {})
        self.dies_with_parent = dies_with_parent
        self.account = account
        self.stdin = stdin or Path(os.devnull)
        self._process: subprocess.Popen[bytes] | None = None
        self._swept = False

    def __repr__(self) -> str:
        return f"<ManagedProcess[{self.command[0]}, pid={self._process.pid if self._process else None}]>"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.command[0]} was not started")
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
        """Start it; output is appended to the log."""
        if self.alive:
            raise RuntimeError(f"{self!r} is running")
        self._swept = False
        if self.dies_with_parent:
            # The kernel means the *thread* that forked, not the process.
            self._process = _in_lasting_thread(self._spawn)
        else:
            self._process = self._spawn()
            _left_running.append(self._process)

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = self.command
        if self.dies_with_parent or self.account is not None:
            how = [os.getpid() if self.dies_with_parent else 0]
            if self.account is not None:
                how += [self.account.uid, self.account.gid]
            command = [sys.executable, "-I", "-S", str(_LAUNCH), ":".join(map(str, how)), *command]
        with self.stdin.open("rb") as stdin, self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                start_new_session=True,
            )

    def stop(self, timeout: float = 20.0) -> None:
        """End it and what it started: ask, wait ``timeout`` seconds, kill. Does nothing the second time."""
        if self.alive:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill it and what it started, at once, and wait until it is gone. Does nothing the second time."""
        if self._process is None or self._swept:
            return
        # The group is signalled even if its leader ended, for what the leader left; but only once, since its
        # number may belong to somebody else later.
        self._swept = True
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of its output."""
        return log_tail(self.log, lines)

    def wait_until(self, ready: Callable[[], bool], timeout: float, name: str) -> None:
        """Ask ``ready`` until it says yes. Raises ``Unavailable`` with the log's end if it dies or takes too long."""
        deadline = time.monotonic() + timeout
        # Still alive once somebody answered: it may have been another server on a port that this one wanted.
        while not (ready() and self.alive):
            if not self.alive:
                raise Unavailable(f"{name} ended with status {self.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} was not ready after {timeout:.0f} s:\n{self.log_tail()}")
            time.sleep(0.05)


def log_tail(log: Path, lines: int) -> str:
    """Return the last lines of a log file, of its last 64 KiB."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-lines:])


def free_port() -> int:
    """Return a TCP port of the loopback address that nobody listens on now.

    Not one of the kernel's ephemeral ports (32768 and up): a client's outgoing connection could take such a port
    while its server restarts, or connect to itself.
    """
    for _ in range(1000):
        # Not the random module: test tools seed it, and then every process picks the same.
        port = 15_000 + secrets.randbelow(17_000)
        if not taken(port):
            return port
    raise Unavailable(f"no free port between 15000 and 32000 on {HOST}")


def taken(port: int) -> bool:
    """Tell whether the port cannot be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def accepts(port: int) -> bool:
    """Tell whether something accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0):
            return True
    except OSError:
        return False


class _Spawner:
    """A thread that lasts until the process ends, to fork children that live as long.

    Bound to one process: a fork of ours has no such thread and makes its own.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._calls: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._run, name="relay-spawner", daemon=True).start()

    def _run(self) -> None:
        while True:
            call, answer = self._calls.get()
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

    def call(self, function: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._calls.put((function, answer))
        return answer.result()


_spawner: _Spawner | None = None
_spawner_lock = threading.Lock()


def _in_lasting_thread(function: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Call in this thread if it is the main one, which lasts as long as the process, else in the spawner's."""
    global _spawner
    if threading.current_thread() is threading.main_thread():
        return function()
    with _spawner_lock:
        if _spawner is None or _spawner.pid != os.getpid():
            _spawner = _Spawner()
    return _spawner.call(function)
