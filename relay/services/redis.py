"""An embedded Redis without persistence."""

import shutil

from redis import Redis
from redis.exceptions import RedisError

from relay.jvm.jars import jars
from relay.process.managed import HOST, accepts
from relay.services.server import EmbeddedServer


class RedisServer(EmbeddedServer):
    """The ``redis-server`` on the PATH, or else a Redis 6.2 from Maven Central, on the loopback address.

    ``options``: settings of its configuration file.
    """

    name = "redis"

    @property
    def address(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def program(self) -> str:
        """The file of the server. Raises ``Unavailable`` if it cannot be fetched."""
        return shutil.which("redis-server") or str(jars("redis")[0])

    def _command(self) -> list[str]:
        settings = ["--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no"]
        settings += [word for name, value in self.options.items() for word in (f"--{name}", str(value))]
        return [self.program, *settings, "--dir", str(self.folder), "--daemonize", "no"]

    def _ready(self) -> bool:
        return accepts(self.port) and serves(self.url)


def serves(url: str) -> bool:
    with Redis.from_url(url, socket_timeout=2.0) as client:
        try:
            return bool(client.ping())
        except RedisError:
            return False
