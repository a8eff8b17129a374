"""An embedded Redis without persistence."""

from __future__ import annotations

import shutil
from typing import ClassVar

from redis import Redis
from redis.exceptions import RedisError

from relay.jvm.jars import jars
from relay.process.managed import HOST, accepts
from relay.services.server import EmbeddedServer


class RedisServer(EmbeddedServer):
    """The ``redis-server`` of the PATH, else a Redis 6.2 from Maven Central, on the loopback address."""

    name: ClassVar[str] = "redis"

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def address(self) -> str:
        return self.url

    def _command(self) -> list[str]:
        server = shutil.which("redis-server") or str(jars("redis")[0])
        settings = ["--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no"]
        return [server, *settings, "--dir", str(self.folder), "--daemonize", "no"]

    def _ready(self) -> bool:
        return accepts(self.port) and serves(self.url)


def serves(url: str) -> bool:
    """Return whether a Redis answers at this address."""
    with Redis.from_url(url, socket_timeout=2.0) as client:
        try:
            return bool(client.ping())
        except RedisError:
            return False
