"""The servers of one shard: which of them can continue after a position, and what is lost if none ever can (I9)."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet, MariaDBSet, parse
from relay.mysql.binlog.files import look_into, purged
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import BinlogPurged, Diverged
from relay.mysql.gtids import Sequences, common, last_sequences, origin_servers, split_mariadb
from relay.mysql.positions import BinlogPosition
from relay.mysql.roles import VERDICTS, Role, ServerHistory, ServerVerdict, Standing, role_of
from relay.process.connections import closed_on_error

log = logging.getLogger(__name__)

LOST = "failover lost transactions"  # the reason of a gap if a primary lacks transactions that were read
_AVOID = 5.0  # seconds during which a server that failed is tried last
_RETRY = 10.0  # seconds after which a server that lacked something is asked again
_CERTAIN = 1.0  # seconds that a primary must lack transactions that were read before they count as lost


@dataclass
class ReadableServer:
    """A server to read from. ``executed``: its executed GTID set when it was asked."""

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
    """The answers of a shard's servers. The servers in it are open."""

    found: list[ReadableServer] = field(default_factory=list)
    # Primaries that lack transactions that were read, or whose history diverged, as far as known.
    lacking: list[ReadableServer] = field(default_factory=list)
    purged: list[ReadableServer] = field(default_factory=list)
    # Why each of the other servers cannot be used now; later it may be.
    unusable: list[str] = field(default_factory=list)
    has_silent: bool = False  # whether a server did not answer, or did not tell its role: it may be the primary

    def add(self, each: ReadableServer, verdict: ServerVerdict) -> None:
        if verdict is ServerVerdict.READ:
            self.found.append(each)
        elif verdict is ServerVerdict.LACKING:
            self.lacking.append(each)
        elif verdict is ServerVerdict.PURGED:
            self.purged.append(each)
        else:
            each.server.close()
            self.unusable.append(f"{each.server.account.address} {verdict.value}, at {each.executed.position}")

    def close(self, *, keep: ReadableServer | None = None) -> None:
        for each in (*self.found, *self.lacking, *self.purged):
            if each is not keep:
                each.server.close()


@dataclass(eq=False, repr=False)
class ShardServers:
    """The servers of one shard, in the order of the config. Used by one thread at a time. ``max_lag``: seconds.

    ``addresses``: may change by a reload. ``require``: raises ``Denied`` for a server that must not be read.
    ``primary_may_be_silent``: whether a server that may be the primary did not answer when it was last searched.
    """

    shard: str
    addresses: Callable[[], Sequence[str]]
    connect: Callable[[str], ServerConnection]
    _: KW_ONLY
    max_lag: float
    require: Callable[[ServerConnection, Role], None] = lambda _server, _role: None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.primary_may_be_silent = False
        # By address: until when a server is tried last; and errors of servers that cannot continue, with expiry.
        self._avoid: dict[str, float] = {}
        self._refusals: dict[str, tuple[RelayError, float]] = {}
        self._lacking_since: float | None = None

    def failed(self, address: str, error: RelayError) -> None:
        """Remember why a server could not be read, so that others are tried before it."""
        now = self.clock()
        self._avoid[address] = now + _AVOID
        if isinstance(error, BinlogPurged | Diverged):
            # A server that lagged may have caught up by then; purged binlogs do not come back.
            self._refusals[address] = error, math.inf if isinstance(error, BinlogPurged) else now + _RETRY

    def advanced(self) -> None:
        """Forget the refusals: they concerned an earlier position."""
        self._refusals.clear()
        self._lacking_since = None

    def find(self, position: BinlogPosition, sequences_read: Sequences) -> ReadableServer | LostPosition:
        """Return the server to continue with (I9). Raises ``Unavailable`` if one may later, or ``RelayError``."""
        survey = self._survey(position)
        best = min(survey.found, key=lambda each: each.role.lag > self.max_lag, default=None)
        if best is None:
            with closing(survey):
                return self._lost(survey, position, sequences_read)
        survey.close(keep=best)
        self._lacking_since = None
        return best

    def better(self, current: str, position: BinlogPosition) -> str | None:
        """Return the server to read instead of ``current``, None to stay. Raises ``Unavailable`` if all are behind."""
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
        """Connect to the first server that is not a replica; return None if no such server answers."""
        self.primary_may_be_silent = False
        for address in self._ordered():
            try:
                server = self.connect(address)
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
        now = self.clock()
        return sorted(self.addresses(), key=lambda address: self._avoid.get(address, 0.0) > now)

    def _survey(self, position: BinlogPosition) -> _Survey:
        """Ask the servers, up to the first that can continue and does not lag too much."""
        needed, unfinished = position.needed, position.unfinished
        with closed_on_error(_Survey()) as survey:
            for address in self._ordered():
                try:
                    self._ask(address, needed, unfinished, survey)
                except Unavailable as error:
                    survey.unusable.append(str(error))
                    survey.has_silent = True
                if survey.found and survey.found[-1].role.lag <= self.max_lag:
                    break
        return survey

    def _ask(self, address: str, needed: GtidSet, unfinished: Sequence[str], survey: _Survey) -> None:
        with closed_on_error(self.connect(address)) as server:
            role = role_of(server)
            server.verify(is_replica=role.is_replica)
            if needed and needed.flavour != server.flavour:
                raise RelayError(
                    f"shard {self.shard}: cannot continue from the position {needed.position} on {address}, which is a "
                    f"{server.flavour} {server.version} server: to read the new database, add a source with another "
                    "name"
                )
            executed = server.executed()
            executed |= idle_domains(server, executed, needed)
            self.require(server, role)  # I1
            standing = Standing.of(role)
            is_behind = not executed.contains(needed)
            has_diverged = needed.diverges(executed) or (not is_behind and not _has_all(server, unfinished))
            is_waiting = is_behind and standing is Standing.PRIMARY and _awaits_its_own(server, needed)
        history = ServerHistory.BEHIND if is_behind else ServerHistory.COMPLETE
        refusal, until = self._refusals.get(address, (None, 0.0))
        if refusal is not None and until >= self.clock():
            history = ServerHistory.PURGED if isinstance(refusal, BinlogPurged) else ServerHistory.OTHER
        elif has_diverged:
            history = ServerHistory.OTHER
        elif is_waiting:
            history = ServerHistory.UNACKNOWLEDGED
        survey.add(ReadableServer(server, role, executed), VERDICTS[history, standing])

    def _lost(self, survey: _Survey, position: BinlogPosition, sequences_read: Sequences) -> LostPosition:
        """Return the loss, if it is certain; otherwise raise ``Unavailable``."""
        executed = position.executed
        # Nobody sends a primary its missing transactions. But while another server may be the primary, an apparent one
        # may be a standby, unless it has made transactions after those that were read.
        primaries = [
            each for each in survey.lacking if not survey.has_silent or _has_own(each, position, sequences_read)
        ]
        if primaries:
            now = self.clock()
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
            survey.unusable.append("it is unknown whether this is the primary, because another server does not answer")
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
    """Whether a server has made transactions that were not read, so that it has accepted writes since.

    MariaDB may have reused the numbers of some that were read, which shows only while those are remembered.
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
    """Return the position up to which a server's history equals what was read."""
    if not isinstance(executed, MariaDBSet):
        return common(executed, new.executed)
    theirs = last_sequences(new.server.binlog_state())
    shared = []
    for gtid in split_mariadb(str(executed)):
        has = theirs.get(gtid.domain)
        if has is None:
            continue  # if kept, it would be missing again
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
    """Return the next position that a server which lacks the last GTID of ``executed`` can be read from."""
    for name in new.server.binlogs():
        before = look_into(new.server, name).before
        if before != executed and before.contains(executed):
            return before
    return executed | new.executed


def _has_all(server: ServerConnection, gtids: Sequence[str]) -> bool:
    """Whether a server that has executed as much has these. A MariaDB set shows only the last GTID of a domain."""
    if not gtids or not server.is_mariadb:
        return True
    last = last_sequences(server.binlog_state())
    return all(
        last.get(each.domain, {}).get(each.server, 0) >= each.sequence for each in split_mariadb(",".join(gtids))
    )


def _awaits_its_own(server: ServerConnection, needed: GtidSet) -> bool:
    """Whether a MySQL server made what it lacks, and may wait for its replicas to acknowledge that."""
    if server.is_mariadb:
        return False
    # Checked first: if its wait ends in between, the transactions are executed and do not seem to be lost.
    most = server.most_unacknowledged()
    lacking = needed - server.executed()
    return not lacking or (origin_servers(lacking) == {server.uuid.lower()} and lacking.count <= most)


def idle_domains(server: ServerConnection, executed: GtidSet, needed: GtidSet) -> GtidSet:
    """Return the domains of ``needed`` that MariaDB's ``executed`` lacks, although the server has executed them.

    Such a domain was idle since the server was copied from another one, and is in its data; or it was deleted, and is
    in its oldest binlog, because the server deletes no domain that has later transactions. A reader can continue there.
    """
    if not server.is_mariadb or not isinstance(needed, MariaDBSet) or executed.contains(needed):
        return parse("")
    known = {gtid.domain for gtid in split_mariadb(str(executed))}
    replicated = split_mariadb(str(server.gtid_set("@@global.gtid_slave_pos")))
    more = {gtid.domain: gtid for gtid in replicated if gtid.domain not in known}
    read = {gtid.domain: gtid for gtid in split_mariadb(str(needed)) if gtid.domain not in known | more.keys()}
    if read:
        # I9: only if everything of the domain before its oldest binlog was read, because it has nothing after that.
        more |= {gtid.domain: gtid for gtid in split_mariadb(str(purged(server))) if read.get(gtid.domain) == gtid}
    return parse("MariaDB/" + ",".join(map(str, more.values())))
