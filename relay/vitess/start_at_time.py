"""Finds the position of a shard at a time: first the binlog file, then a transaction in it.

Source: Vitess' update stream design ("Update Stream API Change").
"""

import re
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain, islice

from relay.config.value_types import iso_time
from relay.errors import Unavailable
from relay.gtid import GtidError, GtidSet, parse
from relay.mysql_dialect.catalog import quoted_text
from relay.vitess.call import Call
from relay.vitess.client import EventKind, Rejected, events_of
from relay.vitess.failures import BrokenStream
from relay.vitess.http2 import CallEnded
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.tablets import Tablets

_NOTHING = ["/^$"]  # a pattern that matches no table
_FIRST = 10  # transactions of a file: the latest of them is later than all before the file
_WAIT = 1.0  # seconds
_ENDS = frozenset({EventKind.COMMIT, EventKind.DDL, EventKind.OTHER})
_GTID = re.compile(r"\b(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:\d+|\d+-\d+-\d+)\b")  # of either flavour


class NoBinlog(Unavailable):
    """The tablet that was asked does not have a binlog file, which may belong to another tablet."""


class ShardHistory:
    """The past of a shard, as far as the binlogs of its tablets go back. ``silence``: the longest wait, in seconds."""

    def __init__(self, tablets: Tablets, *, silence: float) -> None:
        self.shard = tablets.shard
        self._tablets = tablets
        self._silence = silence

    def position_at(self, since: float, head: GtidSet) -> str:
        """Return the position before the first transaction at or after ``since`` (seconds), or ``head`` without one.

        Raises ``Unavailable``, and if ``since`` is too early, the error says the oldest time that is possible.
        """
        wanted = int(since)  # binlogs have whole seconds
        position = self._file_before(wanted, head).position
        with closing(self._transactions(position, head)) as transactions:
            for timestamp, after in transactions:
                if timestamp >= wanted:
                    break
                position = after
        return position

    def begins_after(self, executed: GtidSet) -> set[GtidSet]:
        """Return the set that was executed before each file that begins after ``executed``. Raises ``Unavailable``."""
        found, refusal = set[GtidSet](), None
        for name in reversed(self._files()):
            try:
                begin = self._begin_of(name, executed.flavour)
            except NoBinlog as error:
                refusal = error
                continue
            if executed.contains(begin):
                return found
            found.add(begin)
        if refusal is not None and not found:
            raise refusal
        return found

    def _file_before(self, wanted: int, head: GtidSet) -> GtidSet:
        """Return the beginning of the newest file before which all transactions are older than ``wanted``.

        A transaction has the time when its statement began, and so may look older than earlier transactions. The latest
        of several does not. If a file has too few, an earlier file is taken, if there is one.
        """
        names = self._files()
        found: GtidSet | None = None
        low, high, oldest = 0, len(names), 0
        while low < high:
            middle = (low + high) // 2
            begin = self._start_of(names[middle], head.flavour)
            with closing(self._transactions(begin.position, head)) as transactions:
                times = [at for at, _ in islice(transactions, _FIRST)]
            if times and max(times) < wanted and (len(times) == _FIRST or middle == 0):  # I1
                found, low = begin, middle + 1
            else:
                high, oldest = middle, max(times, default=oldest)
        if found is None:
            possible = f"start at {iso_time(oldest + 1)} or later" if oldest else "they have no transactions yet"
            raise Unavailable(
                f"shard {self.shard.name} cannot be read from {iso_time(wanted)}: the binlogs of its tablets do not "
                f"go back so far: {possible}"
            )
        return found

    def _files(self) -> list[str]:
        """Return the names of a tablet's binlog files, oldest first."""
        if found := [name for row in self._ask("show binary logs") if (name := next(iter(row.values())))]:
            return found
        raise Unavailable(f"shard {self.shard.name}: its tablets list no binlogs")

    def _begin_of(self, name: str, flavour: str) -> GtidSet:
        """Return the set that was executed before a file began."""
        if flavour == "MariaDB":
            ((text,),) = (row.values() for row in self._ask(f"select binlog_gtid_pos('{quoted_text(name)}', 4)"))
        else:
            text = self._info(name, "Previous_gtids")
        if text is None:
            raise NoBinlog(f"shard {self.shard.name}: the tablet that was asked has no binlog {name}: try again")
        try:
            return parse(f"{flavour}/{text}".replace("\n", ""))
        except GtidError as error:
            raise Unavailable(f"shard {self.shard.name}: the binlog {name} begins with {text!r}: {error}") from None

    def _start_of(self, name: str, flavour: str) -> GtidSet:
        """Return the set before a file. The very first file has none, and vtgate needs one: its first transaction."""
        if begin := self._begin_of(name, flavour):
            return begin
        first = _GTID.search(self._info(name, "Gtid") or "")
        if first is None:
            raise Unavailable(f"shard {self.shard.name}: the binlog {name} has no transactions: start at `current`")
        return parse(f"{flavour}/{first[0]}")

    def _info(self, name: str, kind: str) -> str | None:
        rows = self._ask(f"show binlog events in '{quoted_text(name)}' limit 20")
        return next((row["Info"] for row in rows if row["Event_type"] == kind), None)

    def _ask(self, sql: str) -> list[dict[str, str | None]]:
        try:
            return self._tablets.execute(sql)
        except Rejected as error:
            raise NoBinlog(f"shard {self.shard.name}: the tablet does not show its binlogs: {error}") from error

    def _transactions(self, start: str, head: GtidSet) -> Generator[tuple[int, str]]:
        """Yield the time of each transaction after ``start``, and the position after it, until ``head`` is reached."""
        if parse(start).contains(head):
            return
        with closing(self._tablets.stream([self._tablets.at(start)], _NOTHING)) as stream:
            timestamp, position = 0, ""
            for event in self._events(stream, start):
                timestamp = timestamp or event.timestamp
                for each in event.vgtid.shard_gtids:
                    position = each.gtid
                if event.type in _ENDS and position:
                    yield timestamp, position
                    if parse(position).contains(head):
                        return
                    timestamp, position = 0, ""

    def _events(self, stream: Call, start: str) -> Iterator[pb.VEvent]:
        heard, place = time.monotonic(), f"shard {self.shard.name}: its stream from {start}"
        while True:
            try:
                answers = [events_of(answer) for answer in stream.take(_WAIT)]
            except CallEnded as ended:
                raise Unavailable(f"{place} has ended: {ended}") from ended
            except BrokenStream as error:
                raise Unavailable(f"{place}: {error}") from None
            if answers:
                heard = time.monotonic()
            elif time.monotonic() - heard > self._silence:
                raise Unavailable(f"{place} sends nothing: {self._tablets.explain_silence()}")
            for event in chain.from_iterable(answers):
                if event.type == EventKind.JOURNAL and self.shard.is_ended_by(event.journal):
                    when = iso_time(event.timestamp)
                    raise Unavailable(f"shard {self.shard.name} was resharded at {when}: start after that")
                yield event
