"""Groups of real Redis servers: a cluster, and a primary and its replica with Sentinel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from relay.errors import Unavailable
from relay.process.managed import HOST, free_port
from relay.services.redis import RedisServer
from relay.services.server import EmbeddedServer
from tests.waiting import wait_until

_SLOTS = 16_384


def command(server: EmbeddedServer, *words: str | int) -> Any:
    with redis.Redis(port=server.port) as client:
        return client.execute_command(*words)


def follow(server: RedisServer, primary: RedisServer) -> None:
    command(server, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
    command(primary, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
    command(server, "REPLICAOF", HOST, primary.port)
    catch_up(server, primary)


def catch_up(server: RedisServer, primary: RedisServer) -> None:
    """Wait until a replica has everything."""

    def caught_up() -> bool:
        mine, its = command(server, "INFO", "replication"), command(primary, "INFO", "replication")
        up = mine.get("master_link_status") == "up" and not mine["master_sync_in_progress"]
        return bool(up and mine["slave_repl_offset"] >= its["master_repl_offset"])

    wait_until(caught_up)


class Cluster:
    """``primaries`` share the slots; ``replica`` follows the first."""

    def __init__(self, primaries: list[RedisServer], replica: RedisServer) -> None:
        self.primaries = primaries
        self.replica = replica
        self.hosts = ",".join(f"{HOST}:{server.port}" for server in primaries)
        self.url = f"redis+cluster://{self.hosts}"

    def move(self, slot: int, source: RedisServer, target: RedisServer, *, half: bool = False) -> None:
        """Hand a slot with its keys over to another server; ``half``: leave it at that before all servers know."""
        node = {server: command(server, "CLUSTER", "MYID").decode() for server in (source, target)}
        command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", node[source])
        command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", node[target])
        for key in command(source, "CLUSTER", "GETKEYSINSLOT", slot, 1000):
            command(source, "MIGRATE", HOST, target.port, key, 0, 5000)
        if not half:
            for server in (target, source):
                command(server, "CLUSTER", "SETSLOT", slot, "NODE", node[target])


@contextmanager
def cluster(node_timeout: float = 5.0) -> Iterator[Cluster]:
    """Start three primaries and a replica. ``node_timeout``: seconds after which one that is silent is replaced."""
    options = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": f"{node_timeout * 1000:.0f}",
        "repl-diskless-sync": "yes",
        "repl-diskless-sync-delay": "0",
    }
    with ExitStack() as stack:
        servers = [started(stack, options) for _ in range(4)]
        *primaries, replica = servers
        for number, server in enumerate(servers):
            command(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            command(server, "CLUSTER", "MEET", HOST, servers[0].port)
        for number, server in enumerate(primaries):
            share = range(number * _SLOTS // 3, (number + 1) * _SLOTS // 3)
            command(server, "CLUSTER", "ADDSLOTS", *share)
        wait_until(lambda: all(_state(server)[b"cluster_known_nodes"] == b"4" for server in servers))
        command(replica, "CLUSTER", "REPLICATE", command(primaries[0], "CLUSTER", "MYID").decode())
        wait_until(lambda: all(_state(server)[b"cluster_state"] == b"ok" for server in servers))
        catch_up(replica, primaries[0])
        yield Cluster(primaries, replica)


def started(stack: ExitStack, options: Mapping[str, str]) -> RedisServer:
    """Start a server of a cluster. It needs a second port, which is 10,000 higher and may be taken.

    An option ``tls-port`` gets another value.
    """
    for _ in range(5):
        if "tls-port" in options:
            options = {**options, "tls-port": str(free_port())}
        with suppress(Unavailable):
            return stack.enter_context(RedisServer(options=options))
    raise AssertionError("no server could be started")


def _state(server: RedisServer) -> dict[bytes, bytes]:
    with redis.Redis(port=server.port) as client:
        raw = client.execute_command("CLUSTER", "INFO")
    return dict(line.split(b":") for line in raw.split())


class RedisSentinel(EmbeddedServer):
    """Watches a primary under the name ``cache``, and replaces it after it was away for four seconds."""

    name = "sentinel"

    def __init__(self, primary: RedisServer, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.primary = primary
        self.settings = dict(settings or {})

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def _prepare(self) -> None:
        lines = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.folder),
            "sentinel monitor cache": f"{HOST} {self.primary.port} 1",
            "sentinel down-after-milliseconds cache": "4000",
            "sentinel failover-timeout cache": "5000",
        }
        text = "".join(f"{name} {value}\n" for name, value in {**lines, **self.settings}.items())
        (self.folder / "sentinel.conf").write_text(text)

    def _command(self) -> list[str]:
        return [self.primary.program, str(Path(self.folder) / "sentinel.conf"), "--sentinel"]

    def _ready(self) -> bool:
        with suppress(redis.RedisError), redis.Redis(port=self.port, socket_timeout=2.0) as client:
            return bool(client.ping())
        return False
