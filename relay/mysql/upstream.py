"""Whether the servers that a replica replicates from leave changes out, which nothing on the replica shows (I1)."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

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
    """The listed servers, by their identities. ``silent``: by address, why those that did not answer are unknown."""

    servers: Mapping[str, _Server]
    silent: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Received:
    """What a replica had received from a source. ``from_origin``: whether that made the newest; None if unknown."""

    identity: str
    gtids: GtidSet
    from_origin: bool | None


class Upstreams:
    """The servers behind those of a source. ``listed``: the addresses of the shards that list an address.

    ``require``: raises ``Denied`` for a server that leaves changes out itself. ``refused``: why, by identity.
    """

    def __init__(
        self,
        source: str,
        listed: Callable[[str], Sequence[str]],
        connect: Callable[[str], ServerConnection],
        require: Callable[[ServerConnection, Role], None],
    ) -> None:
        self.refused: dict[str, str] = {}
        self._source = source
        self._addresses = listed
        self._connect = connect
        self._require = require
        self._received: dict[tuple[str, str], _Received] = {}  # by address and channel
        self._identities: dict[str, str] = {}  # by address, as it was last
        # By the addresses that are asked.
        self._asked: dict[tuple[str, ...], tuple[SlowCall[_Listed], float]] = {}
        self._answers: dict[tuple[str, ...], _Listed] = {}
        self._proven: set[str] = set()  # addresses that were once known to lack nothing
        self._warned_of: set[tuple[str, str]] = set()

    def require(self, server: ServerConnection, sources: Sequence[ReplicatedFrom], *, is_origin: bool) -> None:
        """Raise ``Denied`` if a replica receives the changes of other servers from one that nobody has checked.

        ``is_origin``: changes are made on this server, so what it has replicated is only warned of.
        """
        address, doubts = server.account.address, list[str]()
        self._identities[address] = server.identity
        for each in sources:
            problem, from_origin = self.refused.get(each.identity, ""), self._from_origin(server, each)
            if problem:  # I1: also if it is the origin, because it may not log all that it makes
                problem = f"it replicates from {each.address}, which may leave changes out: {problem}"
            elif not from_origin and (listed := self._listed(address)) is not None:
                problem = self._problem(server, each, from_origin, listed, {server.identity}, doubts)
            if problem and not is_origin:
                raise Denied(f"{address}: {problem}")
            doubts += [problem] if problem else []
        if not doubts:
            self._proven.add(address)
        for doubt in doubts:
            if (address, doubt) not in self._warned_of:
                self._warned_of.add((address, doubt))
                log.warning(_UNKNOWN, self._source, address, doubt)

    def _from_origin(self, server: ServerConnection, each: ReplicatedFrom) -> bool | None:
        """Return whether the newest of what came from a source was made there; None if that is unknown."""
        if not each.identity:
            return None
        key, now = (server.account.address, each.channel), server.parsed(each.received)
        before = self._received.get(key)
        if before is None or before.identity != each.identity:
            made = _made(server, each)
            if not made and key[0] in self._proven:
                made = None  # I1: this may be a new primary that has written nothing yet
        elif not each.is_exact:
            return _made(server, each) if before.from_origin is None else before.from_origin
        else:
            fresh = _origins(server, str(now - before.gtids))
            made = each.identity in fresh if fresh else before.from_origin  # I1
        self._received[key] = _Received(each.identity, now, made)
        return made

    def _listed(self, address: str) -> _Listed | None:
        """Return what the listed servers said within the last minute; None if that is unknown of a proven address."""
        asked, now = tuple(self._addresses(address)), time.monotonic()
        if not {*asked} - {address}:
            return _Listed({}, {})
        call, due = self._asked.get(asked, (None, 0.0))
        if call is not None and call.done():
            self._answers[asked] = call.result()
        if call is None or (call.done() and now >= due):
            if now >= due + _ASK_EVERY:
                self._answers.pop(asked, None)
            call = SlowCall("look-upstream", partial(self._ask, asked))
            self._asked[asked] = call, now + _ASK_EVERY
        if asked not in self._answers and address not in self._proven:
            self._answers[asked] = call.result()
        return self._answers.get(asked)

    def _ask(self, addresses: Sequence[str]) -> _Listed:
        answers = call_all("look-upstream", [partial(self._ask_one, each) for each in addresses])
        found = dict(zip(addresses, answers, strict=True))
        known = [each for each in found.values() if not isinstance(each, str)]
        return _Listed(dict(known), {address: each for address, each in found.items() if isinstance(each, str)})

    def _ask_one(self, address: str) -> tuple[str, _Server] | str:
        try:
            with closing(self._connect(address)) as server:
                self._identities[address] = server.identity
                role, problem = role_of(server), ""
                try:
                    self._require(server, role)
                except Denied as error:
                    problem = str(error)
                return server.identity, _Server(address, problem, role.sources)
        except Exception as error:  # I12: whatever it answers, it is not the server that is read
            return str(error)

    def _problem(
        self,
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
            passed.add(each.identity)
            behind = (
                self._problem(server, more, _made(server, more), listed, passed, doubts) for more in found.sources
            )
            problem = found.problem or next(filter(None, behind), "")  # I1
            return problem and f"it replicates from {found.address}, which may leave changes out: {problem}"
        silent = [
            why
            for address, why in listed.silent.items()
            if self._identities.get(address, each.identity) == each.identity  # I1: it may be this source
        ]
        if silent or from_origin is None:
            doubts.append("; ".join([f"it replicates from {each.address}, {_why(each)}", *silent]))
            return ""
        origins = ", ".join(sorted(_origins(server, each.received) - {each.identity}))
        return _UNLISTED.format(identity=each.identity, address=each.address, origins=origins)


def _why(each: ReplicatedFrom) -> str:
    if not each.identity:
        return "to which it is not connected"
    return f"the server {each.identity}, which is not among the servers of `shards` that answered"


def _made(server: ServerConnection, each: ReplicatedFrom) -> bool | None:
    """Return whether a source made the newest of what came from it; None if that is unknown."""
    origins = _origins(server, each.received)
    if not origins or not each.identity:
        return None
    return each.identity in origins or (False if each.is_exact else None)


def _origins(server: ServerConnection, gtids: str) -> set[str]:
    """Return the other servers that made transactions."""
    if server.is_mariadb:
        made = {gtid.server for gtid in split_mariadb(gtids)}
    else:
        made = {origin_server(each.strip()).lower() for each in gtids.split(",") if each.strip()}
    return made - {server.identity}
