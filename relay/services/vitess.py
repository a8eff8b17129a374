"""An embedded Vitess: vtgate and the tablets of all shards in one process, ``vtcombo``, on one MariaDB."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT
from pymysql.cursors import Cursor

from relay.errors import Unavailable
from relay.process.account import data_folder, give_ownership, reachable_copy
from relay.process.managed import HOST, ManagedProcess, accepts
from relay.services.mariadb import MariaDB
from relay.services.server import EmbeddedServer
from relay.services.vitess_build import vtcombo

CELL = "test"
KEYSPACES: dict[str, Sequence[str]] = {"commerce": ("-40", "40-80", "80-c0", "c0-")}  # the default
VINDEXES = {name: {"type": name} for name in ("hash", "xxhash", "numeric", "binary", "binary_md5", "reverse_bits")}
VINDEXES |= {name: {"type": name} for name in ("unicode_loose_xxhash", "unicode_loose_md5")}

_USERS = ("vt_dba", "vt_app", "vt_appdebug", "vt_allprivs", "vt_repl", "vt_filtered")

_MYSQL: dict[str, str | int] = {
    # Vitess supports these collations. Releases before 11 do not have the second of these options.
    "collation-server": "utf8mb4_general_ci",
    "character-set-collations": "",
    "sql-mode": "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION",
    "innodb-stats-persistent": 0,
    "max-allowed-packet": "64M",
    "max-connections": 1000,
    "innodb-buffer-pool-size": "64M",
    # A transaction over several shards is a separate one in each, so the server does not detect their deadlocks.
    "innodb-lock-wait-timeout": 2,
}

_FLAGS: dict[str, str | int] = {
    "logtostderr": "true",  # by default it logs to the temporary folder, which its account may not access
    "bind-address": HOST,
    "grpc-bind-address": HOST,
    "mysql-server-bind-address": HOST,
    "mysql-auth-server-impl": "none",
    "service-map": "grpc-vtgateservice,grpc-vtctl,grpc-vtctld",
    "db-charset": "utf8mb4",
    "db-app-user": "vt_dba",
    "db-dba-user": "vt_dba",
    "mycnf-server-id": 1,
    "normalize-queries": "true",
    "dbddl-plugin": "vttest",
    "vschema-ddl-authorized-users": "%",
    "tablet-refresh-interval": "10s",
    "queryserver-config-pool-size": 8,
    "queryserver-config-stream-pool-size": 8,
    "queryserver-config-transaction-cap": 32,
    "queryserver-config-query-timeout": "300s",
    "queryserver-config-txpool-timeout": "300s",
    "queryserver-config-schema-reload-time": "5s",
    "lameduck-period": "10ms",  # it waits this long before it ends
    "onterm-timeout": "2s",
}


class Vitess(EmbeddedServer):
    """Vitess 0.23 on the loopback address.

    ``keyspaces``: the shards of each keyspace. ``schemas``: the tables of each keyspace, as SQL that runs in every
    shard, and its vschema; the default for several shards is ``VINDEXES`` and no tables, which ``ALTER VSCHEMA`` adds.
    ``flags``: flags of vtcombo, which are added to the ones here or replace them. The first start builds it: see
    ``vitess_build``. Raises ``Unavailable`` if it cannot be built.
    """

    name = "vitess"
    refuses_root = True
    ports_needed = 3

    def __init__(
        self,
        folder: Path | None = None,
        detached: bool = False,
        *,
        keyspaces: Mapping[str, Sequence[str]] | None = None,
        schemas: Mapping[str, tuple[str, Mapping[str, Any]]] | None = None,
        flags: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(folder, detached)
        self.keyspaces = {name: list(shards) for name, shards in (keyspaces or KEYSPACES).items()}
        self._schemas = dict(schemas or {})
        self._flags = dict(flags or {})
        self._mariadb: MariaDB | None = None

    @property
    def vtgate(self) -> str:
        """The address of vtgate's gRPC, which VStream uses."""
        return f"{HOST}:{self.port}"

    address = vtgate

    @property
    def login(self) -> str:
        return f"mysql -h {HOST} -P {self.mysql_port} -u relay"

    @property
    def mysql_port(self) -> int:
        """The port for MySQL's protocol, without authentication."""
        return self.ports[1]

    @property
    def mariadb(self) -> MariaDB:
        """The MariaDB below, whose databases are named by ``database``."""
        return self._started(self._mariadb)

    @property
    def processes(self) -> list[ManagedProcess]:
        own = [] if self._process is None else [self._process]
        return [*own, *self.mariadb.processes]

    @property
    def alive(self) -> bool:
        return super().alive and self.mariadb.alive

    def connect(self, keyspace: str | None = None, **settings: Any) -> Connection[Cursor]:
        """Return a connection to vtgate with autocommit.

        ``keyspace``: the target; by default the first keyspace. ``commerce:-80`` is one shard, ``commerce@replica`` one
        tablet type.
        """
        defaults: dict[str, Any] = {"host": HOST, "port": self.mysql_port, "user": "relay", "charset": "utf8mb4"}
        defaults |= {"database": keyspace or next(iter(self.keyspaces)), "autocommit": True, "ssl_disabled": True}
        return pymysql.connect(**(defaults | settings))

    def execute(self, statement: str, keyspace: str | None = None, arguments: object = None) -> tuple[Any, ...]:
        with closing(self.connect(keyspace)) as connection, connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return tuple(cursor.fetchall())

    @property
    def position(self) -> str:
        """The position of all shards' binlog, as Vitess writes it: ``MariaDB/0-1-123``."""
        return f"MariaDB/{self.mariadb.gtid}"

    # ------------------------------------------------------------------ resharding

    def journal(
        self, participants: Sequence[tuple[str, str]], targets: Sequence[tuple[str, str]], tables: Sequence[str] = ()
    ) -> int:
        """Write the journal that a reshard, or a move of ``tables``, writes when it switches traffic. Return its id.

        Each participant, a (keyspace, shard), gets a row in ``_vt.resharding_journal``, all in one transaction. It says
        that the targets, shards of this or another keyspace, continue from the current position. No data moves.
        vtgate moves those streams to the targets that read all participants.
        """
        at, number = self.position, secrets.randbits(62)
        shard_gtids = " ".join(
            f'shard_gtids:{{keyspace:"{keyspace}" shard:"{shard}" gtid:"{at}"}}' for keyspace, shard in targets
        )
        both = " ".join(f'participants:{{keyspace:"{keyspace}" shard:"{shard}"}}' for keyspace, shard in participants)
        kind = " ".join(f'tables:"{table}"' for table in tables) or "migration_type:SHARDS"
        text = f'id:{number} {kind} local_position:"{at}" {shard_gtids} {both}'
        with closing(self.mariadb.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for keyspace, shard in participants:
                # All shards share this table, so the journal's id cannot be its key.
                row = (secrets.randbits(62), database(keyspace, shard), text)
                cursor.execute("INSERT INTO _vt.resharding_journal (id, db_name, val) VALUES (%s, %s, %s)", row)
            connection.commit()
        return number

    # ------------------------------------------------------------------ the processes

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        if self._mariadb is not None:
            self._mariadb.stop()
        super().stop()
        if self._folder is None:
            self._mariadb = None

    def kill(self) -> None:
        """Kill all its processes as ``kill -9`` does. ``restart`` uses the same folder, data and ports."""
        super().kill()
        if self._mariadb is not None:
            self._mariadb.kill()

    def restart(self) -> None:
        self.process.stop()
        if not self.mariadb.alive:
            self.mariadb.restart()
        super().restart()

    def _prepare(self) -> None:
        # First, because it may take minutes or fail.
        vtcombo()
        if self._mariadb is not None and self._mariadb.alive:
            return
        self._mariadb = MariaDB(self.folder, self.detached, options=_MYSQL)
        self._mariadb.on_launch = self.on_launch
        self._mariadb.start()
        if not self._vschemas.exists():
            self._fill(self._mariadb)
        self._write_vschemas()

    def _fill(self, server: MariaDB) -> None:
        """Create the accounts, and for each shard a database with its tables."""
        flags = CLIENT.MULTI_STATEMENTS
        with closing(server.connect(client_flag=flags)) as connection, connection.cursor() as cursor:
            # The accounts are not logged. The tables are, because a stream from the start of the binlog needs them.
            cursor.execute("SET sql_log_bin = 0")
            for user in _USERS:
                cursor.execute(f"CREATE USER IF NOT EXISTS {user}@localhost")
                cursor.execute(f"GRANT ALL ON *.* TO {user}@localhost WITH GRANT OPTION")
            cursor.execute("SET sql_log_bin = 1")
            for keyspace, shards in self.keyspaces.items():
                tables = self._schemas[keyspace][0] if keyspace in self._schemas else ""
                for shard in shards:
                    cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{database(keyspace, shard)}`")
                    cursor.execute(f"USE `{database(keyspace, shard)}`")
                    if tables.strip():
                        cursor.execute(tables)
                        while cursor.nextset():
                            pass

    def _write_vschemas(self) -> None:
        for keyspace, shards in self.keyspaces.items():
            sharded = len(shards) > 1
            default = {"sharded": sharded} | ({"vindexes": VINDEXES} if sharded else {})
            vschema = self._schemas[keyspace][1] if keyspace in self._schemas else default
            file = self._vschemas / keyspace / "vschema.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(vschema))
        give_ownership(self._vschemas)

    @property
    def _vschemas(self) -> Path:
        return data_folder(self.folder) / "vschemas"

    def _topology(self) -> str:
        keyspaces = []
        for keyspace, shards in self.keyspaces.items():
            names = " ".join(f'shards:{{name:"{shard}"}}' for shard in shards)
            # A primary, a replica, and the rdonly tablet that vtcombo always has.
            keyspaces.append(f'keyspaces:{{name:"{keyspace}" {names} replica_count:2 rdonly_count:1}}')
        return f'{" ".join(keyspaces)} cells:"{CELL}"'

    def _command(self) -> list[str]:
        grpc, mysql, http = self.ports
        flags = _FLAGS | {"grpc-port": grpc, "mysql-server-port": mysql, "port": http}
        flags |= {"db-socket": str(self.mariadb.socket), "mycnf-socket-file": str(self.mariadb.socket)}
        flags |= {"proto-topo": self._topology(), "schema-dir": str(self._vschemas)} | self._flags
        program = reachable_copy(vtcombo().parent) / "vtcombo"
        return [str(program), *(f"--{name}={value}" for name, value in flags.items())]

    def _environment(self) -> dict[str, str]:
        data = str(data_folder(self.folder))
        return {"VTDATAROOT": data, "VTROOT": data, "HOME": data}

    def _ready(self) -> bool:
        if not self.mariadb.alive:
            raise Unavailable(f"the database of {self.name} ended:\n{self.mariadb.process.log_tail()}")
        if not accepts(self.port):
            return False
        try:
            tablets = self.execute("SHOW vitess_tablets")
        except pymysql.err.MySQLError:
            return False
        serving = [row for row in tablets if row[4] == "SERVING"]
        return len(serving) == 3 * sum(map(len, self.keyspaces.values()))


def database(keyspace: str, shard: str) -> str:
    return f"vt_{keyspace}_{shard}"
