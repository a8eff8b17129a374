"""A real Vitess of separate processes: etcd, vtctld, vtgate, and for each tablet a vttablet with its own database.

``relay.services.vitess`` has one process with one database in their place, which starts in a second. Here shards have
positions of their own, replicas lag, tablets die and are replaced, and reshards copy rows and switch traffic.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar
from urllib.error import URLError
from urllib.request import urlopen

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.process.account import data_folder, reachable_copy
from relay.process.managed import HOST, accepts
from relay.services.server import EmbeddedServer
from tests.vitess.cluster_build import cluster_programs
from tests.vitess.tablet_databases import TabletMariaDB, TabletMySQL
from tests.waiting import patience, wait_until

CELL = "zone1"
KEYSPACE = "commerce"
_ROOT = "/vitess"
_COMMAND_SECONDS = 90.0

_VTGATE: dict[str, str | int] = {
    "cell": CELL,
    "cells-to-watch": CELL,
    "service-map": "grpc-vtgateservice",
    "mysql-auth-server-impl": "none",
    "tablet-refresh-interval": "1s",
    "healthcheck-retry-delay": "200ms",
    "enable-buffer": "true",
    "buffer-min-time-between-failovers": "1s",
}

_VTTABLET: dict[str, str | int] = {
    "service-map": "grpc-queryservice,grpc-tabletmanager,grpc-updatestream",
    "health-check-interval": "1s",
    "shard-sync-retry-delay": "1s",
    "db-charset": "utf8mb4",
    "queryserver-config-max-result-size": 1_000_000,
    "queryserver-config-schema-reload-time": "5s",
    "queryserver-enable-online-ddl": "false",
}

Database = TabletMySQL | TabletMariaDB

_P = TypeVar("_P", bound="Program")


class Program(EmbeddedServer):
    """One program of the cluster. Its first port is gRPC's, the last one HTTP's."""

    program: ClassVar[str]
    ports_needed: ClassVar[int] = 2
    refuses_root: ClassVar[bool] = True

    def __init__(self, flags: Mapping[str, str | int]) -> None:
        super().__init__()
        self.flags = dict(flags)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def _own_flags(self) -> dict[str, str | int]:
        return {
            "grpc-port": self.port,
            "port": self.ports[-1],
            "bind-address": HOST,
            "grpc-bind-address": HOST,
            "logtostderr": "true",
            "lameduck-period": "10ms",
            "onterm-timeout": "2s",
        }

    def _command(self) -> list[str]:
        program = reachable_copy(cluster_programs()) / self.program
        return [str(program), *(f"--{name}={value}" for name, value in (self._own_flags() | self.flags).items())]

    def _environment(self) -> dict[str, str]:
        data = str(data_folder(self.folder))
        return {"VTDATAROOT": data, "VTROOT": data, "HOME": data, "TMPDIR": data}

    def _ready(self) -> bool:
        if not accepts(self.port):
            return False
        try:
            with urlopen(f"http://{HOST}:{self.ports[-1]}/debug/vars", timeout=60) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


class Etcd(Program):
    """The topology server."""

    name = program = "etcd"

    def _own_flags(self) -> dict[str, str | int]:
        client, peer = (f"http://{HOST}:{port}" for port in self.ports)
        return {
            "data-dir": str(data_folder(self.folder) / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }

    def _ready(self) -> bool:
        try:
            with urlopen(f"http://{self.address}/health", timeout=60) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (URLError, OSError):
            return False


class Vtctld(Program):
    name = program = "vtctld"


class Vtgate(Program):
    """vtgate: ``ports`` are gRPC's, MySQL's and HTTP's."""

    name = program = "vtgate"
    ports_needed: ClassVar[int] = 3

    def _own_flags(self) -> dict[str, str | int]:
        return super()._own_flags() | {"mysql-server-port": self.ports[1], "mysql-server-bind-address": HOST}


class Vttablet(Program):
    """A tablet and its database, which are killed and replaced together."""

    name = program = "vttablet"

    def __init__(self, number: int, shard: str, flags: Mapping[str, str | int], database: Database) -> None:
        super().__init__(flags)
        self.number = number
        self.shard = shard
        self.alias = f"{CELL}-{number:010d}"
        self.database = database

    def start(self) -> Self:
        self.database.start()
        self.database.create_accounts()
        return super().start()

    def stop(self) -> None:
        super().stop()
        self.database.stop()

    def kill(self) -> None:
        super().kill()
        self.database.kill()

    def restart(self) -> None:
        self.database.restart()
        super().restart()

    def _prepare(self) -> None:
        if not self.database.alive:  # killed with a tablet whose port was taken
            self.database.restart()

    def _own_flags(self) -> dict[str, str | int]:
        return super()._own_flags() | {
            "tablet-path": self.alias,
            "tablet-hostname": HOST,
            "init-shard": self.shard,
            "init-tablet-type": "replica",
            "mycnf-server-id": self.database.port,
            "mycnf-mysql-port": self.database.port,
            "mycnf-socket-file": str(self.database.socket),
            "mycnf-data-dir": str(self.database.data),
            "mycnf-pid-file": str(self.database.data / "pid"),
            "mycnf-tmp-dir": str(self.database.data.parent),
        }

    def _environment(self) -> dict[str, str]:
        # It only asks this program for its version.
        root = data_folder(self.folder) / "root"
        if not root.exists():
            (root / "bin").mkdir(parents=True)
            (root / "bin" / "mysqld").symlink_to(self.database.program)
        return super()._environment() | {"VT_MYSQL_ROOT": str(root)}


class VitessCluster:
    """A keyspace, ``commerce``, of one shard, and two tablets a shard, or one where they cannot replicate.

    A context manager. ``schema``: SQL statements. ``vschema``: of the keyspace. ``database``: that of the tablets.
    """

    def __init__(self, schema: Sequence[str], vschema: Mapping[str, Any], database: type[Database]) -> None:
        self.replicates = database.replicates
        self._schema, self._vschema, self._database = list(schema), dict(vschema), database
        self._topology: dict[str, str | int] = {}
        self._next_number = 101
        self._programs: list[Program] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        etcd = self._add(Etcd({})).start()
        self._topology = {
            "topo-implementation": "etcd2",
            "topo-global-server-address": etcd.address,
            "topo-global-root": f"{_ROOT}/global",
        }
        self.vtctld = self._add(Vtctld(self._topology | {"cell": CELL, "service-map": "grpc-vtctl,grpc-vtctld"}))
        self.vtctld.start()
        self.control("AddCellInfo", "--root", f"{_ROOT}/{CELL}", "--server-address", etcd.address, CELL)
        self.control("CreateKeyspace", "--durability-policy", "none", KEYSPACE)
        self.add_shards(["0"])
        self.control("ApplySchema", "--sql", ";".join(self._schema), KEYSPACE)
        self.control("ApplyVSchema", "--vschema", json.dumps(self._vschema), KEYSPACE)
        types = "PRIMARY,REPLICA" if self.replicates else "PRIMARY"
        self.vtgate = self._add(Vtgate(self._topology | _VTGATE | {"tablet-types-to-wait": types}))
        self.vtgate.start()

    def _add(self, program: _P) -> _P:
        self._programs.append(program)
        return program

    def stop(self) -> None:
        etcd, *others = self._programs  # which all others use to the end
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda program: program.stop(), others))
        etcd.stop()

    # ------------------------------------------------------------------ SQL

    def connect(self, **settings: Any) -> Connection[Cursor]:
        """Return a connection to vtgate, without autocommit."""
        defaults: dict[str, Any] = {"host": HOST, "port": self.vtgate.ports[1], "user": "relay", "charset": "utf8mb4"}
        return pymysql.connect(**(defaults | {"ssl_disabled": True} | settings))

    # ------------------------------------------------------------------ control

    def control(self, *arguments: str, within: float = _COMMAND_SECONDS) -> str:
        """Run a command of vtctldclient, and return its output."""
        command = [str(cluster_programs() / "vtctldclient"), "--server", self.vtctld.address, *arguments]
        timeout = patience(within)
        ran = subprocess.run(
            [*command, f"--action-timeout={timeout:.0f}s"], capture_output=True, text=True, timeout=timeout + 30
        )
        assert ran.returncode == 0, f"vtctldclient {' '.join(arguments)}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        return ran.stdout

    def add_shards(self, shards: Iterable[str]) -> None:
        """Add shards, each with a primary, and a replica where it can replicate."""
        self._add_tablets(KEYSPACE, shards)

    def _add_tablets(self, keyspace: str, shards: Iterable[str]) -> None:
        size = 2 if self.replicates else 1
        made = [self._tablet(shard, keyspace) for shard in shards for _ in range(size)]
        with ThreadPoolExecutor() as pool:
            list(pool.map(Vttablet.start, made))
        for primary in made[::size]:
            self.control("PlannedReparentShard", f"{keyspace}/{primary.shard}", "--new-primary", primary.alias)

    def add_keyspace(self, name: str, shard: str) -> None:
        """Add a keyspace without tables. ``shard``: of no other keyspace, and of all keys."""
        self.control("CreateKeyspace", "--durability-policy", "none", name)
        self._add_tablets(name, [shard])
        self.control("ApplyVSchema", "--vschema", json.dumps({"sharded": False}), name)

    def _tablet(self, shard: str, keyspace: str = KEYSPACE) -> Vttablet:
        flags = self._topology | _VTTABLET | {"init-keyspace": keyspace}
        tablet = Vttablet(self._next_number, shard, flags, self._database())
        self._next_number += 1
        return self._add(tablet)

    def of(self, shard: str) -> list[Vttablet]:
        return [each for each in self._programs if isinstance(each, Vttablet) and each.shard == shard]

    def primary(self, shard: str) -> Vttablet:
        """The primary of a shard, as the topology has it."""
        found = json.loads(self.control("GetShard", f"{KEYSPACE}/{shard}"))["shard"]["primary_alias"]
        return next(tablet for tablet in self.of(shard) if tablet.number == int(found["uid"]))

    def replica(self, shard: str) -> Vttablet:
        primary = self.primary(shard)
        return next(tablet for tablet in self.of(shard) if tablet is not primary)

    def reparent(self, shard: str) -> None:
        """Let the replica of a shard take the place of its primary, in order."""
        self.control("PlannedReparentShard", f"{KEYSPACE}/{shard}", "--new-primary", self.replica(shard).alias)

    def crash(self, shard: str) -> None:
        """Kill a primary and its database as ``kill -9`` does, and start both again."""
        primary = self.primary(shard)
        primary.kill()
        primary.restart()

    def lose_primary(self, shard: str) -> None:
        """Kill a primary and its database as ``kill -9`` does; the replica takes its place, and gets a new replica."""
        primary, replica = self.primary(shard), self.replica(shard)
        primary.kill()
        self.control(
            "EmergencyReparentShard",
            f"{KEYSPACE}/{shard}",
            "--new-primary",
            replica.alias,
            "--wait-replicas-timeout",
            "5s",
            "--ignore-replicas",
            primary.alias,
        )
        self.control("DeleteTablets", primary.alias)
        self.remove(primary)
        self._tablet(shard).start()

    def remove(self, tablet: Vttablet) -> None:
        self._programs.remove(tablet)
        tablet.stop()

    # ------------------------------------------------------------------ reshards

    def reshard(self, sources: Sequence[str], targets: Sequence[str], switched: Callable[[], object]) -> None:
        """Move the rows of some shards to others, by Vitess' own workflow, and remove the former.

        ``switched``: called when the targets serve, before the workflow is completed.
        """
        name = f"to{len(targets)}"
        self.add_shards(targets)
        self.workflow(name, "create", "--source-shards", ",".join(sources), "--target-shards", ",".join(targets))
        wait_until(lambda: self._is_running(name) or None, 120)
        self.workflow(name, "switchtraffic")
        switched()
        self.workflow(name, "complete")
        for shard in sources:
            for tablet in self.of(shard):
                self.remove(tablet)

    def move_tables(self, name: str, to: str, *tables: str) -> None:
        """Copy tables to another keyspace, and let the changes since follow."""
        self.workflow(name, "create", "--source-keyspace", KEYSPACE, "--tables", ",".join(tables), to=to)
        wait_until(lambda: self._is_running(name, to) or None, 120)

    def workflow(self, name: str, *arguments: str, to: str = KEYSPACE) -> str:
        """Run a command of a workflow: of a reshard, or of tables that move ``to`` another keyspace."""
        kind = "Reshard" if to == KEYSPACE else "MoveTables"
        return self.control(kind, "--workflow", name, "--target-keyspace", to, *arguments)

    def _is_running(self, name: str, to: str = KEYSPACE) -> bool:
        """Whether all rows are copied, and the changes since follow."""
        (workflow,) = json.loads(self.workflow(name, "show", to=to))["workflows"]
        streams = [stream for shard in workflow["shard_streams"].values() for stream in shard["streams"]]
        # They are also running before they begin to copy, without a position.
        return bool(streams) and all(stream["state"] == "Running" and stream["position"] for stream in streams)
