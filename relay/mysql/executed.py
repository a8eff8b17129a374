"""The executed set of a stream as text that grows with each transaction, and as the bytes of a dump command.

It grows thousands of times a second, which is too often for the immutable sets of ``relay.gtid``.
"""

import struct
import uuid

from relay.errors import RelayError
from relay.gtid import GtidSet, MariaDBSet, parse


class Executed:
    """A GTID set that transactions are added to. ``position``: its text, with the flavour in front.

    Raises ValueError for a GTID of the other flavour.
    """

    def __init__(self, start: GtidSet, flavour: str) -> None:
        if start and start.flavour != flavour:
            raise RelayError(f"the position {start.position} cannot be read from a {flavour} server")
        self.flavour = flavour
        self.restore(f"{flavour}/{start}")

    def restore(self, position: str) -> None:
        """Go back to an earlier ``position``."""
        self.position = position
        text = position.partition("/")[2]
        # By domain or server UUID, in canonical order; and the one of the last transaction.
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
        """Add a GTID of MariaDB and return the position. Raises ``RelayError`` if it is out of order."""
        if self.flavour != "MariaDB":
            raise ValueError(f"a GTID of MariaDB, {domain}-{server}-{sequence}, among GTIDs of MySQL")
        key = str(domain)
        last = int(self._members[key].rpartition("-")[2]) if key in self._members else 0
        if sequence <= last:
            raise RelayError(
                f"the GTID {domain}-{server}-{sequence} is out of order: it follows one with sequence number {last}, "
                "and no position can contain both. Run `SET GLOBAL gtid_strict_mode = ON` on all servers"
            )
        return self._set(key, f"{domain}-{server}-{sequence}")

    def add_mysql(self, server: str, number: int) -> str:
        """Add a GTID of MySQL and return the position. ``server``: its UUID in lower case."""
        front, last = self._last_run(server)
        if number == last + 1 and front:
            return self._set(server, f"{front}{number}")
        # Another server, or a hole in the numbers: leave it to the sets.
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
        """What the next GTIDs of the last transaction's server have in common with it; None before the first one.

        The server in the form of events, the last number, what is before the number in a GTID, and what is around it in
        a position.
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
        """Add those transactions of `run` up to ``number`` that are logged."""
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
