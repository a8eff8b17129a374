"""The binlog files of a server: the transactions before each, its start time, and the position at a time.

See "Update Stream API Change" in Vitess' update stream design.
"""

import struct
import time
import uuid
from bisect import bisect_left
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial

from relay.config.value_types import iso_time
from relay.errors import Unavailable
from relay.gtid import GtidSet, parse
from relay.mysql.binlog.dump import FORMAT_DESCRIPTION, Dump
from relay.mysql.binlog.events import GTID_LIST, PREVIOUS_GTIDS, SILENT, Commit, TransactionBegin
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import BinlogPurged, Interrupted, NotCarried

_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class Binlog:
    """A binlog file. ``begun``: seconds by the server's clock. ``before``: everything executed before it."""

    before: GtidSet
    begun: int


def look_into(server: ServerConnection, name: str) -> Binlog:
    """Read the header of a file, over a new connection. Raises ``Unavailable``, ``BinlogPurged`` if it is gone."""
    begun = 0
    deadline = time.monotonic() + _TIMEOUT
    with closing(Dump.from_file(server, name)) as dump:
        while time.monotonic() < deadline:
            buffer, events = dump.read(1.0)
            for kind, timestamp, _, _, _, start, end in events:
                if kind == FORMAT_DESCRIPTION:
                    begun = timestamp
                elif kind == PREVIOUS_GTIDS:
                    return Binlog(previous_gtids(buffer[start:end], f"{dump.address}, {name}"), begun)
                elif kind == GTID_LIST:
                    return Binlog(gtid_list(buffer[start:end]), begun)
                elif begun and kind not in SILENT:  # an encrypted file begins with a description of its encryption
                    raise NotCarried(
                        f"{dump.address}: {name} does not list the GTIDs executed before it: set gtid_mode to ON"
                    )
    raise Interrupted(f"{server.account.address} did not send the header of {name} within {_TIMEOUT:.0f} s")


def purged(server: ServerConnection) -> GtidSet:
    """Return everything executed before the oldest binlog of the server. Raises ``Unavailable``."""
    if server.is_mariadb:
        return look_into(server, server.binlogs()[0]).before
    return server.gtid_set("@@global.gtid_purged")


def previous_gtids(body: bytes, place: str) -> GtidSet:
    """Read MySQL's PREVIOUS_GTIDS, which has the form of ``gtids.sid_block``. Raises ``NotCarried`` for GTID tags."""
    (count,) = struct.unpack_from("<Q", body)
    if count >> 56:
        raise NotCarried(f"{place}: earlier transactions have GTIDs with tags, which the relay does not support")
    at, members = 8, []
    for _ in range(count):
        server, (runs,) = uuid.UUID(bytes=body[at : at + 16]), struct.unpack_from("<Q", body, at + 16)
        pairs = struct.iter_unpack("<QQ", body[at + 24 : at + 24 + 16 * runs])
        members.append(":".join((str(server), *(f"{first}-{end - 1}" for first, end in pairs))))
        at += 24 + 16 * runs
    return parse("MySQL56/" + ",".join(members))


def gtid_list(body: bytes) -> GtidSet:
    """Read MariaDB's GTID_LIST: the last GTID of every domain and server."""
    count = struct.unpack_from("<I", body)[0] & 0x0FFFFFFF
    gtids = struct.iter_unpack("<IIQ", body[4 : 4 + 16 * count])
    return parse("MariaDB/" + ",".join(f"{domain}-{server}-{sequence}" for domain, server, sequence in gtids))


class Unlogged(Unavailable):
    """Transactions in a server's ``gtid_purged`` have no known time. ``executed``: the position if all are older."""

    def __init__(self, address: str, executed: GtidSet) -> None:
        super().__init__(f"{address} does not know the times of the transactions that were added to its `gtid_purged`")
        self.executed = executed


def executed_before(server: ServerConnection, since: float) -> GtidSet:
    """Return all that was executed before the first transaction since ``since`` (seconds); without one, all there is.

    Raises ``BinlogPurged`` or ``Unlogged`` if its binlogs may lack transactions since then; ``Unavailable``.
    """
    wanted = int(since)  # binlogs store whole seconds
    # Transactions added to `gtid_purged` are in no file. Ask for it first: later purges would look the same.
    unlogged = parse("") if server.is_mariadb else purged(server)
    before = _file_before(server, wanted, unlogged).before
    executed = _search(server, before | unlogged, wanted)
    if not before.contains(unlogged):  # I1
        raise Unlogged(server.account.address, executed)
    return executed


def _search(server: ServerConnection, start: GtidSet, wanted: int) -> GtidSet:
    head, position = server.executed(), start.position
    with closing(BinlogEvents(server, start, None)) as events:
        begun: TransactionBegin | None = None
        while not parse(position).contains(head):
            for event in events.read(1.0):
                if isinstance(event, TransactionBegin):
                    if event.timestamp >= wanted:
                        return parse(position)
                    begun = event
                elif isinstance(event, Commit) and begun is not None:
                    position = begun.position
    return parse(position)


def _file_before(server: ServerConnection, wanted: int, unlogged: GtidSet) -> Binlog:
    """Return the newest file begun before ``wanted``: every transaction in earlier files is older."""
    look = cache(partial(look_into, server))
    names = server.binlogs()
    at = bisect_left(names, wanted, key=lambda name: look(name).begun)
    found = look(names[max(at - 1, 0)])
    if at == 0 and (found.before or unlogged):  # I1: there are transactions before the oldest file
        raise BinlogPurged(f"the binlogs of {server.account.address} begin at {iso_time(found.begun)}")
    return found
