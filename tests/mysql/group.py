"""MySQL's group replication: members of which one is written to, until it dies and the others choose another one."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Self

import pymysql

from relay.process.managed import HOST, free_port
from relay.services.mariadb import PASSWORD, USER
from tests import needs
from tests.mysql.server import MySQL
from tests.waiting import wait_until

_SECONDS = 120.0
_ONLINE = (
    "SELECT MEMBER_PORT, MEMBER_ROLE FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"
)


class Group:
    """``with Group(3) as group: ...``: a group of MySQL servers. Skips the test if theirs has no group replication."""

    def __init__(self, size: int) -> None:
        name, ports = str(uuid.uuid4()), [free_port() for _ in range(size)]
        self.members = [_member(name, port, ports) for port in ports]
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            first, *others = self.members
            stack.enter_context(first)
            require_group_replication(first)
            first.execute("SET GLOBAL group_replication_bootstrap_group = ON")
            self.join(first)
            first.execute("SET GLOBAL group_replication_bootstrap_group = OFF")
            for member in others:
                stack.enter_context(member)
                self.join(member)
            self._running = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    @property
    def primary(self) -> MySQL:
        """The member that is written to, as most of those that answer say. Raises ``LookupError`` while they choose."""
        said = [port for member in self.members for port, role in online(member) if role == "PRIMARY"]
        for member in self.members:
            if said.count(member.port) > len(self.members) // 2:
                return member
        raise LookupError("the members have no primary")

    def join(self, member: MySQL) -> None:
        """Let it join and wait until it has what the others have. A member that was killed joins after ``restart``."""
        member.execute("START GROUP_REPLICATION USER = %s, PASSWORD = %s", (USER, PASSWORD))
        wait_until(lambda: member.port in [port for port, _ in online(member)] or None, _SECONDS)

    def lose_primary(self) -> MySQL:
        """Kill the primary as ``kill -9`` does, wait until the others have another one, and return the killed one."""
        lost = self.primary
        lost.kill()
        wait_until(lambda: self._has_other_than(lost) or None, _SECONDS)
        return lost

    def _has_other_than(self, lost: MySQL) -> bool:
        try:
            return self.primary is not lost
        except LookupError:
            return False


def require_group_replication(server: MySQL) -> None:
    """Skip the test if a server was not installed with the plugin; fail where MySQL is required."""
    if not server.execute("SELECT 1 FROM information_schema.PLUGINS WHERE PLUGIN_NAME = 'group_replication'"):
        needs.lacking("MYSQL", "this MySQL has no group replication")


def online(member: MySQL) -> Sequence[tuple[int, str]]:
    """Return port and role of the members that are online, as one of them sees it; none if it does not answer."""
    try:
        # Not over the local socket, which PyMySQL leaves open if nobody answers.
        with closing(member.connect(USER)) as connection, connection.cursor() as cursor:
            cursor.execute(_ONLINE)
            return [(int(port), str(role)) for port, role in cursor.fetchall()]
    except pymysql.err.OperationalError:
        return []


def _member(group: str, port: int, ports: Sequence[int]) -> MySQL:
    settings: dict[str, str | int] = {
        "group-name": group,
        "local-address": f"{HOST}:{port}",
        "group-seeds": ",".join(f"{HOST}:{each}" for each in ports),
        "start-on-boot": 0,
        "recovery-get-public-key": 1,
        # A member that died is out of the group 5 s later, not 10.
        "member-expel-timeout": 0,
    }
    options = {f"loose-group-replication-{name}": value for name, value in settings.items()}
    plugin: dict[str, str | int] = {"plugin-load-add": "group_replication.so", "performance-schema": 1}
    return MySQL(options={**plugin, "report-host": HOST, **options})
