"""Reshards by overlapping key ranges: which listed shards replace which, and when a shard hands over to them.

A shard ends once the replication of its targets continues from a position that was read here (Vitess' update stream
design, "Surviving Resharding"). Its last position says where each target's own binlog continues (I1).
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, reduce
from operator import add
from typing import NamedTuple

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet, parse
from relay.keyrange import KeyRange, overlapping, shard_range, shards_covering
from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Denied, NoTable
from relay.mysql.gtids import common
from relay.mysql.origins import CheckpointRow, CheckpointTable
from relay.mysql.positions import BinlogPosition
from relay.mysql.probe import BackgroundProbe
from relay.mysql_dialect.catalog import quoted
from relay.records import ReshardJournal, ShardCheckpoint

_RETRY = 1.0  # seconds between two checks of targets that are not ready
_PATIENCE = 60.0  # seconds until a position that this shard has not reached is reported

# States of Vitess' workflows that copy rows or replicate nothing; and that may commit several transactions as one.
_NOT_READY, _RUNNING = ("init", "copying", "error"), "running"


@dataclass(frozen=True, slots=True)
class Reshard:
    """``participants`` end, and ``targets``, which cover exactly the same ranges, replace them."""

    participants: tuple[str, ...]
    targets: tuple[str, ...]

    def journal(self) -> ReshardJournal:
        """Return the journal that ends every participant. It depends on the names alone, whoever reads them."""
        names = f"{','.join(self.participants)}>{','.join(self.targets)}"
        digest = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
        return ReshardJournal(digest, self.participants, {name: {"type": "reshard"} for name in self.targets})


@dataclass(frozen=True, slots=True)
class Handover:
    """The end of a shard. ``targets``: by shard, the GTID set after which each target is read."""

    journal: ReshardJournal
    targets: Mapping[str, str]


def first_shards(keyrange: KeyRange, listed: Sequence[str]) -> list[str]:
    """Return the shards that overlap none before them. Raises ``ValueError`` unless they cover exactly ``keyrange``."""
    return shards_covering(keyrange, [name for at, name in enumerate(listed) if not overlapping(name, listed[:at])])


@lru_cache(maxsize=1000)
def reshard_of(shard: str, listed: tuple[str, ...]) -> Reshard | None:
    """Return the reshard in which ``shard`` takes part; None if the shards listed after it do not replace it fully."""
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
    try:
        if _union(participants) != _union(targets):
            return None
    except ValueError:
        return None
    return Reshard(tuple(_in_order(participants)), tuple(_in_order(targets)))


def unfinished(listed: tuple[str, ...]) -> list[str]:
    """Return the shards that the overlapping shards listed after them do not replace fully."""
    return [name for name, after in _followers(listed).items() if after and reshard_of(name, listed) is None]


@lru_cache(maxsize=16)
def _followers(listed: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """Return the direct followers of each shard: the overlapping ones after it with no other one in between."""
    ranges = [shard_range(name) for name in listed]
    found = {}
    for at, name in enumerate(listed):
        later = [other for other in range(at + 1, len(listed)) if ranges[other].intersects(ranges[at])]
        next_ = (each for each in later if not any(o < each and ranges[o].intersects(ranges[each]) for o in later))
        found[name] = frozenset(listed[each] for each in next_)
    return found


def _union(names: Iterable[str]) -> KeyRange:
    """Return the range that shards cover together. Raises ``ValueError`` if they overlap or leave holes."""
    return reduce(add, map(shard_range, _in_order(names)))


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (shard_range(name).start, name))


class _Targets(NamedTuple):
    """A reshard's targets when they were asked. ``positions``: executed sets by shard. ``rows``: the rows of all."""

    reshard: Reshard
    positions: Mapping[str, str]
    rows: Sequence[CheckpointRow]


@dataclass(eq=False, repr=False)
class HandoverCheck:
    """Decides when one shard may end. ``connect``: to any server of a shard. ``listed``: changed by reloads.

    Another thread connects, since servers that do not answer take long. The caller's asks the targets, so that the
    answers fit what it has read. Used by one thread at a time.
    """

    shard: str
    listed: Callable[[], tuple[str, ...]]
    connect: Callable[[str], ServerConnection]
    checkpoints: CheckpointTable
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._connecting = BackgroundProbe(
            f"targets-of-{self.shard}", self._connect_to, every=_RETRY, discard=_close, clock=self.clock
        )
        self._servers: dict[str, ServerConnection] = {}  # the open connections, by target
        self._targets: _Targets | None = None
        self._ask_at = 0.0
        self._waits_for: str | None = None  # why the targets that were last asked are not ready

    def close(self) -> None:
        self._connecting.close()
        _close(self._servers)
        self._servers = {}

    def __call__(self, executed: GtidSet) -> Handover | None:
        """Return the handover once all targets continue from within ``executed``. Raises ``Unavailable`` until then."""
        reshard = reshard_of(self.shard, self.listed())
        if reshard is None:
            self._targets = None
            return None
        if self._targets is None or self._targets.reshard != reshard:
            self._targets = self._ask_if_due(reshard)
        targets = self._targets
        if targets is None:
            if (waits_for := self._connecting.trouble or self._waits_for) is not None:
                raise Unavailable(waits_for)
            return None
        if ahead := [row.position.position for row in targets.rows if not executed.contains(row.position)]:
            # This shard is read until it reaches them. It never reaches the position of another database's shard.
            if self.clock() < self._ask_at + _PATIENCE:
                return None
            reason = (
                f"{self.checkpoints} of a shard that replaces {self.shard} has the position {ahead[0]}, which was not "
                f"read here yet: if a row for shard {self.shard} is not of this reshard, remove it"
            )
        elif any(row.state.lower() == _RUNNING and not row.position.contains(executed) for row in targets.rows):  # I3
            reason = (
                f"the replication from shard {self.shard} is running, and is not at the position that was read here: "
                "the shard ends as soon as both are at the same position, which they are when writes pause or are "
                "switched over"
            )
        else:
            return Handover(reshard.journal(), dict(targets.positions))
        self._targets, self._waits_for = None, reason
        raise Unavailable(reason)

    def _ask_if_due(self, reshard: Reshard) -> _Targets | None:
        names = overlapping(self.shard, reshard.targets)
        if self._servers.keys() != set(names):
            _close(self._servers)
            self._connecting.start(names)
            self._servers = self._connecting.take() or {}
            if self._servers.keys() != set(names):
                return None
        if self.clock() < self._ask_at:
            return None
        self._ask_at = self.clock() + _RETRY
        try:
            found = self._ask(reshard)
        except RelayError as error:  # I12: the parent is read meanwhile
            self._waits_for = str(error)
            _close(self._servers)
            self._servers = {}
            return None
        self._waits_for = None
        return found

    def _connect_to(self, names: Iterable[str]) -> dict[str, ServerConnection]:
        with ExitStack() as stack:
            found = {name: stack.enter_context(closing(self.connect(name))) for name in names}
            stack.pop_all()
        return found

    def _ask(self, reshard: Reshard) -> _Targets:
        positions, rows = dict[str, str](), list[CheckpointRow]()
        for target, server in self._servers.items():
            # In this order: what the target applies from now on comes after its own position.
            positions[target] = server.executed().position
            rows += self._rows(server, target)  # I1: each has skipped what is before its own position
        return _Targets(reshard, positions, rows)

    def _rows(self, server: ServerConnection, target: str) -> list[CheckpointRow]:
        checkpoints, address = self.checkpoints, server.account.address
        try:
            rows = server.named_rows(f"SELECT * FROM {quoted(checkpoints.database)}.{quoted(checkpoints.table)}")
        except (Denied, NoTable) as error:
            raise Unavailable(
                f"{address} has no table {checkpoints}, or {server.account.user} may not read all of it ({error}): the "
                "relay follows a reshard by what its replication writes to that table. Set `reshard_checkpoint_table`"
            ) from None
        read = (checkpoints.read(list(row), list(row.values())) for row in rows)
        found = [row for row in read if row is not None and row.shard == self.shard]
        place = f"{checkpoints} of shard {target} ({address})"
        if not found:
            raise Unavailable(
                f"{place} has no row for shard {self.shard}: the replication has not started, or does not write one"
            )
        for row in found:
            if row.state.lower() in _NOT_READY:
                raise Unavailable(f"{place}: the replication from shard {self.shard} is {row.state}")
        return found


def _close(servers: Mapping[str, ServerConnection]) -> None:
    for server in servers.values():
        server.close()


def start_of_target(shard: str, parents: Mapping[str, ShardCheckpoint]) -> GtidSet:
    """Return the earliest GTID set that a parent hands over at. Raises ``RelayError`` if none ended with a handover."""
    positions = [BinlogPosition.from_json(each.position) for each in parents.values() if each.position is not None]
    starts = [parse(each.targets[shard]) for each in positions if shard in each.targets]
    if not starts:
        raise RelayError(
            f"shard {shard}: the checkpoints of its parents ({', '.join(parents) or 'none are known'}) do not say "
            "where it starts. Set its start with `relay reset CONFIG SOURCE --to ...`"
        )
    return reduce(common, starts)
