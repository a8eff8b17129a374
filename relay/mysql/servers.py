"""The servers of one shard: which of them can continue after a position, and what it means if none can.

Transactions must not be taken for lost too early, or a passing fault becomes a gap; but if they never are, a failover
that lost some goes unnoticed (I9).
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet, MariaDBSet, parse
from relay.mysql.binlog.files import look_into, purged
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import BinlogPurged, Diverged
from relay.mysql.gtids import Sequences, common, last_sequences, origin_servers, split_mariadb
from relay.mysql.positions import BinlogPosition
from relay.mysql.roles import VERDICTS, Role, ServerHistory, ServerVerdict, Standing, role_of

log = logging.getLogger(__name__)

LOST = "failover lost transactions"
"""Why there is a gap, if a primary lacks what was read."""

_AVOID = 5.0  # how many seconds a server that failed is tried last
_RETRY = 10.0  # seconds after which a server that lacked something is asked for it again
_CERTAIN = 1.0  # how many seconds a primary must lack what was read before that counts as a loss


@dataclass
class ReadableServer:
    """A server to read from. ``executed``: its GTID set when it was asked."""

    server: ServerConnection
    role: Role
    executed: GtidSet


@dataclass(frozen=True, slots=True)
class LostPosition:
    """No server can ever continue after the position. ``resume``: where to continue; what precedes it is lost."""

    reason: str
    resume: GtidSet


@dataclass
class _Survey:
    """What the servers of a shard answered. The servers in it are open."""

    found: list[ReadableServer] = field(default_factory=list)
    # Primaries that lack what was read, or whose history diverged, as far as is known.
    lacking: list[ReadableServer] = field(default_factory=list)
    purged: list[ReadableServer] = field(default_factory=list)
    # Why each of the others cannot be used now; it may be later.
    unusable: list[str] = field(default_factory=list)
    # Whether one did not answer, or did not tell its role: that one may be the primary.
    has_silent: bool = False

    def add(self, each: ReadableServer, verdict: ServerVerdict) -> None:
        listed = {
            ServerVerdict.READ: self.found,
            ServerVerdict.LACKING: self.lacking,
            ServerVerdict.PURGED: self.purged,
        }
        if verdict in listed:
            listed[verdict].append(each)
            return
        each.server.close()
        self.unusable.append(f"{each.server.account.address} {verdict.value}, at {each.executed.position}")

    def close(self, *, keep: ReadableServer | None = None) -> None:
        for each in (*self.found, *self.lacking, *self.purged):
            if each is not keep:
                each.server.close()


class ShardServers:
    """The servers of one shard, in the order of the config. Used by one thread at a time.

    ``addresses``: is called each time, since a reload may change them. ``connect``: to an address. ``require``: raises
    ``Denied`` for a server that must not be read. ``max_lag``: seconds that a replica may be behind.
    ``primary_may_be_silent``: at the last search for a primary, a server that may be the primary did not answer.
    """

    def __init__(
        self,
        shard: str,
        addresses: Callable[[], Sequence[str]],
        connect: Callable[[str], ServerConnection],
        *,
        max_lag: float,
        require: Callable[[ServerConnection, Role], None] = lambda _server, _role: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shard = shard
        self.addresses = addresses
        self.max_lag = max_lag
        self.primary_may_be_silent = False
        self._connect = connect
        self.require = require
        self._clock = clock
        # By address: until when a server is tried last, and the errors of servers that cannot continue, with their end.
        self._avoid: dict[str, float] = {}
        self._refusals: dict[str, tuple[RelayError, float]] = {}
        self._lacking_since: float | None = None

    def failed(self, address: str, error: RelayError) -> None:
        """Remember why a server could not be read, so that others are tried before it."""
        now = self._clock()
        self._avoid[address] = now + _AVOID
        if isinstance(error, BinlogPurged | Diverged):
            # A server that was behind may have caught up by then; what was purged does not come back.
            self._refusals[address] = error, math.inf if isinstance(error, BinlogPurged) else now + _RETRY

    def advanced(self) -> None:
        """Forget the refusals: they were of an earlier position."""
        self._refusals.clear()
        self._lacking_since = None

    def find(self, position: BinlogPosition, sequences_read: Sequences) -> ReadableServer | LostPosition:
        """Return the server to continue with after ``position``.

        A server without its unfinished transactions cannot give the rest of them (I9). ``sequences_read``: for MariaDB.
        Raises ``Unavailable`` if a server may be able to continue later, ``RelayError`` if none ever will.
        """
        survey = self._survey(position)
        best = min(survey.found, key=lambda each: each.role.lag > self.max_lag, default=None)
        if best is None:
            with closing(survey):
                return self._lost(survey, position, sequences_read)
        survey.close(keep=best)
        self._lacking_since = None
        return best

    def better(self, current: str, position: BinlogPosition) -> str | None:
        """Return the address of a server that should be read instead of ``current``, None to stay there.

        May be called in another thread. Raises ``Unavailable`` with the reason of each server if all are behind.
        """
        try:
            survey = self._survey(position)
        except RelayError as error:
            raise Unavailable(str(error)) from error
        with closing(survey):
            for each in survey.found:
                address = each.server.account.address
                if each.role.lag <= self.max_lag:
                    return address if address != current else None
                lag = f"{each.role.lag:.0f} s behind" if each.role.lag < math.inf else "not replicating"
                survey.unusable.append(f"{address} is {lag}")
            raise Unavailable(f"no other server can be read: {'; '.join(survey.unusable)}")

    def primary(self) -> ServerConnection | None:
        """Connect to the first server that is not a replica; return None if none answers."""
        self.primary_may_be_silent = False
        for address in self._ordered():
            try:
                server = self._connect(address)
            except RelayError:
                self.primary_may_be_silent = True
                continue
            try:
                role = role_of(server)
                if role.is_primary:
                    return server
                self.primary_may_be_silent |= role.is_unknown
            except RelayError as error:
                self.primary_may_be_silent = True
                log.info("shard %s: %s", self.shard, error)
            server.close()
        return None

    def _ordered(self) -> list[str]:
        now = self._clock()
        return sorted(self.addresses(), key=lambda address: self._avoid.get(address, 0.0) > now)

    def _survey(self, position: BinlogPosition) -> _Survey:
        """Ask the servers, up to the first that can continue and is not too far behind."""
        needed, unfinished = position.needed, position.unfinished
        with ExitStack() as stack:
            survey = stack.enter_context(closing(_Survey()))
            for address in self._ordered():
                try:
                    self._ask(address, needed, unfinished, survey)
                except Unavailable as error:
                    survey.unusable.append(str(error))
                    survey.has_silent = True
                if survey.found and survey.found[-1].role.lag <= self.max_lag:
                    break
            stack.pop_all()
        return survey

    def _ask(self, address: str, needed: GtidSet, unfinished: Sequence[str], survey: _Survey) -> None:
        with ExitStack() as stack:
            server = stack.enter_context(closing(self._connect(address)))
            server.verify()
            if needed and needed.flavour != server.flavour:
                raise RelayError(
                    f"shard {self.shard}: the position {needed.position} cannot be read from {address}, a "
                    f"{server.flavour} {server.version} server: give the new database a source with another name"
                )
            executed, role = _executed(server, needed), role_of(server)
            if role.is_replica:
                server.verify_replica()
            self.require(server, role)  # I1
            standing = Standing.of(role)
            is_behind = not executed.contains(needed)
            has_diverged = needed.diverges(executed) or (not is_behind and not _has_all(server, unfinished))
            is_waiting = is_behind and standing is Standing.PRIMARY and _awaits_its_own(server, needed)
            stack.pop_all()
        history = ServerHistory.BEHIND if is_behind else ServerHistory.COMPLETE
        refusal, until = self._refusals.get(address, (None, 0.0))
        if refusal is not None and until >= self._clock():
            history = ServerHistory.PURGED if isinstance(refusal, BinlogPurged) else ServerHistory.OTHER
        elif has_diverged:
            history = ServerHistory.OTHER
        elif is_waiting:
            history = ServerHistory.UNACKNOWLEDGED
        survey.add(ReadableServer(server, role, executed), VERDICTS[history, standing])

    def _lost(self, survey: _Survey, position: BinlogPosition, sequences_read: Sequences) -> LostPosition:
        """Return what is lost, if that is certain. Raises ``Unavailable`` if it is not."""
        executed = position.executed
        # A primary does not receive from anyone what it lacks. While another server may be the primary, one that seems
        # to be it may be a standby, unless it has made transactions after what was read.
        primaries = [
            each for each in survey.lacking if not survey.has_silent or _has_own(each, position, sequences_read)
        ]
        if primaries:
            now = self._clock()
            if self._lacking_since is None:
                self._lacking_since = now
            if now - self._lacking_since >= _CERTAIN:
                new = primaries[0]
                resume = _common(executed, new, sequences_read)
                if resume == executed and new.server.is_mariadb and new.server.account.address in self._refusals:
                    resume = _after_hole(executed, new)
                self._refusals.clear()
                return LostPosition(LOST, resume)
        survey.unusable += [f"{each.server.account.address} {ServerVerdict.LACKING.value}" for each in survey.lacking]
        if survey.lacking and not primaries:
            survey.unusable.append("whether that is the primary is not known while another server does not answer")
        elif survey.purged and not survey.unusable:
            oldest, *others = (purged(each.server) for each in survey.purged)
            for other in others:
                oldest = other if oldest.contains(other) else oldest
            self._refusals.clear()
            return LostPosition("purged", executed | oldest)
        reasons = [*survey.unusable, *(str(self._refusals[each.server.account.address][0]) for each in survey.purged)]
        advice = ". Remove from `shards` the servers that will not come back" if survey.purged or survey.lacking else ""
        raise Unavailable(
            f"shard {self.shard}: no server can continue after {executed.position}, retrying: {'; '.join(reasons)}"
            f"{advice}"
        )


def _has_own(each: ReadableServer, position: BinlogPosition, sequences_read: Sequences) -> bool:
    """Whether a server has made transactions that were not read: it has accepted writes since.

    MariaDB may have given their numbers to others, which were read; then it shows only while those are remembered.
    """
    if not (position.executed | position.local).contains(each.executed):
        return True
    if not each.server.is_mariadb:
        return False
    own = str(each.server.server_id)
    return any(
        servers.get(own, 0) > sequences_read[domain].get(own, 0)
        for domain, servers in last_sequences(each.server.binlog_state()).items()
        if domain in sequences_read
    )


def _common(executed: GtidSet, new: ReadableServer, sequences_read: Sequences) -> GtidSet:
    """Return up to where what was read and a server's history are the same."""
    if not isinstance(executed, MariaDBSet):
        return common(executed, new.executed)
    theirs = last_sequences(new.server.binlog_state())
    shared = []
    for gtid in split_mariadb(str(executed)):
        has = theirs.get(gtid.domain)
        if has is None:
            continue  # kept, it would be missing again
        if has.get(gtid.server, 0) >= gtid.sequence:
            shared.append(str(gtid))
            continue
        mine = {**sequences_read.get(gtid.domain, {}), gtid.server: gtid.sequence}
        both = [(min(mine[each], has[each]), each) for each in mine.keys() & has.keys()]
        if both:
            last, origin = max(both)
            shared.append(f"{gtid.domain}-{origin}-{last}")
    return parse("MariaDB/" + ",".join(shared))


def _after_hole(executed: GtidSet, new: ReadableServer) -> GtidSet:
    """Return the next position that a server can be read from, if it has more than ``executed`` but not its last GTID.

    Its binlog files say where they begin. What precedes the first such position is reported as lost.
    """
    for name in new.server.binlogs():
        before = look_into(new.server, name).before
        if before != executed and before.contains(executed):
            return before
    return executed | new.executed


def _has_all(server: ServerConnection, gtids: Sequence[str]) -> bool:
    """Whether a server that has executed as much as these transactions has them, and not others in their place.

    A set of MariaDB does not say so: it has the last GTID of a domain for all before it, whichever server made those.
    """
    if not gtids or not server.is_mariadb:
        return True
    last = last_sequences(server.binlog_state())
    return all(
        last.get(each.domain, {}).get(each.server, 0) >= each.sequence for each in split_mariadb(",".join(gtids))
    )


def _awaits_its_own(server: ServerConnection, needed: GtidSet) -> bool:
    """Whether a server of MySQL has made what it lacks, and may wait for its replicas to acknowledge it."""
    if server.is_mariadb:
        return False
    # Ask this first: what ends its wait in between is executed then, and does not seem to be lost.
    most = server.most_unacknowledged()
    lacking = needed - server.executed()
    return not lacking or (origin_servers(lacking) == {server.uuid.lower()} and lacking.count <= most)


def _executed(server: ServerConnection, needed: GtidSet) -> GtidSet:
    """Return what a server has executed, for MariaDB with domains that are not in the state of its binlog.

    Such a domain was idle since the server was copied from another one, and is in its data; or it was deleted, and is
    in its oldest binlog: the server deletes none of which it has later transactions. It lets a reader continue there.
    """
    executed = server.executed()
    if not server.is_mariadb or not isinstance(needed, MariaDBSet) or executed.contains(needed):
        return executed
    known = {gtid.domain for gtid in split_mariadb(str(executed))}
    replicated = split_mariadb(str(server.gtid_set("@@global.gtid_slave_pos")))
    more = {gtid.domain: gtid for gtid in replicated if gtid.domain not in known}
    read = {gtid.domain: gtid for gtid in split_mariadb(str(needed)) if gtid.domain not in known | more.keys()}
    if read:
        # I9: only if all was read that it had of the domain before its oldest binlog, since it has none after that.
        more |= {gtid.domain: gtid for gtid in split_mariadb(str(purged(server))) if read.get(gtid.domain) == gtid}
    return executed | parse("MariaDB/" + ",".join(map(str, more.values()))) if more else executed
