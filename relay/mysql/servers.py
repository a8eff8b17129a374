"""The servers of one shard: which of them can go on from a position, and what it means when none can.

May be changed here: which server is preferred, and when the loss of transactions is certain. Too early, and a passing
fault becomes a gap; never, and a lossy failover goes by in silence (I9).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from pymysql.cursors import DictCursor

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet, MariaDBSet, parse
from relay.mysql.binlog.files import look_into, purged
from relay.mysql.connection import ServerConnection, translated
from relay.mysql.errors import BinlogPurged, Denied, Diverged
from relay.mysql.positions import common

log = logging.getLogger(__name__)

_AVOID = 5.0  # seconds for which a server that failed is tried last
_AGAIN = 10.0  # seconds after which a server that lacked something is asked for it again
_SURE = 1.0  # seconds for which a primary has to lack what was read before it counts as lost


@dataclass(frozen=True, slots=True)
class Role:
    """What a server is. ``lag``: seconds that a replica is behind, infinite while it does not replicate.

    ``in_group``: of group replication, where the others still send what one lacks, be it the primary. How far a
    secondary is behind is not known.
    """

    is_replica: bool
    is_read_only: bool
    lag: float = 0.0
    # MariaDB: the domains that it replicates.
    domains: frozenset[str] = frozenset()
    in_group: bool = False

    def is_local(self, server: ServerConnection, gtid: str) -> bool:
        """Whether a transaction was made on a replica itself, where no other server of the shard gets it from."""
        if not (self.is_replica and self.is_read_only):
            return False
        if server.is_mariadb:
            domain, origin, _ = gtid.split("-")
            return origin == str(server.server_id) and domain not in self.domains
        return gtid.partition(":")[0] == server.uuid.lower()


def role_of(server: ServerConnection) -> Role:
    """Ask a server what it is. Raises ``Unavailable``; ``Denied``, with the GRANT that is missing: nothing is guessed.

    A replica taken for a primary would have lost what it has yet to get; taken for one that is not behind, it would
    have got what it has not.
    """
    server.refresh()
    statuses = _replication(server)
    domains: frozenset[str] = frozenset()
    if statuses and server.is_mariadb:
        ((text,),) = server.execute("SELECT @@global.gtid_slave_pos")
        domains = frozenset(gtid.partition("-")[0] for gtid in str(text).split(",") if gtid)
    lag = max((_lag(status) for status in statuses), default=0.0)
    is_replica = bool(statuses) or (server.in_group and server.read_only)
    return Role(is_replica, server.read_only, lag, domains, server.in_group)


def _replication(server: ServerConnection) -> Sequence[Mapping[str, object]]:
    statement = "SHOW ALL SLAVES STATUS" if server.is_mariadb else "SHOW REPLICA STATUS"
    try:
        try:
            return _named(server, statement)
        except Denied:
            raise
        except Unavailable:
            if server.is_mariadb:
                raise
            return _named(server, "SHOW SLAVE STATUS")  # before MySQL 8.0.22
    except Denied as error:
        raise Denied(f"{error}. Whether it is a replica cannot be asked: `{server.grant}`") from None


def _named(server: ServerConnection, statement: str) -> Sequence[Mapping[str, object]]:
    try:
        with server._connection.cursor(DictCursor) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
    except Exception as fault:
        raise translated(fault, server.account.address) from fault


def _lag(status: Mapping[str, object]) -> float:
    seconds = status.get("Seconds_Behind_Master", status.get("Seconds_Behind_Source"))
    return math.inf if seconds is None else float(str(seconds))


@dataclass
class ReadableServer:
    """A server to read from. ``executed``: what it had when it was asked."""

    server: ServerConnection
    role: Role
    executed: GtidSet


@dataclass(frozen=True, slots=True)
class LostPosition:
    """What was read cannot be gone on from anywhere. ``resume``: where to go on, with what is lost before it."""

    reason: str
    resume: GtidSet


@dataclass
class _Looked:
    """What one look at all servers has found. Servers in it are open."""

    found: list[ReadableServer] = field(default_factory=list)
    # Those that are no replicas and lack what was read, or went another way.
    lacking: list[ReadableServer] = field(default_factory=list)
    purged: list[ReadableServer] = field(default_factory=list)
    # Why the others are of no use now; they may be later.
    waits: list[str] = field(default_factory=list)

    def close(self, *, but: ReadableServer | None = None) -> None:
        for each in (*self.found, *self.lacking, *self.purged):
            if each is not but:
                each.server.close()


class ShardServers:
    """The servers of one shard, in the order of the config. Used by one thread at a time.

    ``connect``: to an address. ``max_lag``: seconds that a replica may be behind.
    """

    def __init__(
        self,
        shard: str,
        addresses: Callable[[], Sequence[str]],
        connect: Callable[[str], ServerConnection],
        *,
        max_lag: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shard = shard
        self.addresses = addresses
        self.max_lag = max_lag
        self._connect = connect
        self._clock = clock
        # Until when to try a server last; what those said that cannot go on from where reading stands.
        self._avoid: dict[str, float] = {}
        self._refusals: dict[str, tuple[RelayError, float]] = {}
        self._lacking_since: float | None = None
        # Whether a server that may be the primary did not answer when one was last looked for.
        self.has_unasked = False

    def __repr__(self) -> str:
        return f"<ShardServers[{self.shard}: {', '.join(self.addresses())}]>"

    def failed(self, address: str, error: RelayError) -> None:
        """Remember why a server could not be read, so that others are tried before it."""
        now = self._clock()
        self._avoid[address] = now + _AVOID
        if isinstance(error, BinlogPurged | Diverged):
            # A server that was behind may have what it lacked by now; what was purged does not come back.
            self._refusals[address] = error, math.inf if isinstance(error, BinlogPurged) else now + _AGAIN

    def goes_on(self) -> None:
        """Reading has got further than what was refused."""
        self._refusals.clear()
        self._lacking_since = None

    def find(
        self,
        executed: GtidSet,
        local: GtidSet,
        seen: Mapping[str, Mapping[str, int]],
        partly: Sequence[str] = (),
    ) -> ReadableServer | LostPosition:
        """Return the server to go on with after ``executed``.

        ``local``: what of it only one replica has. ``seen``: MariaDB, the last sequence number of each server in each
        domain. ``partly``: transactions after it of which some rows were published: a server without them cannot give
        the rest (I9). Raises ``Unavailable`` when it has to be waited for, ``RelayError`` if it never will.
        """
        looked = self._look(executed - local, partly)
        best = min(looked.found, key=lambda each: each.role.lag > self.max_lag, default=None)
        keep = best
        try:
            if best is not None:
                self._lacking_since = None
                return best
            return self._lost(looked, executed, seen)
        except BaseException:
            keep = None
            raise
        finally:
            looked.close(but=keep)

    def better(self, current: str, executed: GtidSet, local: GtidSet, partly: Sequence[str] = ()) -> str | None:
        """Return the address of a server that should be read instead of ``current``, None if that is as good."""
        try:
            looked = self._look(executed - local, partly)
        except RelayError as error:
            log.warning("shard %s: %s", self.shard, error)
            return None
        with closing(looked):
            near = [each for each in looked.found if each.role.lag <= self.max_lag]
            return near[0].server.account.address if near and near[0].server.account.address != current else None

    def primary(self) -> ServerConnection | None:
        """Connect to the first server that is no replica; None if none answers."""
        self.has_unasked = False
        for address in self._ordered():
            try:
                server = self._connect(address)
            except RelayError:
                self.has_unasked = True
                continue
            try:
                if not role_of(server).is_replica:
                    return server
            except RelayError as error:
                self.has_unasked = True
                log.info("shard %s: %s", self.shard, error)
            server.close()
        return None

    def _ordered(self) -> list[str]:
        now = self._clock()
        return sorted(self.addresses(), key=lambda address: self._avoid.get(address, 0.0) > now)

    def _look(self, needed: GtidSet, partly: Sequence[str]) -> _Looked:
        """Ask the servers, up to the first that can go on and is near enough."""
        looked = _Looked()
        for gtid in partly:
            needed = needed | parse(gtid)
        try:
            for address in self._ordered():
                try:
                    self._ask(address, needed, partly, looked)
                except Unavailable as error:
                    looked.waits.append(str(error))
                if looked.found and looked.found[-1].role.lag <= self.max_lag:
                    break
        except BaseException:
            looked.close()
            raise
        return looked

    def _ask(self, address: str, needed: GtidSet, partly: Sequence[str], looked: _Looked) -> None:
        server = self._connect(address)
        try:
            server.verify()
            executed, role = _held(server, needed), role_of(server)
            if role.is_replica:
                server.verify_replica()
            is_behind = not executed.contains(needed)
            has_diverged = needed.diverges(executed) or (not is_behind and not _has_all(server, partly))
        except BaseException:
            server.close()
            raise
        if needed and needed.flavour != server.flavour:
            server.close()
            raise RelayError(
                f"shard {self.shard}: the position {needed.position} is not one of {address}, which is "
                f"{server.flavour} {server.version}: give the new database a source of another name"
            )
        found = ReadableServer(server, role, executed)
        refusal, until = self._refusals.get(address, (None, 0.0))
        if until < self._clock():
            refusal = None
        if isinstance(refusal, BinlogPurged):
            looked.purged.append(found)
        elif not is_behind and not has_diverged and refusal is None:
            looked.found.append(found)
        elif (role.is_replica or role.in_group) and not has_diverged and refusal is None:
            server.close()
            looked.waits.append(f"{address} is behind: it has {executed.position}")
        elif role.is_replica:
            server.close()
            looked.waits.append(f"{address} has gone another way: it has {executed.position}")
        else:
            looked.lacking.append(found)

    def _lost(self, looked: _Looked, executed: GtidSet, seen: Mapping[str, Mapping[str, int]]) -> LostPosition:
        """Return what is lost, if that is certain. Raises ``Unavailable`` if it is not."""
        if looked.lacking:
            # Nobody sends to a server that follows nobody what it lacks.
            now = self._clock()
            if self._lacking_since is None:
                self._lacking_since = now
            if now - self._lacking_since >= _SURE:
                new = looked.lacking[0]
                resume = _common(executed, new, seen)
                if resume == executed and new.server.is_mariadb and new.server.account.address in self._refusals:
                    resume = _after_hole(executed, new)
                self._refusals.clear()
                return LostPosition("failover lost transactions", resume)
            looked.waits += [f"{each.server.account.address} lacks some of what was read" for each in looked.lacking]
        elif looked.purged and not looked.waits:
            oldest = min((purged(each.server) for each in looked.purged), key=_Size)
            self._refusals.clear()
            return LostPosition("purged", executed | oldest)
        reasons = [*looked.waits, *(str(self._refusals[each.server.account.address][0]) for each in looked.purged)]
        gone = ", or remove from `shards` those that are gone for good" if looked.purged else ""
        raise Unavailable(
            f"shard {self.shard}: no server can go on after {executed.position}: {'; '.join(reasons)}. It is tried "
            f"again until one can{gone}"
        )


class _Size:
    """Orders sets by inclusion, where one is in the other."""

    def __init__(self, gtids: GtidSet) -> None:
        self.gtids = gtids

    def __lt__(self, other: _Size) -> bool:
        return other.gtids.contains(self.gtids) and self.gtids != other.gtids


def _common(executed: GtidSet, new: ReadableServer, seen: Mapping[str, Mapping[str, int]]) -> GtidSet:
    """Return how far what was read and what a server has are the same."""
    if not isinstance(executed, MariaDBSet):
        return common(executed, new.executed)
    theirs = _written(new.server)
    shared = []
    for gtid in str(executed).split(","):
        domain, server, sequence = gtid.split("-")
        has = theirs.get(domain)
        if has is None:
            continue  # kept, it would be missing again
        if has.get(server, 0) >= int(sequence):
            shared.append(gtid)
            continue
        mine = {**seen.get(domain, {}), server: int(sequence)}
        both = [(min(mine[each], has[each]), each) for each in mine.keys() & has.keys()]
        if both:
            last, origin = max(both)
            shared.append(f"{domain}-{origin}-{last}")
    return parse("MariaDB/" + ",".join(shared))


def _after_hole(executed: GtidSet, new: ReadableServer) -> GtidSet:
    """Return the next place that can be read from, where a server has more than ``executed`` and not its last.

    Its files say where they begin; what lies before the first such place is told as lost.
    """
    for name in new.server.binlogs():
        before = look_into(new.server, name).before
        if before != executed and before.contains(executed):
            return before
    return executed | new.executed


def _has_all(server: ServerConnection, gtids: Sequence[str]) -> bool:
    """Whether a server that has got as far as these transactions has them, and not others in their place.

    Of MariaDB the sets do not say it: the last of a domain stands for all before it, whoever made those.
    """
    if not gtids or not server.is_mariadb:
        return True
    written = _written(server)
    for gtid in gtids:
        domain, origin, sequence = gtid.split("-")
        if written.get(domain, {}).get(origin, 0) < int(sequence):
            return False
    return True


def _held(server: ServerConnection, needed: GtidSet) -> GtidSet:
    """Return what a server has: also, of MariaDB, of a domain of which nothing is in its binlog, what it was made with.

    Such a domain was idle since the server was copied from another, and MariaDB lets a reader go on after it.
    """
    executed = server.executed()
    if not server.is_mariadb or not isinstance(needed, MariaDBSet) or executed.contains(needed):
        return executed
    known = {gtid.partition("-")[0] for gtid in str(executed).split(",")}
    more = [
        gtid
        for gtid in str(server.gtid_set("@@global.gtid_slave_pos")).split(",")
        if gtid and gtid.partition("-")[0] not in known
    ]
    return executed | parse("MariaDB/" + ",".join(more)) if more else executed


def _written(server: ServerConnection) -> dict[str, dict[str, int]]:
    """Return, of a MariaDB's binlog, the last sequence number of each server in each domain."""
    ((text,),) = server.execute("SELECT @@global.gtid_binlog_state")
    written: dict[str, dict[str, int]] = {}
    for gtid in str(text).replace("\n", "").split(","):
        if gtid:
            domain, origin, sequence = gtid.split("-")
            written.setdefault(domain, {})[origin] = int(sequence)
    return written
