"""What a server is, how far it lags, and what it can be used for, in one table by its history and role."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self

from relay.errors import Unavailable
from relay.mysql.connection import ServerConnection
from relay.mysql.filters import Filters
from relay.mysql.gtids import split_mariadb

_NEWEST = "SELECT CHANNEL_NAME, LAST_QUEUED_TRANSACTION FROM performance_schema.replication_connection_status"


@dataclass(frozen=True, slots=True)
class ReplicatedFrom:
    """The server that a replica replicates from. ``identity``: see ``ServerConnection``; "" while not connected.

    ``received``: the newest GTIDs that came from it. Unless this ``is_exact``, others may be among them: all that the
    replica has executed, or what came from all its sources.
    """

    channel: str
    identity: str
    address: str
    received: str
    is_exact: bool
    filters: Filters


@dataclass(frozen=True, slots=True)
class Role:
    is_replica: bool
    is_read_only: bool
    lag: float = 0.0
    """Seconds that a server lags; infinite if unknown. Unknown for a group's members."""
    domains: frozenset[str] = frozenset()  # MariaDB: the domains that it replicates
    in_group: bool = False  # whether it is in a MySQL replication group, whose members send each other what they lack
    filters: tuple[Filters, ...] = ()
    """What each of its replications leaves out; for a former MariaDB replica, what its settings left out."""
    sources: tuple[ReplicatedFrom, ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether it neither replicates nor accepts writes: a standby being set up, a primary at a switchover."""
        return not self.is_replica and self.is_read_only

    @property
    def is_primary(self) -> bool:
        return not self.is_replica and not self.is_read_only

    def is_local(self, server: ServerConnection, gtid: str) -> bool:
        """Whether a replica made the transaction itself, so that no other server of the shard gets it."""
        if not (self.is_replica and self.is_read_only):
            return False
        if server.is_mariadb:
            ((domain, origin, _),) = split_mariadb(gtid)
            return origin == str(server.server_id) and domain not in self.domains
        return gtid.partition(":")[0] == server.uuid.lower()


def role_of(server: ServerConnection) -> Role:
    """Ask a server for its role. Raises ``Unavailable``, and ``Denied`` with the missing GRANT: it never guesses.

    A replica mistaken for a primary would seem to have lost what it still receives; for one without lag, to have all.
    """
    server.refresh()
    statements = ["SHOW ALL SLAVES STATUS"] if server.is_mariadb else ["SHOW REPLICA STATUS", "SHOW SLAVE STATUS"]
    statuses = server.status_by(statements, "whether it is a replica")  # the last one before MySQL 8.0.22
    domains, applied = frozenset[str](), ""
    if statuses and server.is_mariadb:
        ((text,),) = server.execute("SELECT @@global.gtid_slave_pos")
        applied = str(text)
        domains = frozenset(gtid.domain for gtid in split_mariadb(applied))
    in_group = bool(server.settings.get("group_replication_group_name"))  # which SHOW REPLICA STATUS does not show
    is_replica = bool(statuses) or (in_group and server.read_only)
    unreplicated = math.inf if server.read_only and not is_replica else 0.0
    seconds = (status.get("Seconds_Behind_Master", status.get("Seconds_Behind_Source")) for status in statuses)
    lag = max((math.inf if each is None else float(str(each)) for each in seconds), default=unreplicated)
    filters = [Filters.of(status, "Replicate") for status in statuses]
    if in_group:  # I1: it applies what the others send, without the filters that a status shows
        filters.append(Filters({}))
    if not filters and (left := Filters.of_settings(server.settings)).texts:  # I1
        filters.append(left)  # what it replicated before is missing in its binlog all the same
    sources = _sources(server, statuses, applied)
    return Role(is_replica, server.read_only, lag, domains, in_group, tuple(filters), sources)


def _sources(
    server: ServerConnection, statuses: Sequence[Mapping[str, object]], applied: str
) -> tuple[ReplicatedFrom, ...]:
    """Return what a replica replicates from, without the channels of a group. ``applied``: MariaDB's position."""
    found, newest = list[ReplicatedFrom](), dict[str, str]()
    said = [
        (status, {name.replace("Master_", "Source_"): str(value or "") for name, value in status.items()})
        for status in statuses
    ]
    named = [(status, text) for status, text in said if text.get("Source_Host")]
    if named and not server.is_mariadb:
        with suppress(Unavailable):  # a user who may not read it: then all that was received counts
            newest = {str(channel): str(gtid) for channel, gtid in server.execute(_NEWEST) if ":" in str(gtid)}
    for status, text in named:
        channel = text.get("Channel_Name", "")
        if channel.startswith("group_replication_"):
            continue
        identity = text.get("Source_Server_Id" if server.is_mariadb else "Source_UUID", "").lower()
        received = applied or newest.get(channel) or text.get("Retrieved_Gtid_Set", "")  # I1
        # MariaDB says only of all its replications together what they have received.
        is_exact = bool(received) and (len(named) == 1 or not server.is_mariadb)
        if not received and not server.is_mariadb:
            received = str(server.executed())
        address = f"{text['Source_Host']}:{text.get('Source_Port', '')}"
        known, filters = "" if identity == "0" else identity, Filters.of(status, "Replicate")
        channel = channel or text.get("Connection_name", "")
        found.append(ReplicatedFrom(channel, known, address, received, is_exact, filters))
    return tuple(found)


class ServerHistory(Enum):
    """A server's executed set, compared with what was read."""

    COMPLETE = auto()
    BEHIND = auto()
    UNACKNOWLEDGED = auto()  # it made the missing transactions, and waits for its replicas to acknowledge them
    OTHER = auto()  # it has other transactions in their place, or said so when it was read
    PURGED = auto()  # it no longer has the following transactions


class Standing(Enum):
    REPLICA = auto()
    STANDBY = auto()  # neither replicates nor accepts writes
    MEMBER = auto()  # accepts writes in a group whose other members still send what it lacks
    PRIMARY = auto()

    @classmethod
    def of(cls, role: Role) -> Self:
        if not role.is_primary:
            return cls.STANDBY if role.is_unknown else cls.REPLICA
        return cls.MEMBER if role.in_group else cls.PRIMARY


class ServerVerdict(Enum):
    """How a server can be used. The text says why it cannot be read now; later it may be readable."""

    READ = "can be read"
    LACKING = "lacks transactions that were already read"
    PURGED = "has purged what follows"
    BEHIND = "is behind"
    STANDBY = "neither replicates nor accepts writes, and is behind"
    OTHER = "has a different history"
    WAITING = "waits for its replicas to acknowledge what was read"


_IS = ServerVerdict
# By the standings in their order.
_ROWS = {
    ServerHistory.COMPLETE: (_IS.READ, _IS.READ, _IS.READ, _IS.READ),
    ServerHistory.BEHIND: (_IS.BEHIND, _IS.STANDBY, _IS.BEHIND, _IS.LACKING),
    ServerHistory.UNACKNOWLEDGED: (_IS.BEHIND, _IS.STANDBY, _IS.BEHIND, _IS.WAITING),  # I9
    ServerHistory.OTHER: (_IS.OTHER, _IS.OTHER, _IS.LACKING, _IS.LACKING),
    ServerHistory.PURGED: (_IS.PURGED, _IS.PURGED, _IS.PURGED, _IS.PURGED),
}
VERDICTS = {
    (history, standing): verdict
    for history, row in _ROWS.items()
    for standing, verdict in zip(Standing, row, strict=True)
}
