"""Reshards by overlapping ranges: which listed shards take the place of which, and when a shard may hand over.

The config lists the shards of before first, and after them those that follow (seed 004, "Surviving Resharding"). A
shard ends once its targets' replication is known to go on from within what was read of it; where exactly, in each
target's own binlog, its last position says. So nothing lies between what it told and what they tell (I1), whatever the
clocks say.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet, parse
from relay.keyrange import KeyRange, overlapping, shard_range, shards_covering
from relay.lineage import Checkpoint, Journal
from relay.mysql.connection import ServerConnection
from relay.mysql.origins import CheckpointRow, CheckpointTable
from relay.mysql.positions import common

_AGAIN = 1.0  # seconds between two questions to targets that are not ready

_UNREADY = frozenset({"init", "copying", "error"})
"""States of Vitess' workflows in which rows are copied, or nothing is."""

_GROUPS = "running"
"""The state in which Vitess' replication may commit several transactions as one: not all of one may have been read."""


@dataclass(frozen=True, slots=True)
class Hop:
    """``participants`` end, and ``targets``, which hold exactly the same ranges, go on."""

    participants: tuple[str, ...]
    targets: tuple[str, ...]

    def journal(self) -> Journal:
        """Return what all participants end with, whoever reads them: it follows from the names alone."""
        names = f"{','.join(self.participants)}>{','.join(self.targets)}"
        digest = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
        return Journal(digest, self.participants, {name: {"type": "reshard"} for name in self.targets})


def first_shards(keyrange: KeyRange, listed: Sequence[str]) -> list[str]:
    """Return the shards that reading begins with: those without another of their range listed before them.

    ValueError unless they are exactly ``keyrange``.
    """
    return shards_covering(keyrange, [name for at, name in enumerate(listed) if not overlapping(name, listed[:at])])


def hop_of(shard: str, listed: Sequence[str]) -> Hop | None:
    """Return what takes the place of ``shard``; None if nothing is listed after it, or not all of it yet."""
    return _hop_of(shard, tuple(listed))


@lru_cache(maxsize=1000)
def _hop_of(shard: str, listed: tuple[str, ...]) -> Hop | None:
    after = _followers(listed)
    participants, targets = {shard}, after.get(shard, frozenset())
    if not targets:
        return None
    while True:
        more = {name for name, following in after.items() if following & targets}
        wider = frozenset(target for name in participants | more for target in after[name])
        if more <= participants and wider <= targets:
            break
        participants, targets = participants | more, targets | wider
    if not _is_same(participants, targets):
        return None
    return Hop(tuple(_in_order(participants)), tuple(_in_order(targets)))


def unfinished(listed: Sequence[str]) -> list[str]:
    """Return the shards that have others listed after them which do not take all of their place."""
    return [name for name, after in _followers(tuple(listed)).items() if after and hop_of(name, listed) is None]


@lru_cache(maxsize=16)
def _followers(listed: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """Return the shards that come right after each: listed after it, and after no other that does."""
    ranges = [shard_range(name) for name in listed]
    found = {}
    for at, name in enumerate(listed):
        later = [other for other in range(at + 1, len(listed)) if ranges[other].intersects(ranges[at])]
        next_ = (each for each in later if not any(o < each and ranges[o].intersects(ranges[each]) for o in later))
        found[name] = frozenset(listed[each] for each in next_)
    return found


def _is_same(participants: Iterable[str], targets: Iterable[str]) -> bool:
    try:
        whole = [_whole(names) for names in (participants, targets)]
    except ValueError:
        return False
    return whole[0] == whole[1]


def _whole(names: Iterable[str]) -> KeyRange:
    """Return what shards are together. ValueError if they overlap or have holes."""
    first, *rest = (shard_range(name) for name in _in_order(names))
    for each in rest:
        first = first + each
    return first


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (shard_range(name).start, name))


class HandingOver:
    """When one shard may end. ``connect``: to a server of a shard, whichever answers."""

    def __init__(
        self,
        shard: str,
        listed: Callable[[], Sequence[str]],
        connect: Callable[[str], ServerConnection],
        checkpoints: CheckpointTable,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shard = shard
        self._listed = listed
        self._connect = connect
        self._checkpoints = checkpoints
        self._clock = clock
        # Where each target stood when it was asked, how far its replication was by then, at most, and where those
        # stood that may commit several transactions as one.
        self._asked: tuple[Hop, Mapping[str, str], list[GtidSet], list[GtidSet]] | None = None
        self._again_at = 0.0

    def __call__(self, executed: GtidSet) -> tuple[Journal, Mapping[str, Any]] | None:
        """Return the journal, and per target where to begin, once all targets go on from within ``executed``.

        Raises ``Unavailable`` with what is waited for.
        """
        hop = hop_of(self.shard, self._listed())
        if hop is None:
            self._asked = None
            return None
        if self._asked is None or self._asked[0] != hop:
            if self._clock() < self._again_at:
                return None
            self._again_at = self._clock() + _AGAIN
            self._asked = self._ask(hop)
        _, begins, reached, running = self._asked
        if not all(executed.contains(each) for each in (*reached, *running)):
            return None  # this shard is read on until it has come so far
        if not all(each.contains(executed) for each in running):
            # I3: of what is committed as one after this, some may have been read here.
            self._asked = None
            raise Unavailable(
                f"the replication from shard {self.shard} runs, and is not just where this shard has been read to: it "
                "ends when both are at one place, as soon as writes pause or are switched over"
            )
        return hop.journal(), {"targets": dict(begins)}

    def _ask(self, hop: Hop) -> tuple[Hop, Mapping[str, str], list[GtidSet], list[GtidSet]]:
        begins: dict[str, str] = {}
        reached: list[GtidSet] = []
        running: list[GtidSet] = []
        for target in overlapping(self.shard, hop.targets):
            with closing(self._connect(target)) as server:
                # First where it stands, then how far its replication is: what it applies after this is after that.
                begins[target] = server.executed().position
                rows = self._rows(server, target)
                least = rows[0].position
                for row in rows[1:]:
                    least = common(least, row.position)
                reached.append(least)
                running += [row.position for row in rows if row.state.lower() == _GROUPS]
        return hop, begins, reached, running

    def _rows(self, server: ServerConnection, target: str) -> list[CheckpointRow]:
        found = [row for row in rows_of(server, self._checkpoints) if row.shard == self.shard]
        where = f"{self._checkpoints} of shard {target} ({server.account.address})"
        if not found:
            raise Unavailable(
                f"{where} has no row for shard {self.shard}: its replication has not begun, or writes none"
            )
        for row in found:
            if row.state.lower() in _UNREADY:
                raise Unavailable(f"{where} says that the replication from shard {self.shard} is {row.state}")
        return found


def rows_of(server: ServerConnection, checkpoints: CheckpointTable) -> list[CheckpointRow]:
    """Return the rows of a target's checkpoint table. Raises ``Unavailable``, with what to do."""
    columns = server.execute(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        " ORDER BY ORDINAL_POSITION",
        (checkpoints.database, checkpoints.table),
    )
    names = [str(name) for (name,) in columns]
    if not names:
        raise Unavailable(
            f"{server.account.address} has no table {checkpoints}, or {server.account.user} may not read it: a reshard "
            "is followed by what its replication writes there. Name the table as `reshard_checkpoint_table`"
        )
    listed = ", ".join(f"`{name}`" for name in names)
    rows = server.execute(f"SELECT {listed} FROM `{checkpoints.database}`.`{checkpoints.table}`")
    return [found for row in rows if (found := checkpoints.read(names, row)) is not None]


def begin_of_target(shard: str, parents: Mapping[str, Checkpoint]) -> GtidSet:
    """Return where a target is read from: the earliest of what its parents' last positions say.

    Raises ``RelayError`` for a parent that did not end by handing over.
    """
    begin: GtidSet | None = None
    for parent in parents.values():
        at = (parent.position or {}).get("targets", {}).get(shard)
        if at is not None:
            begin = parse(at) if begin is None else common(begin, parse(at))
    if begin is None:
        raise RelayError(
            f"shard {shard}: none of its parents ({', '.join(parents) or 'none are known'}) says where it begins. "
            "Read it from another place: `relay reset CONFIG SOURCE --to ...`"
        )
    return begin
