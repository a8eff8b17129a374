"""The executed set of a stream as text that grows with each transaction, and as the bytes of a dump command.

It grows thousands of times a second, which is too often for the immutable sets of ``relay.gtid``.
"""

from __future__ import annotations

import struct
import uuid

from relay.errors import RelayError
from relay.gtid import GtidSet, MariaDBSet, parse


class Executed:
    """A GTID set that transactions are added to. ``position``: its text, with the flavour in front."""

    def __init__(self, start: GtidSet, flavour: str) -> None:
        if start and start.flavour != flavour:
            raise RelayError(f"the position {start.position} cannot be read from a {flavour} server")
        self.flavour = flavour
        self.position = f"{flavour}/{start}"
        self._load()

    def __repr__(self) -> str:
        return f"<Executed {self.position}>"

    @property
    def set(self) -> GtidSet:
        return parse(self.position)

    def restore(self, position: str) -> None:
        """Go back to an earlier ``position``."""
        self.position = position
        self._load()

    def _load(self) -> None:
        """Split the text into a member for each domain or server."""
        _, _, text = self.position.partition("/")
        self._member: str | int = ""  # domain or server UUID of the last transaction
        self._server = 0  # MariaDB: of the last transaction
        self._last = 0
        self._front = self._back = ""  # the text around its last number
        self._members: dict[str | int, str] = {}
        for member in text.split(",") if text else ():
            if self.flavour == "MariaDB":
                self._members[int(member.partition("-")[0])] = member
            else:
                self._members[member.partition(":")[0]] = member

    def _around(self, member: str | int) -> tuple[str, str]:
        """Return the text before and after a member, in canonical order."""
        before = [text for other, text in sorted(self._members.items()) if other < member]  # type: ignore[operator]
        after = [text for other, text in sorted(self._members.items()) if other > member]  # type: ignore[operator]
        return f"{self.flavour}/" + "".join(f"{text}," for text in before), "".join(f",{text}" for text in after)

    def add_mariadb(self, domain: int, server: int, sequence: int) -> str:
        """Add a GTID of MariaDB and return the position. Raises ``RelayError`` if it is out of order."""
        if domain != self._member:
            self._keep()
            self._front, self._back = self._around(domain)
            self._member = domain
            text = self._members.get(domain)
            self._last = int(text.rpartition("-")[2]) if text else 0
        if sequence <= self._last:
            raise RelayError(
                f"the GTID {domain}-{server}-{sequence} is out of order: it follows one with sequence number "
                f"{self._last}, and no position can contain both. Run `SET GLOBAL gtid_strict_mode = ON` on all servers"
            )
        self._server, self._last = server, sequence
        self.position = f"{self._front}{domain}-{server}-{sequence}{self._back}"
        return self.position

    def add_mysql(self, server: str, number: int) -> str:
        """Add a GTID of MySQL and return the position. ``server``: its UUID in lower case."""
        if server != self._member or number != self._last + 1:
            # Another server, or a hole in the numbers: leave it to the sets.
            self.restore((parse(self.position) | parse(f"{server}:{number}")).position)
            self._member = server
            before, self._back = self._around(server)
            member = self._members[server]
            run = member.rpartition(":")[2]
            self._front = f"{before}{member[: len(member) - len(run)]}"
            first, _, last = run.partition("-")
            self._front += f"{first}-"
            self._last = int(last or first)
            return self.position
        self._last = number
        self.position = f"{self._front}{number}{self._back}"
        return self.position

    @property
    def run(self) -> tuple[bytes, int, str, str, str] | None:
        """What the next GTIDs of the last transaction's server have in common with it; None before the first one.

        The server in the form of events, the last number, what is before the number in a GTID, and what is around it in
        a position.
        """
        if self._member == "":
            return None
        if isinstance(self._member, int):
            server = struct.pack("<II", self._member, self._server)
            gtid = f"{self._member}-{self._server}-"
            return server, self._last, gtid, self._front + gtid, self._back
        return uuid.UUID(self._member).bytes, self._last, f"{self._member}:", self._front, self._back

    def reach(self, number: int) -> None:
        """Add those transactions of `run` up to ``number`` that are logged."""
        assert self.run is not None
        *_, front, back = self.run
        self._last = number
        self.position = f"{front}{number}{back}"

    def _keep(self) -> None:
        """Store the text of the last transaction's member."""
        if self._member != "":
            inner = self.position[len(self._front) : len(self.position) - len(self._back)]
            self._members[self._member] = inner


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
