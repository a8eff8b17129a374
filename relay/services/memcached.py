"""An embedded memcached."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from relay.errors import Unavailable
from relay.jvm.jars import cache_folder
from relay.process.managed import HOST
from relay.services.server import ServerWithURL

_LIBRARIES = ("libevent", "libsasl2")  # what Debian's memcached needs beside libraries that each system has
_APT_SECONDS = 300.0


class MemcachedServer(ServerWithURL):
    """The ``memcached`` of the PATH, else that of the Debian or Ubuntu this machine runs, on the loopback address.

    ``options``: of its command line, by name: ``{"max-item-size": "8m"}``.
    """

    name: ClassVar[str] = "memcached"

    @property
    def url(self) -> str:
        return f"memcached://{HOST}:{self.port}"

    def stop(self) -> None:
        self.kill()  # it has nothing to save, and takes a second to end by itself
        super().stop()

    def _command(self) -> list[str]:
        user = ["--user", pwd.getpwuid(os.geteuid()).pw_name] if os.geteuid() == 0 else []
        options = [f"--{name}={value}" if value else f"--{name}" for name, value in self.options.items()]
        return [str(program()), "--listen", HOST, "--port", str(self.port), *user, *options]

    def _environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": ":".join(map(str, _library_folders(program())))}

    def _ready(self) -> bool:
        return serves(HOST, self.port, secured="enable-ssl" in self.options)


def serves(host: str, port: int, *, secured: bool = False) -> bool:
    """Return whether a memcached answers there; one that is ``secured`` has only to accept connections."""
    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            if secured:
                return True
            connection.sendall(b"version\r\n")
            return connection.recv(100).startswith((b"VERSION", b"CLIENT_ERROR unauthenticated"))
    except OSError:
        return False


def program() -> Path:
    """Return a memcached to run, after fetching it if there is none. Raises ``Unavailable``; needs no root."""
    if found := shutil.which("memcached"):
        return Path(found)
    folder = cache_folder() / "memcached"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name("memcached.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():  # the process that held the lock before may have fetched it
                _fetch(folder)
    return folder / "usr" / "bin" / "memcached"


def _fetch(folder: Path) -> None:
    """Unpack the packages of Debian or Ubuntu into a folder. Their lists are fetched beside it, as a plain user may."""
    if missing := [each for each in ("apt-get", "apt-cache", "dpkg-deb") if not shutil.which(each)]:
        raise Unavailable(f"no memcached is available, and no {missing[0]} to fetch it with: install memcached")
    part = folder.with_name("memcached.part")
    shutil.rmtree(part, ignore_errors=True)
    for each in ("state/lists/partial", "cache/archives/partial", "files"):
        (part / each).mkdir(parents=True)
    places = [f"Dir::State={part / 'state'}", "Dir::State::status=/var/lib/dpkg/status", f"Dir::Cache={part / 'cache'}"]
    options = [word for each in (*places, "APT::Sandbox::User=root") for word in ("-o", each)]
    _run(["apt-get", *options, "-qq", "update"], part)
    depends = _run(["apt-cache", *options, "depends", "memcached"], part)
    libraries = [line.split()[-1] for line in depends.splitlines() if "Depends: lib" in line]
    needed = [each for each in libraries if each.startswith(_LIBRARIES)]
    _run(["apt-get", *options, "-qq", "download", "memcached", *needed], part)
    for package in part.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), "files"], part)
    (part / "files").rename(folder)
    shutil.rmtree(part)


def _run(command: Sequence[str], folder: Path) -> str:
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_APT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"cannot fetch memcached: {command[0]} took longer than {_APT_SECONDS:.0f} s") from error
    if answer.returncode:
        raise Unavailable(f"cannot fetch memcached with {command[0]}: {answer.stderr.strip()[-500:]}")
    return answer.stdout


def _library_folders(memcached: Path) -> list[Path]:
    """Return the folders of the libraries that were fetched with it."""
    if not memcached.is_relative_to(cache_folder()):
        return []
    return sorted({path.parent for path in memcached.parents[2].glob("usr/lib/*/lib*.so.*")})
