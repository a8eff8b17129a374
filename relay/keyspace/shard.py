"""One shard of a keyspace: which of its servers a query goes to, and where it goes when that one fails."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from relay.errors import Unavailable
from relay.gtid import GtidError, MariaDBSet, parse
from relay.keyspace.server import WatchedServer, Work
from relay.token import EventToken

T = TypeVar("T")

IsFresh = Callable[[EventToken], bool]
"""Whether a read with the token would be fresh enough for what it is compared with."""


class WatchedShard:
    """The servers of a shard in the order in which they are wanted, replicas first. Threads may share it.

    ``name``: the shard's in tokens. ``max_lag``: seconds that a server may be behind before others are wanted more.
    """

    def __init__(self, name: str, servers: Sequence[WatchedServer], max_lag: float) -> None:
        self.name = name
        self.servers = servers
        self.max_lag = max_lag

    def run(self, work: Work[T], is_fresh: IsFresh) -> T:
        """Return what ``work`` makes of a connection to the best server, or to the next one if that cannot be queried.

        Raises ``Unavailable`` with the reason of each server if none can, and what ``work`` raises.
        """
        problems = []
        for server in self._by_rank(is_fresh):
            try:
                return server.run(lambda connection, token: work(connection, self._trusted(token)))
            except Unavailable as error:
                problems.append(str(error))
        raise Unavailable(f"no server of shard {self.name} can be queried: {'; '.join(problems)}")

    def _trusted(self, token: EventToken | None) -> EventToken | None:
        """Return the token, unless the shard may have two histories: positions of MariaDB look the same in both.

        That is while a former primary still accepts writes after another server has taken its place.
        """
        if token is None or not _is_mariadb(token):
            return token
        roles = [server.watcher.role for server in self.servers]
        primaries = sum(role is not None and role.is_primary for role in roles)
        return token if primaries <= 1 else None  # I6

    def _by_rank(self, is_fresh: IsFresh) -> Iterator[WatchedServer]:
        """Yield the first of the best, and rank the others only if that one fails: a query asks for much, and often."""
        best = next((server for server in self.servers if self._rank(server, is_fresh) == 0), None)
        if best is not None:
            yield best
        others = (server for server in self.servers if server is not best)
        yield from sorted(others, key=lambda server: self._rank(server, is_fresh))

    def _rank(self, server: WatchedServer, is_fresh: IsFresh) -> int:
        if server.has_failed:
            return 4
        token = server.token
        if token is None:
            return 3  # its rows are as good, but nothing says how fresh they are
        if server.watcher.lag > self.max_lag or server.is_silent:
            return 2
        return 0 if is_fresh(token) else 1


def _is_mariadb(token: EventToken) -> bool:
    try:
        return isinstance(parse(token.position), MariaDBSet)
    except GtidError:
        return False
