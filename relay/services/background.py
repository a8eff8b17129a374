"""The embedded services in the background, where they outlive the command that started them.

``up``, ``down`` and ``status`` share a file for each service, ``services/NAME/service.json`` in ``$RELAY_STATE``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relay.errors import ConfigError, RelayError
from relay.extras import needs
from relay.process.account import remove_server_folder
from relay.process.folders import naming, state_folder
from relay.process.managed import accepts, started_at, wait_for_end
from relay.records.codec import StoredRecord

if TYPE_CHECKING:
    from relay.services.server import EmbeddedServer

# The classes, with the module of each service. A module's packages are imported when its service is started.
_KINDS = {
    "kafka": "KafkaBroker",
    "dynamodb": "DynamoDBLocal",
    "redis": "RedisServer",
    "memcached": "MemcachedServer",
    "postgres": "PostgresServer",
    "registry": "SchemaRegistry",
    "mariadb": "MariaDB",
    "vitess": "Vitess",
}
DEFAULT = ("kafka", "dynamodb", "redis")  # what ``up`` starts; the registry is large and optional in a config
_STOP_SECONDS = 20.0
_RECORD = "service.json"


@dataclass(frozen=True)
class Service(StoredRecord):
    name: str
    address: str  # for a config
    port: int
    pid: int
    started: str  # when the process was; a reused pid has another start
    log: str
    also: Sequence[tuple[int, str]] = ()  # pid and start of its further processes
    login: str = ""  # how a person logs in

    @property
    def processes(self) -> list[tuple[int, str]]:
        """Pid and start of its processes that are running."""
        return [(pid, started) for pid, started in ((self.pid, self.started), *self.also) if started_at(pid) == started]

    @property
    def running(self) -> bool:
        return len(self.processes) == 1 + len(self.also)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "running": self.running, "address": self.address, "pid": self.pid, "log": self.log}


def up(names: Sequence[str] | None = None) -> list[Service]:
    """Start the named services that are not running, and return all of them.

    They outlive this process. If one fails, the others are started anyway, and then its ``Unavailable`` is raised.
    Raises ``ConfigError`` for an unknown name.
    """
    wanted = list(dict.fromkeys(names or DEFAULT))
    for name in wanted:
        if name not in _KINDS:
            raise ConfigError(f"unknown service {name!r}: use one of {', '.join(_KINDS)}")
    with _alone(), ThreadPoolExecutor(len(wanted)) as pool:
        futures = [pool.submit(_start, name) for name in wanted]
        return [future.result() for future in futures]


def down() -> list[Service]:
    with _alone(), ThreadPoolExecutor(len(_KINDS)) as pool:
        services = status()
        ran = list(pool.map(_stop, services))
    return [service for service, did_run in zip(services, ran, strict=True) if did_run]


def status() -> list[Service]:
    """Return the recorded services, even if they have died since."""
    found = []
    for file in sorted((state_folder() / "services").glob(f"*/{_RECORD}")):
        try:
            found.append(Service.from_json(file.read_bytes()))
        except FileNotFoundError:
            continue  # it was stopped meanwhile
        except ValueError as error:
            raise RelayError(f"cannot read the list of services in {file}: remove the file ({error})") from error
    return found


def _record(service: Service) -> None:
    """Record a service in its folder, which is removed with it."""
    part = Path(service.log).with_name(f"{_RECORD}.part")
    with naming(part):
        part.write_bytes(service.to_json())
    part.replace(part.with_name(_RECORD))


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let only one process at a time start and stop services."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "services.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start(name: str) -> Service:
    found = next((each for each in status() if each.name == name), None)
    if found is not None:
        if found.running and accepts(found.port):
            return found
        _stop(found)
    # Remove its data: services in memory have lost theirs, and partial data would not match.
    folder = state_folder() / "services" / name
    remove_server_folder(folder)
    with needs("services", f"`relay services up {name}`"):
        kind: type[EmbeddedServer] = getattr(import_module(f"relay.services.{name}"), _KINDS[name])
    server = kind(folder, detached=True)
    # If this process is killed before the service is ready, `down` still knows it.
    server.on_launch = lambda: _record(_service(name, server))
    try:
        server.start()
        service = _service(name, server)
        if not service.running:
            raise RelayError(f"{name} ended right after it started:\n{server.process.log_tail()}")
    except BaseException:
        (folder / _RECORD).unlink(missing_ok=True)
        raise
    _record(service)  # again, because it may have further processes now
    return service


def _service(name: str, server: EmbeddedServer) -> Service:
    (pid, started), *also = [(each.pid, started_at(each.pid) or "") for each in server.processes]
    return Service(name, server.address, server.port, pid, started, str(server.log), also, server.login)


def _stop(service: Service) -> bool:
    ran = service.processes
    for pid, started in ran:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
            if not wait_for_end(pid, started, _STOP_SECONDS):
                os.killpg(pid, signal.SIGKILL)
        if not wait_for_end(pid, started, _STOP_SECONDS):
            raise RelayError(f"process {pid} of {service.name} did not end after SIGKILL: see {service.log}")
    remove_server_folder(Path(service.log).parent)
    return bool(ran)
