"""An embedded memcached."""

import os
import pwd
import shutil
import signal
import socket
from pathlib import Path

from relay.jvm.jars import cache_folder
from relay.process.managed import HOST
from relay.services import debian
from relay.services.server import EmbeddedServer

_LIBRARIES = ("libevent", "libsasl2")  # packages that Debian's memcached needs beside libraries that every system has


class MemcachedServer(EmbeddedServer):
    """The ``memcached`` on the PATH, or else from this machine's Debian or Ubuntu, on the loopback address.

    ``options``: options of its command line, by name: ``{"max-item-size": "8m"}``.
    """

    name = "memcached"
    stop_signal = signal.SIGKILL  # it has nothing to save, and takes a second to end itself

    @property
    def address(self) -> str:
        return f"memcached://{HOST}:{self.port}"

    def _command(self) -> list[str]:
        user = ["--user", pwd.getpwuid(os.geteuid()).pw_name] if os.geteuid() == 0 else []
        options = [f"--{name}={value}" if value else f"--{name}" for name, value in self.options.items()]
        return [str(program()), "--listen", HOST, "--port", str(self.port), *user, *options]

    def _environment(self) -> dict[str, str]:
        memcached = program()
        fetched = memcached.is_relative_to(cache_folder())  # with its libraries
        folders = debian.library_folders(memcached.parents[2]) if fetched else []
        return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}

    def _ready(self) -> bool:
        return serves(HOST, self.port, secured="enable-ssl" in self.options)


def serves(host: str, port: int, *, secured: bool = False) -> bool:
    """Return whether a memcached answers there. If it is ``secured``, it only has to accept connections."""
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
    return debian.unpacked("memcached", _libraries) / "usr" / "bin" / "memcached"


def _libraries(apt: debian.Apt) -> list[str]:
    lines = apt("apt-cache depends memcached").splitlines()
    libraries = [line.split()[-1] for line in lines if "Depends: lib" in line]
    return [each for each in libraries if each.startswith(_LIBRARIES)]
