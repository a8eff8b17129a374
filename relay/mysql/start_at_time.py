"""Finds the position in a server's binlog at a time (Vitess' update stream design, "Update Stream API Change")."""

from __future__ import annotations

from contextlib import closing

from relay.gtid import GtidSet, parse
from relay.mysql.binlog.events import Commit, TransactionBegin
from relay.mysql.binlog.files import Binlog, look_into, purged
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import BinlogPurged


class TooOld(BinlogPurged):
    """The server's binlogs begin after the wanted time. ``oldest``: seconds, when they begin."""

    def __init__(self, address: str, oldest: int) -> None:
        super().__init__(f"{address}: its oldest binlog begins after the wanted time")
        self.address = address
        self.oldest = oldest


def executed_before(server: ServerConnection, since: float) -> GtidSet:
    """Return what a server had executed just before the first transaction at or after ``since`` (seconds).

    If there is none yet: all that it has executed. Raises ``TooOld`` if its binlogs may no longer have all transactions
    since then, ``Unavailable``.
    """
    wanted = int(since)  # binlogs have whole seconds
    # What was added to `gtid_purged` is in no file. Asked first, or what is purged meanwhile would be taken for that.
    unlogged = parse("") if server.is_mariadb else purged(server)
    return _search(server, _file_before(server, wanted).before | unlogged, wanted)


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


def _file_before(server: ServerConnection, wanted: int) -> Binlog:
    """Return the newest file that was started before ``wanted``: everything in earlier ones is older."""
    names = server.binlogs()
    found = None
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) // 2
        file = look_into(server, names[middle])
        if file.begun < wanted:
            found, low = file, middle + 1
        else:
            high = middle
    if found is not None:
        return found
    oldest = look_into(server, names[0])
    if not oldest.before:
        return oldest  # nothing precedes it
    raise TooOld(server.account.address, oldest.begun)
