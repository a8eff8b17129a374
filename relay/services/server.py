"""The base class of the embedded servers: a folder, ports, a process, readiness."""

import atexit
import signal
import tempfile
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from relay.errors import Unavailable
from relay.jvm.java import find_java
from relay.process.account import remove_server_folder, unprivileged
from relay.process.managed import ManagedProcess, free_port, taken

T = TypeVar("T")

_STARTS = 3  # attempts, each with other ports


class EmbeddedServer(ABC):
    """An embedded server: ``with KafkaBroker() as kafka: ...``, or ``start`` and ``stop``.

    ``folder``: the folder for its log and data; by default a temporary one, which ``stop`` removes. ``detached``: it
    outlives this process. ``options``: settings by name, as each server describes them, added to the defaults or
    replacing them. ``start`` and ``restart`` raise ``Unavailable``, with the end of the log, if it does not get ready.
    """

    name: ClassVar[str]
    ports_needed: ClassVar[int] = 1
    refuses_root: ClassVar[bool] = False
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout: ClassVar[float] = 60.0

    def __init__(
        self, folder: Path | None = None, detached: bool = False, options: Mapping[str, str | int] | None = None
    ) -> None:
        self.options = dict(options or {})
        self.detached = detached
        self._given_folder = folder
        self._folder = folder
        self._ports: tuple[int, ...] = ()
        self._process: ManagedProcess | None = None
        self.on_launch: Callable[[], None] = lambda: None  # called after it was launched, before it is ready

    @property
    @abstractmethod
    def address(self) -> str:
        """The address for a client's config."""

    @property
    def login(self) -> str:
        """How a person logs in, if the address does not show it."""
        return ""

    @property
    def url(self) -> str:
        """The address, if it is a URL."""
        return self.address

    @property
    def ports(self) -> tuple[int, ...]:
        """Its ports on the loopback address, the clients' port first. ``restart`` keeps them."""
        return self._started(self._ports or None)

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def folder(self) -> Path:
        return self._started(self._folder)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def process(self) -> ManagedProcess:
        return self._started(self._process)

    def _started(self, found: T | None) -> T:
        if found is None:
            raise RuntimeError(f"{self.name} was not started")
        return found

    @property
    def processes(self) -> list[ManagedProcess]:
        """All its processes, the one that clients talk to first."""
        return [self.process]

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def start(self) -> Self:
        """Start on free ports and wait until it is ready. Uses other ports if another process took one meanwhile."""
        if self.alive:
            raise RuntimeError(f"{self.name} is running")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"relay-{self.name}-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self.detached:
            atexit.register(self.stop)
        try:
            for attempt in range(1, _STARTS + 1):
                self._ports = _free_ports(self.ports_needed)
                try:
                    self._prepare()
                    self._launch()
                    return self
                except Unavailable as error:
                    self.kill()
                    # Its log says so, too: whoever had its port, such as an outgoing connection, may be gone.
                    lost_a_port = any(map(taken, self._ports)) or "address already in use" in str(error).lower()
                    if attempt == _STARTS or not lost_a_port:
                        raise
        except BaseException:
            self.stop()
            raise
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """Stop it, and remove its folder if that is a temporary one."""
        atexit.unregister(self.stop)
        if self._process is not None:
            self._process.stop(number=self.stop_signal)
        if self._given_folder is None and self._folder is not None:
            remove_server_folder(self._folder)
            self._folder = None
            self._ports = ()

    def kill(self) -> None:
        """Kill it as ``kill -9`` does. ``restart`` uses the same folder and ports."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Start it again with the same ports and data, after ``kill`` or while it is running."""
        self.process.stop(number=self.stop_signal)
        self._launch()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _launch(self) -> None:
        account = unprivileged() if self.refuses_root else None
        self._process = ManagedProcess(
            self._command(), self.log, self._environment(), dies_with_parent=not self.detached, account=account
        )
        self._process.start()
        try:
            self.on_launch()
            self._process.wait_until(self._ready, self.start_timeout, self.name)
        except BaseException:
            self._process.kill()
            raise

    def _prepare(self) -> None:
        """Write the files that the command needs, after ports were chosen."""
        return

    @abstractmethod
    def _command(self) -> list[str]: ...

    def _environment(self) -> dict[str, str]:
        return {}

    @abstractmethod
    def _ready(self) -> bool:
        """Return whether it answers requests."""


def java_command(*arguments: str) -> list[str]:
    # Most of these processes are short-lived and share few cores. Without the optimising compiler, a broker starts in
    # half the time, and uses half the CPU for its first 500,000 records. One thread of the parallel collector pauses it
    # for half as long as the serial collector (13 instead of 27 ms), and does not use the other cores.
    options = ["-XX:+UseParallelGC", "-XX:ParallelGCThreads=1", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1"]
    return [str(find_java()), "-Xmx512m", *options, *arguments]


def http_status(url: str) -> int | None:
    """Return the status with which a server answers a GET of ``url``, or None if it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None


def _free_ports(count: int) -> tuple[int, ...]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return tuple(ports)
