"""The binlog files of a server: what was executed before each, and when it was begun."""

from __future__ import annotations

import struct
import time
import uuid
from contextlib import closing
from dataclasses import dataclass

from relay.gtid import GtidSet, parse
from relay.mysql.binlog.dump import FORMAT_DESCRIPTION, Dump
from relay.mysql.binlog.events import SILENT
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Interrupted, NotCarried

PREVIOUS_GTIDS, GTID_LIST = 35, 163
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Binlog:
    """A binlog file. ``before``: what was executed when it was begun. ``begun``: seconds, by the server's clock."""

    name: str
    before: GtidSet
    begun: int


def look_into(server: ServerConnection, name: str) -> Binlog:
    """Read the head of a file, on a connection of its own. Raises ``Unavailable``, ``Purged`` if it is not there."""
    begun = 0
    deadline = time.monotonic() + _PATIENCE
    with closing(Dump.from_file(server, name, 4)) as dump:
        while time.monotonic() < deadline:
            buffer, events = dump.read(1.0)
            for kind, timestamp, _, _, _, start, end in events:
                if kind == FORMAT_DESCRIPTION:
                    begun = timestamp
                elif kind == PREVIOUS_GTIDS:
                    return Binlog(name, previous_gtids(buffer[start:end], f"{dump.address}, {name}"), begun)
                elif kind == GTID_LIST:
                    return Binlog(name, gtid_list(buffer[start:end]), begun)
                elif begun and kind not in SILENT:  # an encrypted file says first how
                    raise NotCarried(f"{dump.address}: {name} does not say what was executed before it: no GTIDs")
    raise Interrupted(f"{server.account.address}: the head of {name} did not come within {_PATIENCE:.0f} s")


def purged(server: ServerConnection) -> GtidSet:
    """Return what was executed before the oldest binlog that the server still has. Raises ``Unavailable``."""
    if server.is_mariadb:
        return look_into(server, server.binlogs()[0]).before
    return server.gtid_set("@@global.gtid_purged")


def previous_gtids(body: bytes, place: str) -> GtidSet:
    """Read MySQL's PREVIOUS_GTIDS: as ``executed.sid_block`` writes them. Raises ``NotCarried`` for tags."""
    (count,) = struct.unpack_from("<Q", body)
    if count >> 56:
        raise NotCarried(f"{place}: transactions before it have GTIDs with tags, which are not supported")
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
