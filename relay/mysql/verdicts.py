"""What a server of a shard is good for: one table, by what the server has executed and by its role."""

from __future__ import annotations

from enum import Enum, auto

from relay.mysql.roles import Role


class ServerHistory(Enum):
    """What a server has executed, compared with what was read."""

    COMPLETE = auto()
    BEHIND = auto()
    UNACKNOWLEDGED = auto()  # it made what it lacks, and waits for its replicas to acknowledge that
    OTHER = auto()  # it has other transactions in place of some, or said so when it was read
    PURGED = auto()  # it no longer has what follows


class Standing(Enum):
    """What a server is in its shard."""

    REPLICA = auto()
    STANDBY = auto()  # neither replicates nor accepts writes
    MEMBER = auto()  # accepts writes in a group, whose others still send what it lacks
    PRIMARY = auto()

    @classmethod
    def of(cls, role: Role) -> Standing:
        if not role.is_primary:
            return cls.STANDBY if role.is_unknown else cls.REPLICA
        return cls.MEMBER if role.in_group else cls.PRIMARY


class ServerVerdict(Enum):
    """What a server is good for. The text says why it cannot be read now; later it may be."""

    READ = "can be read"
    LACKING = "lacks transactions that were already read"
    PURGED = "has purged what follows"
    BEHIND = "is behind"
    STANDBY = "neither replicates nor accepts writes, and is behind"
    OTHER = "has another history"
    WAITING = "waits for its replicas to acknowledge what was read"


_COLUMNS = (Standing.REPLICA, Standing.STANDBY, Standing.MEMBER, Standing.PRIMARY)
_IS = ServerVerdict
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
    for standing, verdict in zip(_COLUMNS, row, strict=True)
}
