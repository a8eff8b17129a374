"""Simulated lineages: shards that split and merge on servers with wrong clocks, and a reader that follows them.

A world is made first, with the true version of every item in every transaction. Readers then make tokens from it as
the relay does. Add here whatever can happen to real shards; the rules under test are not repeated here.

What cannot happen is left out: a shard is a range of the key space, and no two live shards have the same name. In
MariaDB no name is used again, since its numbers would start again; and no failover loses anything: that is a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from relay.gtid import GtidSet, parse
from relay.token import EventToken, OriginToken

ITEMS = range(4)  # item n lives in slot n of the key space


@dataclass
class Transaction:
    gtid: str
    clock: int  # the header time: the server's clock, or for a replay the origin's time
    versions: dict[int, int]  # item -> its version once this is committed
    server: int
    origin: OriginToken | None = None

    def may_pass(self, other: Transaction, flavour: str) -> bool:
        """Whether a replica that applies in parallel may commit this before the older ``other``."""
        if flavour == "DynamoDB" or self.versions.keys() & other.versions.keys() or self.server != other.server:
            return False
        return flavour == "MySQL56" or self.gtid.split("-")[0] != other.gtid.split("-")[0]


@dataclass
class Shard:
    name: str
    items: frozenset[int]
    parents: tuple[Shard, ...]
    server: int
    skew: int
    log: list[Transaction] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)  # the last one per server (MySQL) or domain (MariaDB)
    # The length of the log when its children began to replay it, when it stopped taking writes, and when it took its
    # own first write; None if that never happened.
    copied_at: int | None = None
    closed_at: int | None = None
    opened_at: int | None = None


class Cursor:
    """One reader of a shard's log, on a replica that may commit independent transactions in its own order."""

    def __init__(self, shard: Shard, flavour: str, start: int, parallel: bool) -> None:
        self.shard, self.flavour, self.parallel = shard, flavour, parallel
        self.executed = parse("MariaDB/" if flavour == "MariaDB" else "")
        self.number = ""
        self.waiting: list[int] = []  # read past, not yet committed on this replica
        self.next = 0
        for _ in range(start):
            self._commit(self.shard.log[self.next])
            self.next += 1

    @property
    def position(self) -> str:
        return f"DynamoDB/{self.number}" if self.flavour == "DynamoDB" else self.executed.position

    def done(self, end: int) -> bool:
        return not self.waiting and self.next >= end

    def take(self, rng: Random, end: int) -> Transaction:
        """Commit and return the next transaction before ``end``."""
        log = self.shard.log
        while self.next < end and (not self.waiting or (self.parallel and rng.random() < 0.4)):
            late = [log[index] for index in self.waiting]
            self.waiting.append(self.next)
            self.next += 1
            if late and all(log[self.next - 1].may_pass(other, self.flavour) for other in late):
                return self._commit(log[self.waiting.pop()])
        return self._commit(log[self.waiting.pop(0)])

    def _commit(self, transaction: Transaction) -> Transaction:
        if self.flavour == "DynamoDB":
            self.number = transaction.gtid
        else:
            self.executed |= parse(transaction.gtid)
        return transaction


@dataclass
class Reshard:
    """Sources are replayed on the targets; after the switch the targets are replayed on the sources."""

    sources: tuple[Shard, ...]
    targets: tuple[Shard, ...]
    replays: list[tuple[Cursor, Shard]]
    switched: bool = False


class World:
    """``replayed``: targets replay their sources for a while; otherwise a reshard happens at one instant."""

    def __init__(self, rng: Random, flavour: str, *, replayed: bool, parallel: bool, steps: int = 70) -> None:
        self.rng, self.flavour, self.replayed, self.parallel = rng, flavour, replayed, parallel
        self.now = 1_700_000_000
        self.shards: list[Shard] = []
        self.names: dict[str, int] = {}
        self.version = dict.fromkeys(ITEMS, 0)
        self.servers = 0
        self.reshards: list[Reshard] = []
        for items in rng.choice(([{0, 1, 2, 3}], [{0, 1}, {2, 3}])):
            self._open(frozenset(items), ()).opened_at = 0
        for _ in range(steps):
            self.now += rng.choice((0, 0, 0, 1, 2))
            self._step()
        for reshard in reversed(self.reshards):  # what a later one replays, an earlier one may replay again
            self._drain(reshard)

    @property
    def serving(self) -> list[Shard]:
        return [shard for shard in self.shards if shard.opened_at is not None and shard.closed_at is None]

    @property
    def live(self) -> list[Shard]:
        """The shards that serve, will serve, or replay the shards that replaced them."""
        involved = [shard for reshard in self.reshards for shard in (*reshard.sources, *reshard.targets)]
        return [*self.serving, *involved]

    def _step(self) -> None:
        rng = self.rng
        shard = rng.choice(self.serving)
        match rng.choices(("write", "clock", "failover", "reshard", "replay", "switch"), (50, 4, 4, 5, 40, 5))[0]:
            case "write":
                items = rng.sample(sorted(shard.items), rng.randint(1, min(2, len(shard.items))))
                for item in items:
                    self.version[item] += 1
                self._append(shard, self.now + shard.skew, {item: self.version[item] for item in items})
            case "clock":
                shard.skew = rng.randint(-6, 6)
            case "failover":
                shard.server, shard.skew = self._server(), rng.randint(-6, 6)
            case "reshard":
                self._begin(self._neighbours(rng.randint(1, 2)))
            case "replay":
                if self.reshards:
                    self._replay(rng.choice(self.reshards))
            case "switch":
                if self.reshards:
                    self._switch(rng.choice(self.reshards))

    def _neighbours(self, count: int) -> list[Shard]:
        """Return up to ``count`` shards whose ranges adjoin: a shard is a range of the key space."""
        ordered = sorted(self.serving, key=lambda shard: min(shard.items))
        at = self.rng.randrange(len(ordered))
        return ordered[at : at + count]

    def _begin(self, sources: list[Shard]) -> None:
        items = sorted(item for source in sources for item in source.items)
        moving = [shard for reshard in self.reshards if not reshard.switched for shard in reshard.sources]
        if any(shard is source for shard in moving for source in sources) or len(items) == 1:
            return
        parts = [items]
        if len(sources) == 1 or self.rng.random() < 0.3:
            at = self.rng.randint(1, len(items) - 1)
            parts = [items[:at], items[at:]]
        if {frozenset(part) for part in parts} & {shard.items for shard in self.live}:
            return  # no two live shards have one name
        targets = []
        for part in parts:
            parents = tuple(source for source in sources if source.items & set(part))
            targets.append(self._open(frozenset(part), parents))
        for source in sources:
            source.copied_at = len(source.log)
        replays = [
            (Cursor(parent, self.flavour, len(parent.log), self.parallel), target)
            for target in targets
            for parent in target.parents
        ]
        reshard = Reshard(tuple(sources), tuple(targets), replays if self.replayed else [])
        self.reshards.append(reshard)
        if not self.replayed:
            self._switch(reshard)

    def _replay(self, reshard: Reshard) -> None:
        """Apply some transactions of one shard to another, as one transaction there."""
        waiting = [pair for pair in reshard.replays if not pair[0].done(len(pair[0].shard.log))]
        if not waiting:
            return
        cursor, target = self.rng.choice(waiting)
        versions: dict[int, int] = {}
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            if cursor.done(len(cursor.shard.log)):
                break
            taken = cursor.take(self.rng, len(cursor.shard.log))
            if taken.origin is not None and taken.origin.shard == target.name:
                continue  # it came from there
            versions |= {item: version for item, version in taken.versions.items() if item in target.items}
        if versions or self.rng.random() < 0.3:
            origin = OriginToken(taken.clock, cursor.shard.name, cursor.position)
            self._append(target, taken.clock, versions, origin)

    def _drain(self, reshard: Reshard) -> None:
        while any(not cursor.done(len(cursor.shard.log)) for cursor, _ in reshard.replays):
            self._replay(reshard)

    def _switch(self, reshard: Reshard) -> None:
        """Move the writes to the targets; the second time, end the replay back to the sources."""
        self._drain(reshard)
        if reshard.switched or not self.replayed:
            self.reshards.remove(reshard)
        if reshard.switched:
            return
        for source in reshard.sources:
            source.closed_at = len(source.log)
        for target in reshard.targets:
            target.opened_at = len(target.log)
        back = [
            (Cursor(target, self.flavour, len(target.log), self.parallel), parent)
            for target in reshard.targets
            for parent in target.parents
        ]
        reshard.replays, reshard.switched = back if self.replayed else [], True

    def _open(self, items: frozenset[int], parents: tuple[Shard, ...]) -> Shard:
        name = f"shop/commerce/{min(items)}-{max(items)}"
        self.names[name] = self.names.get(name, 0) + 1
        if self.names[name] > 1 and self.flavour != "MySQL56":
            # A name used again, with numbers that start again, could not be told from the old shard.
            name += f".{self.names[name]}"
        shard = Shard(name, items, parents, self._server(), self.rng.randint(-6, 6))
        self.shards.append(shard)
        return shard

    def _server(self) -> int:
        self.servers += 1
        return self.servers

    def _append(self, shard: Shard, clock: int, versions: dict[int, int], origin: OriginToken | None = None) -> None:
        counter: object = shard.server
        if self.flavour == "MariaDB":
            counter = self.rng.choice((0, 0, 7)) if origin is None else 1
        step = self.rng.choice((1, 10**19)) if self.flavour == "DynamoDB" else 1
        number = shard.numbers[counter] = shard.numbers.get(counter, 0) + step
        match self.flavour:
            case "MySQL56":
                # The first digits follow no order, as those of real servers.
                gtid = f"{shard.server * 2654435761 % 2**32:08x}-0000-4000-8000-000000000000:{number}"
            case "MariaDB":
                gtid = f"{counter}-{shard.server}-{number}"
            case _:
                gtid = str(sum(shard.numbers.values()))
        shard.log.append(Transaction(gtid, clock, versions, shard.server, origin))


@dataclass(frozen=True)
class Reading:
    """A change as a reader saw it: the item's true version, and the token the reader gave it."""

    item: int
    version: int
    token: EventToken


def read(
    world: World, rng: Random, *, parallel: bool, drop: bool = True, clamp: bool = True, least: int = 0
) -> list[Reading]:
    """Read ``world`` from its first shards to its last and return all changes in the order of reading.

    ``drop``: leave out replays whose origin was read already. ``clamp``: no timestamp decreases or is below ``least``.
    """
    readings: list[Reading] = []
    floors: dict[int, int] = {}
    finished: dict[str, GtidSet] = {}
    for shard in world.shards:  # parents come before their children
        end = len(shard.log)
        if shard.copied_at is not None:
            # Any point from which the children can take over; without replays there is only one.
            end = rng.randint(shard.copied_at, end) if world.replayed else (shard.closed_at or end)
        cursor = Cursor(shard, world.flavour, 0, parallel)
        floor = max((floors[id(parent)] for parent in shard.parents), default=least) if clamp else 0
        while not cursor.done(end):
            transaction = cursor.take(rng, end)
            origin = transaction.origin
            before = finished.get(origin.shard) if origin is not None and drop else None
            if origin is not None and before is not None and before.contains(parse(origin.position)):
                continue
            timestamp = max(transaction.clock, floor)
            if transaction.versions and clamp:
                floor = timestamp
            token = EventToken(timestamp, shard.name, cursor.position, origin)
            readings += [Reading(item, version, token) for item, version in transaction.versions.items()]
        floors[id(shard)] = floor
        finished[shard.name] = cursor.executed
    return readings


def pairs(readings: list[Reading]) -> Iterator[tuple[Reading, Reading]]:
    """Yield every two readings of one item."""
    for item in ITEMS:
        yield from combinations([reading for reading in readings if reading.item == item], 2)
