"""What GTID sets of two servers have in common, and the parts of single GTIDs."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relay.gtid import GtidSet, parse

Sequences = Mapping[str, Mapping[str, int]]
"""MariaDB: the last sequence number of each server, by domain and server id."""


class MariaDBGtid(NamedTuple):
    domain: str
    server: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.sequence}"


def split_mariadb(text: str) -> list[MariaDBGtid]:
    """Return the GTIDs of MariaDB in ``text``, which separates them by commas."""
    found = []
    for gtid in text.replace("\n", "").split(","):
        if gtid:
            domain, server, sequence = gtid.split("-")
            found.append(MariaDBGtid(domain, server, int(sequence)))
    return found


def last_sequences(text: str) -> dict[str, dict[str, int]]:
    """Return the last sequence numbers in a ``gtid_binlog_state`` of MariaDB."""
    found: dict[str, dict[str, int]] = {}
    for gtid in split_mariadb(text):
        found.setdefault(gtid.domain, {})[gtid.server] = gtid.sequence
    return found


class SequencesRead:
    """MariaDB: the last sequence number read of each server, by domain.

    A position has only the last GTID of each domain. After a failover these numbers say how far the new primary's
    history is the one that was read (I9).
    """

    def __init__(self) -> None:
        self.by_domain: dict[str, dict[str, int]] = {}

    def learn(self, binlog_state: str, executed: GtidSet) -> None:
        """Take over a server's ``gtid_binlog_state`` as far as ``executed`` covers it."""
        read = {gtid.domain: gtid.sequence for gtid in split_mariadb(str(executed))}
        self._add(gtid for gtid in split_mariadb(binlog_state) if gtid.sequence <= read.get(gtid.domain, 0))

    def add(self, gtids: Iterable[str]) -> None:
        """Add transactions that were read, later ones last."""
        self._add(split_mariadb(",".join(gtids)))

    def _add(self, gtids: Iterable[MariaDBGtid]) -> None:
        for gtid in gtids:
            self.by_domain.setdefault(gtid.domain, {})[gtid.server] = gtid.sequence


def common(a: GtidSet, b: GtidSet) -> GtidSet:
    """Return what both sets of one flavour contain. MariaDB: the earlier GTID of each domain that both have."""
    if a.contains(b) or b.contains(a):
        return b if a.contains(b) else a
    if a.flavour != "MariaDB":
        return a - (a - b)
    mine, theirs = ({gtid.domain: gtid for gtid in split_mariadb(str(each))} for each in (a, b))
    earlier = (
        min(mine[domain], theirs[domain], key=lambda gtid: gtid.sequence) for domain in mine.keys() & theirs.keys()
    )
    return parse("MariaDB/" + ",".join(map(str, earlier)))


def went_back(before: GtidSet, now: GtidSet) -> bool:
    """Whether a server has lost some of what it had executed. A domain of MariaDB may be deleted without a loss."""
    if before.flavour != "MariaDB":
        return not now.contains(before)
    last = {gtid.domain: gtid.sequence for gtid in split_mariadb(str(now))}
    return any(last.get(gtid.domain, gtid.sequence) < gtid.sequence for gtid in split_mariadb(str(before)))


def origin_server(gtid: str) -> str:
    """Return the server that made a transaction: its UUID, or MariaDB's domain and server id."""
    return gtid.rpartition("-")[0] if ":" not in gtid else gtid.partition(":")[0]


def origin_servers(gtids: GtidSet) -> set[str]:
    return {origin_server(gtid) for gtid in str(gtids).split(",") if gtid}
