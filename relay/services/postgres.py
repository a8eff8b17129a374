"""An embedded PostgreSQL."""

import shutil
import signal
from pathlib import Path
from typing import Any

import psycopg

from relay.errors import Unavailable
from relay.jvm.jars import fetch_all
from relay.process.account import data_folder, give_ownership, reachable_copy, unprivileged
from relay.process.managed import HOST, ManagedProcess
from relay.services.server import EmbeddedServer

USER = "relay"
PASSWORD = "relay"
DATABASE = "postgres"  # each server has it
_INIT_SECONDS = 60.0


class PostgresServer(EmbeddedServer):
    """PostgreSQL 17 on the loopback address. ``options``: settings of its configuration file."""

    name = "postgres"
    refuses_root = True
    # An immediate shutdown, after which it recovers at its next start: it has nothing to save, and SIGTERM would wait
    # for its clients. After SIGKILL its children, in sessions of their own, would briefly keep its port.
    stop_signal = signal.SIGQUIT

    @property
    def address(self) -> str:
        return f"postgresql://{USER}:{PASSWORD}@{HOST}:{self.port}/{DATABASE}"

    @property
    def data(self) -> Path:
        return data_folder(self.folder) / "postgres"

    def execute(self, statement: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        return execute(self.url, statement, arguments)

    def kill(self) -> None:
        if self._process is not None:
            self._process.stop(number=self.stop_signal)

    def _prepare(self) -> None:
        if self.data.is_dir():
            return
        # Renamed only when complete.
        part = self.data.with_name("part")
        shutil.rmtree(part, ignore_errors=True)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        give_ownership(secret)  # initdb opens its standard input again, as the account that it runs as
        command = [_program("initdb"), f"--pgdata={part}", f"--username={USER}", "--pwfile=/dev/stdin"]
        command += ["--auth-host=scram-sha-256", "--auth-local=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        process = ManagedProcess(command, self.log, account=unprivileged(), stdin=secret)
        if (problem := process.run(_INIT_SECONDS)) is not None:
            raise Unavailable(f"cannot create the first data folder of PostgreSQL: initdb {problem}")
        part.rename(self.data)

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "32MB",
            "fsync": "off",
            "full_page_writes": "off",
        } | self.options
        chosen = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [_program("postgres"), "-D", str(self.data), *chosen]

    def _ready(self) -> bool:
        return serves(self.url)


def execute(url: str, statement: str, arguments: Any = None) -> list[tuple[Any, ...]]:
    """Run one statement in a separate transaction and return its rows. Raises ``psycopg.Error``."""
    with psycopg.connect(url, autocommit=True) as connection:
        answer = connection.execute(statement, arguments)
        return answer.fetchall() if answer.description else []


def serves(url: str) -> bool:
    try:
        return execute(f"{url}?connect_timeout=2", "SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False


def _program(name: str) -> str:
    return str(reachable_copy(fetch_all(["postgres"])["postgres"]) / "bin" / name)
