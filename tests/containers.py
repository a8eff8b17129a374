"""The services as Docker containers, with the attributes, versions and settings of the embedded ones."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from typing import Any, Self

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from relay.errors import Unavailable
from relay.process.managed import free_port
from relay.services import dynamodb, mariadb, memcached, postgres, redis, registry
from relay.services.kafka import SETTINGS, coordinates
from relay.services.mariadb import PASSWORD
from relay.services.vitess import KEYSPACES
from tests.mysql import server

_START_TIMEOUT = 120.0


class Container(ABC):
    """One container with one published port."""

    def __init__(self, image: str, inner_port: int) -> None:
        # Only sessions with a Docker engine need it.
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.docker_client import DockerClient

        self.host: str = DockerClient().host()
        self.port = free_port()
        self.container: Any = DockerContainer(image).with_bind_ports(inner_port, self.port)

    @abstractmethod
    def ready(self) -> bool:
        """Return whether it answers its own protocol."""

    def __enter__(self) -> Self:
        self.container.start()
        try:
            _wait_until(self.ready, self.container)
        except BaseException:
            self.container.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.container.stop()


class Kafka(Container):
    def __init__(self) -> None:
        super().__init__("apache/kafka:4.1.1", 9092)
        settings = SETTINGS | {
            "listeners": "CLIENT://:9092,INNER://:9093,CONTROLLER://:9094",
            "advertised.listeners": f"CLIENT://{self.bootstrap_servers},INNER://localhost:9093",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INNER",
            "controller.quorum.voters": "1@localhost:9094",
        }
        for name, value in settings.items():
            self.container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    def ready(self) -> bool:
        return coordinates(self.bootstrap_servers)


class DynamoDB(Container):
    def __init__(self) -> None:
        super().__init__("amazon/dynamodb-local:2.6.1", 8000)
        self.container.with_command("-jar DynamoDBLocal.jar -inMemory -sharedDb -disableTelemetry")

    @property
    def endpoint_url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ready(self) -> bool:
        return dynamodb.serves(self.endpoint_url)


class Redis(Container):
    def __init__(self) -> None:
        super().__init__("redis:7", 6379)
        self.container.with_command(["redis-server", "--save", "", "--appendonly", "no"])

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def ready(self) -> bool:
        return redis.serves(self.url)


class Memcached(Container):
    def __init__(self) -> None:
        super().__init__("memcached:1.6", 11211)
        self.container.with_command(["memcached", "--max-item-size=8m"])

    @property
    def url(self) -> str:
        return f"memcached://{self.host}:{self.port}"

    def ready(self) -> bool:
        return memcached.serves(self.host, self.port)


class Postgres(Container):
    def __init__(self) -> None:
        super().__init__("postgres:17", 5432)
        self.container.with_env("POSTGRES_USER", postgres.USER).with_env("POSTGRES_PASSWORD", postgres.PASSWORD)
        self.container.with_env("POSTGRES_DB", postgres.DATABASE)

    @property
    def url(self) -> str:
        return f"postgresql://{postgres.USER}:{postgres.PASSWORD}@{self.host}:{self.port}/{postgres.DATABASE}"

    def execute(self, statement: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        return postgres.execute(self.url, statement, arguments)

    def ready(self) -> bool:
        return postgres.serves(self.url)


class Registry(Container):
    def __init__(self) -> None:
        super().__init__("apicurio/apicurio-registry-mem:2.6.13.Final", 8080)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/apis/ccompat/v7"

    def ready(self) -> bool:
        return registry.serves(self.url)


class _SQLServer(Container):
    """Has ``connect``, ``execute``, ``gtid`` as the embedded one; no replicas. ``account``: what makes the user."""

    account: tuple[str, ...]
    position: str

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self, user: str = "root", **settings: Any) -> Connection[Cursor]:
        defaults: dict[str, Any] = {"host": self.host, "port": self.port, "password": PASSWORD}
        defaults |= {"autocommit": True, "charset": "utf8mb4", "ssl_disabled": True}
        return pymysql.connect(user=user, **(defaults | settings))

    def execute(self, statement: str, arguments: object = None) -> tuple[tuple[Any, ...], ...]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return tuple(cursor.fetchall())

    @property
    def gtid(self) -> str:
        return str(self.execute(f"SELECT {self.position}")[0][0]).replace("\n", "")

    def ready(self) -> bool:
        # While it prepares its data it listens on no port.
        try:
            for statement in self.account:
                self.execute(statement)
        except pymysql.err.OperationalError:
            return False
        return True


class MariaDB(_SQLServer):
    account = mariadb.ACCOUNT
    position = "@@gtid_binlog_pos"

    def __init__(self) -> None:
        super().__init__("mariadb:11.4", 3306)
        self.container.with_env("MARIADB_ROOT_PASSWORD", PASSWORD)
        settings = mariadb.BINLOG | {"server-id": self.port, "gtid-domain-id": 0}
        self.container.with_command([f"--{name}={value}" for name, value in settings.items()])


class MySQL(_SQLServer):
    account = server.ACCOUNT
    position = "@@gtid_executed"

    def __init__(self) -> None:
        super().__init__("mysql:8.4", 3306)
        self.container.with_env("MYSQL_ROOT_PASSWORD", PASSWORD)
        settings = server.BINLOG | {"server-id": self.port}
        self.container.with_command([f"--{name}={value}" for name, value in settings.items()])


class Vitess(Container):
    """Has ``vtgate``, ``connect``, ``execute`` as the embedded one; one keyspace of four shards."""

    def __init__(self) -> None:
        super().__init__("vitess/vttestserver:v23.0.0-mysql80", 33575)
        self.mysql_port = free_port()
        # Its ports follow from one: HTTP, then gRPC, MySQL below, MySQL's protocol in front.
        self.container.with_bind_ports(33577, self.mysql_port)
        (self.keyspace, shards), *_ = KEYSPACES.items()
        for name, value in {
            "PORT": "33574",
            "KEYSPACES": self.keyspace,
            "NUM_SHARDS": str(len(shards)),
            "MYSQL_BIND_HOST": "0.0.0.0",
            "VTCOMBO_BIND_HOST": "0.0.0.0",
        }.items():
            self.container.with_env(name, value)

    @property
    def vtgate(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self, keyspace: str | None = None, **settings: Any) -> Connection[Cursor]:
        defaults: dict[str, Any] = {"host": self.host, "port": self.mysql_port, "user": "relay"}
        defaults |= {"database": keyspace or self.keyspace, "autocommit": True, "ssl_disabled": True}
        return pymysql.connect(**(defaults | {"charset": "utf8mb4"} | settings))

    def execute(self, statement: str, keyspace: str | None = None, arguments: object = None) -> tuple[Any, ...]:
        with closing(self.connect(keyspace)) as connection, connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return tuple(cursor.fetchall())

    def ready(self) -> bool:
        try:
            return bool(self.execute("SHOW vitess_tablets"))
        except pymysql.err.MySQLError:
            return False


def _wait_until(ready: Callable[[], bool], container: Any) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not ready():
        if time.monotonic() > deadline:
            output, errors = container.get_logs()
            raise Unavailable(f"{container.image} was not ready after {_START_TIMEOUT:.0f} s:\n{output}{errors}")
        time.sleep(0.1)
