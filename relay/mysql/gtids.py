"""The executed set of a stream, a text because it grows thousands of times a second; and what GTIDs consist of."""

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relay.errors import RelayError
from relay.gtid import GtidSet, MariaDBSet, parse


class Executed:
    """A growing GTID set. ``position``: its text, with the flavour. Raises ``RelayError`` for the other flavour."""

    def __init__(self, start: GtidSet, flavour: str) -> None:
        if start and start.flavour != flavour:
            raise RelayError(f"the position {start.position} cannot be read from a {flavour} server")
        self.flavour = flavour
        self.restore(f"{flavour}/{start}")

    def restore(self, position: str) -> None:
        """Go back to an earlier ``position``."""
        self.position = position
        text = position.partition("/")[2]
        # By domain or server UUID, in canonical order; and the domain or server of the last transaction.
        separator = "-" if self.flavour == "MariaDB" else ":"
        self._members = {member.partition(separator)[0]: member for member in text.split(",") if member}
        self._at = ""

    def _set(self, key: str, member: str) -> str:
        if key not in self._members:
            others = {**self._members, key: member}
            self._members = {each: others[each] for each in sorted(others, key=lambda each: (len(each), each))}
        self._members[key] = member
        self._at = key
        self.position = f"{self.flavour}/{','.join(self._members.values())}"
        return self.position

    def add_mariadb(self, domain: int, server: int, sequence: int) -> str:
        """Add a MariaDB GTID and return the position. Raises ``RelayError`` if it is out of order."""
        if self.flavour != "MariaDB":
            raise ValueError(f"the MariaDB GTID {domain}-{server}-{sequence} cannot be added to a set of MySQL GTIDs")
        key = str(domain)
        last = int(self._members[key].rpartition("-")[2]) if key in self._members else 0
        if sequence <= last:
            raise RelayError(
                f"the GTID {domain}-{server}-{sequence} is out of order: it follows one with sequence number {last}, "
                "and no position can contain both. Run `SET GLOBAL gtid_strict_mode = ON` on all servers"
            )
        return self._set(key, f"{domain}-{server}-{sequence}")

    def add_mysql(self, server: str, number: int) -> str:
        """Add a MySQL GTID and return the position. ``server``: its UUID in lower case."""
        front, last = self._last_run(server)
        if number == last + 1 and front:
            return self._set(server, f"{front}{number}")
        # Another server, or a hole in the numbers, is left to the sets.
        self.restore((parse(self.position) | parse(f"{server}:{number}")).position)
        self._at = server
        return self.position

    def _last_run(self, server: str) -> tuple[str, int]:
        """Return a server's member up to the last number of its last run, and that number; "" and 0 without one."""
        front, _, run = self._members.get(server, "").rpartition(":")
        first, _, last = run.partition("-")
        return (f"{front}:{first}-", int(last or first)) if run else ("", 0)

    @property
    def run(self) -> tuple[bytes, int, str, str, str] | None:
        """The common part of the following GTIDs from the last transaction's server; None before the first one.

        The server as in events, the last number, the text before it in a GTID, and the text around it in a position.
        """
        if not self._at:
            return None
        keys, members = list(self._members), list(self._members.values())
        at = keys.index(self._at)
        before = "".join(f"{member}," for member in members[:at])
        after = "".join(f",{member}" for member in members[at + 1 :])
        if self.flavour == "MariaDB":
            domain, server, sequence = members[at].split("-")
            gtid = f"{domain}-{server}-"
            return struct.pack("<II", int(domain), int(server)), int(sequence), gtid, f"MariaDB/{before}{gtid}", after
        front, last = self._last_run(self._at)
        return uuid.UUID(self._at).bytes, last, f"{self._at}:", f"{self.flavour}/{before}{front}", after

    def reach(self, number: int) -> None:
        """Add the logged transactions of `run` up to ``number``."""
        if self.flavour == "MariaDB":
            self._set(self._at, f"{self._members[self._at].rpartition('-')[0]}-{number}")
        else:
            self._set(self._at, f"{self._last_run(self._at)[0]}{number}")


def sid_block(executed: GtidSet) -> bytes:
    """Return a set in the form of MySQL's COM_BINLOG_DUMP_GTID: little-endian, ends exclusive."""
    if isinstance(executed, MariaDBSet):
        raise RelayError(f"the position {executed.position} cannot be read from a MySQL server")
    members = str(executed).split(",") if executed else []
    block = [struct.pack("<Q", len(members))]
    for member in members:
        server, *runs = member.split(":")
        block.append(uuid.UUID(server).bytes + struct.pack("<Q", len(runs)))
        for run in runs:
            first, _, last = run.partition("-")
            block.append(struct.pack("<QQ", int(first), int(last or first) + 1))
    return b"".join(block)


Sequences = Mapping[str, Mapping[str, int]]  # MariaDB: the last sequence number of each server, by domain and server id


class MariaDBGtid(NamedTuple):
    domain: str
    server: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.sequence}"


def split_mariadb(text: str) -> list[MariaDBGtid]:
    parts = (gtid.split("-") for gtid in text.replace("\n", "").split(",") if gtid)
    return [MariaDBGtid(domain, server, int(sequence)) for domain, server, sequence in parts]


def last_sequences(text: str) -> dict[str, dict[str, int]]:
    """Return the last sequence numbers in a ``gtid_binlog_state`` of MariaDB."""
    read = SequencesRead()
    read.add([text])
    return read.by_domain


class SequencesRead:
    """MariaDB: the last sequence number read from each server, by domain, while a position has only one.

    After a failover, these show up to where the new primary's history is the one that was read (I9).
    """

    def __init__(self) -> None:
        self.by_domain: dict[str, dict[str, int]] = {}

    def learn(self, binlog_state: str, executed: GtidSet) -> None:
        """Take over a server's ``gtid_binlog_state`` as far as ``executed`` covers it."""
        read = {gtid.domain: gtid.sequence for gtid in split_mariadb(str(executed))}
        self._add(gtid for gtid in split_mariadb(binlog_state) if gtid.sequence <= read.get(gtid.domain, 0))

    def add(self, gtids: Iterable[str]) -> None:
        self._add(split_mariadb(",".join(gtids)))

    def _add(self, gtids: Iterable[MariaDBGtid]) -> None:
        for gtid in gtids:
            self.by_domain.setdefault(gtid.domain, {})[gtid.server] = gtid.sequence


def common(a: GtidSet, b: GtidSet) -> GtidSet:
    """Return the common part of two sets of one flavour. MariaDB: the earlier GTID of each domain in both."""
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
    """Whether a server has lost part of what it had executed. In MariaDB, a domain may be deleted without a loss."""
    if before.flavour != "MariaDB":
        return not now.contains(before)
    last = {gtid.domain: gtid.sequence for gtid in split_mariadb(str(now))}
    return any(last.get(gtid.domain, gtid.sequence) < gtid.sequence for gtid in split_mariadb(str(before)))


def origin_server(gtid: str) -> str:
    """Return the server that made a transaction: its UUID, or MariaDB's domain and server id."""
    return gtid.rpartition("-")[0] if ":" not in gtid else gtid.partition(":")[0]


def origin_servers(gtids: GtidSet) -> set[str]:
    return {origin_server(gtid) for gtid in str(gtids).split(",") if gtid}
