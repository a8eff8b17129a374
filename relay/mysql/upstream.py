"""Whether the servers that a replica replicates from leave changes out, which nothing on the replica shows (I1)."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from relay.errors import RelayError
from relay.gtid import GtidSet
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Denied
from relay.mysql.gtids import origin_server, split_mariadb
from relay.mysql.roles import ReplicatedFrom, Role, role_of
from relay.process.slow_call import SlowCall, call_all

log = logging.getLogger(__name__)

_ASK_EVERY = 30.0  # seconds between two looks at the other listed servers

_UNLISTED = (
    "it replicates from the server {identity} at {address}, which `shards` does not list, and which passes on changes "
    "of other servers ({origins}): it may leave some of them out. List this server in `shards`, too, or instead of the "
    "replica list one that replicates from the primary itself"
)
_UNKNOWN = (
    "source %s: %s: it is read although it is unknown whether the server that it replicates from leaves changes out: %s"
)


@dataclass(frozen=True, slots=True)
class _Server:
    """A listed server when it was asked. ``problem``: why it leaves changes out itself, or ""."""

    address: str
    problem: str
    sources: tuple[ReplicatedFrom, ...]


@dataclass(frozen=True, slots=True)
class _Listed:
    """The other listed servers, by their identities. ``silent``: why those that did not answer are unknown."""

    servers: Mapping[str, _Server]
    silent: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Received:
    """What a replica had received from a source. ``from_origin``: whether that made the newest; None if unknown."""

    identity: str
    gtids: GtidSet
    from_origin: bool | None


class Upstreams:
    """The servers behind those of a source. ``others``: the addresses that are listed with an address.

    ``require``: raises ``Denied`` for a server that leaves changes out itself.
    """

    def __init__(
        self,
        source: str,
        others: Callable[[str], Sequence[str]],
        connect: Callable[[str], ServerConnection],
        require: Callable[[ServerConnection, Role], None],
    ) -> None:
        self._source = source
        self._others = others
        self._connect = connect
        self._require = require
        # By address and number of the replication; and by address.
        self._received: dict[tuple[str, int], _Received] = {}
        self._asked: dict[str, tuple[SlowCall[_Listed], float]] = {}
        self._answers: dict[str, _Listed] = {}
        self._proven: set[str] = set()  # addresses that were once known to lack nothing
        self._warned_of: set[tuple[str, str]] = set()

    def require(self, server: ServerConnection, sources: Sequence[ReplicatedFrom]) -> None:
        """Raise ``Denied`` if a replica receives the changes of other servers from one that nobody has checked."""
        address, doubts = server.account.address, list[str]()
        for number, each in enumerate(sources):
            from_origin = self._from_origin(server, (address, number), each, exact=len(sources) == 1)
            if from_origin:
                continue
            listed = self._listed(address, wait=address not in self._proven)
            if problem := _problem(server, each, from_origin, listed, {server.identity}, doubts):
                raise Denied(f"{address}: {problem}")
        if not doubts:
            self._proven.add(address)
        for doubt in doubts:
            if (address, doubt) not in self._warned_of:
                self._warned_of.add((address, doubt))
                log.warning(_UNKNOWN, self._source, address, doubt)

    def _from_origin(
        self, server: ServerConnection, key: tuple[str, int], each: ReplicatedFrom, *, exact: bool
    ) -> bool | None:
        """Return whether the newest of what came from a source was made there; None if that is unknown."""
        if not each.identity:
            return None
        before, now = self._received.get(key), server.parsed(each.received)
        if before is None or before.identity != each.identity:
            made = _made(server, each)
            if not made and key[0] in self._proven:
                made = None  # I1: this may be a new primary that has written nothing yet
        elif exact or not server.is_mariadb:
            fresh = _origins(server, str(now - before.gtids))
            made = each.identity in fresh if fresh else before.from_origin  # I1
        else:  # MariaDB says only of all its replications together what they have received
            made = _made(server, each) or before.from_origin
        self._received[key] = _Received(each.identity, now, made)
        return made

    def _listed(self, address: str, *, wait: bool) -> _Listed:
        """Return what the other listed servers said. ``wait``: for their first answer."""
        call, due = self._asked.get(address, (None, 0.0))
        if (call is None or call.done()) and time.monotonic() >= due:
            call = SlowCall("look-upstream", partial(self._ask, self._others(address)))
            self._asked[address] = call, time.monotonic() + _ASK_EVERY
        if call is not None and (call.done() or (wait and address not in self._answers)):
            self._answers[address] = call.result()
        return self._answers.get(address) or _Listed({}, ["the other servers in `shards` were not asked yet"])

    def _ask(self, addresses: Sequence[str]) -> _Listed:
        answers = call_all("look-upstream", [partial(self._ask_one, each) for each in addresses])
        known = dict(each for each in answers if not isinstance(each, str))
        return _Listed(known, [each for each in answers if isinstance(each, str)])

    def _ask_one(self, address: str) -> tuple[str, _Server] | str:
        try:
            with closing(self._connect(address)) as server:
                role, problem = role_of(server), ""
                try:
                    self._require(server, role)
                except Denied as error:
                    problem = str(error)
                return server.identity, _Server(address, problem, role.sources)
        except RelayError as error:
            return str(error)


def _problem(
    server: ServerConnection,
    each: ReplicatedFrom,
    from_origin: bool | None,
    listed: _Listed,
    passed: set[str],
    doubts: list[str],
) -> str:
    """Return why what comes from a source may lack changes, or ""; add to ``doubts`` what is unknown."""
    if from_origin or each.identity in passed:
        return ""
    if (found := listed.servers.get(each.identity)) is not None:
        behind = (
            _problem(server, more, _made(server, more), listed, passed | {each.identity}, doubts)
            for more in found.sources
        )
        problem = found.problem or next(filter(None, behind), "")  # I1
        return problem and f"it replicates from {found.address}, which may leave changes out: {problem}"
    if listed.silent or from_origin is None:
        doubts.append("; ".join([f"it replicates from {each.address}, {_why(each)}", *listed.silent]))
        return ""
    origins = ", ".join(sorted(_origins(server, each.received) - {each.identity}))
    return _UNLISTED.format(identity=each.identity, address=each.address, origins=origins)


def _why(each: ReplicatedFrom) -> str:
    if not each.identity:
        return "to which it is not connected"
    return f"the server {each.identity}, which is not among the servers of `shards` that answered"


def _made(server: ServerConnection, each: ReplicatedFrom) -> bool | None:
    """Return whether a source made something of what came from it; None if nothing came."""
    origins = _origins(server, each.received)
    return each.identity in origins if origins and each.identity else None


def _origins(server: ServerConnection, gtids: str) -> set[str]:
    """Return the other servers that made transactions."""
    if server.is_mariadb:
        made = {gtid.server for gtid in split_mariadb(gtids)}
    else:
        made = {origin_server(each.strip()).lower() for each in gtids.split(",") if each.strip()}
    return made - {server.identity}
