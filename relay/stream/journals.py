"""Lineage of streams that announce reshards themselves, in journals.

The shards follow from the plan and from the last checkpoint of each shard that a journal ended, for all workers alike.
The name of a shard that does not have all tables is followed by a tag, and by a number if one of its ancestors had the
same name and tables. It does not depend on anything else, so journals that come later do not change it.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from relay.errors import RelayError
from relay.keyrange import KeyRange, shard_range
from relay.records import INCARNATION, Plan, ReshardJournal, Shard, ShardCheckpoint, Start, has_ended


def check_participants(
    journal: ReshardJournal, shard: Shard, plan: Plan, checkpoints: Mapping[str, ShardCheckpoint]
) -> None:
    """Raise ``RelayError`` if the journal that ended ``shard`` does not name it, or names a shard that is not read."""
    if shard.name not in journal.participants:
        raise RelayError(
            f"journal {journal.id} ended shard {shard.id}, but names only {', '.join(journal.participants)} as its "
            "participants"
        )
    shards, _ = _derived(plan, checkpoints)
    known = {each.name for each in shards}
    # A shard that is behind may yet be followed by one that takes part.
    behind = [_range_of(each.name) for each in shards if each.id != shard.id and not has_ended(checkpoints, each.id)]
    for name in journal.participants:
        if name not in known and not _is_among(behind, name):  # I10
            taken, why = f"merges shard {shard.id} with {name}", "its key range no longer covers whole shards"
            if shard.name in journal.targets:
                taken = f"takes tables from shard {shard.id} and from {name}"
                why = "the moved tables are read together"
            raise RelayError(
                f"the journal {journal.id} {taken}, but this source does not read {name}: {why}. Widen `keyrange`, "
                "then run `relay reset` to begin with the current shards"
            )


def shards_of(plan: Plan, checkpoints: Mapping[str, ShardCheckpoint]) -> list[Shard]:
    """Return every shard of the stream, past and present: those in the plan, and those that journals announced.

    A shard that continues several is announced once all of them have ended. Raises ``RelayError`` if two journals
    announce one shard, or if a shard that has ended waits for one that cannot come.
    """
    shards, waiting = _derived(plan, checkpoints)
    coming = [_range_of(each.name) for each in shards if waiting and not has_ended(checkpoints, each.id)]
    while found := [each for each in waiting if all(_is_among(coming, name) for name in each.missing)]:
        coming += [_range_of(target) for each in found for target in each.targets]
        waiting = [each for each in waiting if each not in found]
    if waiting:  # I10
        journal, ended, missing, _ = waiting[0]
        raise RelayError(
            f"journal {journal} ended {', '.join(ended)}, and what follows waits for {', '.join(missing)} with the "
            "same tables. No shard that is read can become that: their tables differ, or one was lost. Run "
            "`relay reset` to begin with the current shards"
        )
    return shards


class _Waiting(NamedTuple):
    """Shards that a journal has ``ended``, and whose ``targets`` wait for the ``missing`` participants."""

    journal: str
    ended: list[str]
    missing: list[str]
    targets: list[str]


def _is_among(coming: Iterable[KeyRange], name: str) -> bool:
    return any(map(_range_of(name).intersects, coming))


def _derived(plan: Plan, checkpoints: Mapping[str, ShardCheckpoint]) -> tuple[list[Shard], list[_Waiting]]:
    """Return every shard, and what is not announced yet."""
    shards = {name: Shard(name) for name in plan.shards}
    # By shard, itself and its ancestors.
    lines: dict[str, frozenset[str]] = {name: frozenset([name]) for name in shards}
    # By journal and the shards that follow it, the shards of each name that have ended there, earlier ones first.
    ended: dict[tuple[str, frozenset[str]], dict[str, list[str]]] = {}

    def announce(target: str, start: Start, parents: tuple[str, ...]) -> None:
        ancestors = frozenset().union(*(lines[parent] for parent in parents))
        base = f"{target}{tag_of(start)}"
        new = _newest(base, {*plan.shards, *plan.past, *ancestors}, later=1)
        if new in shards:  # I1
            first = f"as successor of {', '.join(shards[new].parents)}" if shards[new].parents else "by the plan itself"
            raise RelayError(f"shard {new} is announced twice: {first} and as successor of {', '.join(parents)}")
        shards[new] = Shard(new, parents, start)
        lines[new] = ancestors | {new}
        waiting.append(new)

    waiting = list(shards)
    for shard in waiting:  # it grows
        if (checkpoint := checkpoints.get(shard)) is None or (journal := checkpoint.journal) is None:
            continue
        name = Shard(shard).name
        targets = {Shard(target).name: start for target, start in journal.targets.items()}
        if (rest := targets.pop(name, None)) is not None:  # I12: it goes on by itself, without tables that were moved
            announce(name, rest, (shard,))
        # I10: where several streams have a shard, the ones with the same tables end together.
        following = frozenset(f"{target}{tag_of(start)}" for target, start in targets.items())
        participants = dict.fromkeys(Shard(each).name for each in journal.participants)
        beside = ended.setdefault((journal.id, following), {each: [] for each in participants})
        beside[name].append(shard)
        time = len(beside[name]) - 1  # journals may have the names of earlier ones
        if all(len(each) > time for each in beside.values()):  # I2
            parents = tuple(each[time] for each in beside.values())
            for target, start in targets.items():
                announce(target, start, parents)
    left = []
    for (number, following), beside in ended.items():
        most = max(map(len, beside.values()))
        if missing := [name for name, each in beside.items() if len(each) < most]:
            names = [each for found in beside.values() for each in found]
            left.append(_Waiting(number, names, missing, sorted(Shard(target).name for target in following)))
    return list(shards.values()), left


def renamed(
    starts: Mapping[str, Start], before: Plan, checkpoints: Mapping[str, ShardCheckpoint]
) -> tuple[dict[str, Start], tuple[str, ...]]:
    """Return the ``starts`` of a reset stream by shard id, and the newest shard of each name and set of tables so far.

    If a shard had ended, a shard with the same name is now a different one: its positions may belong to another
    sequence, so tokens of the two must not look as if they came from one shard. ``before``: the former plan.
    """
    there = {shard.id for shard in _derived(before, checkpoints)[0]}
    known = {*there, *before.past}
    ids: dict[str, Start] = {}
    for name, start in starts.items():
        newest = _newest(name, known)
        goes_on = newest in there and not has_ended(checkpoints, newest)
        ids[newest if goes_on or newest not in known else _newest(name, known, later=1)] = start
    names = {_numbered(shard)[0] for shard in (*known, *ids)}
    return ids, tuple(sorted(_newest(name, {*known, *ids}) for name in names))


def tag_of(start: Start) -> str:
    """Return what distinguishes the tables that begin at ``start`` from others of their shard."""
    tables = [sorted(start.get("only", ())), sorted(start.get("without", ()))]
    return f"{INCARNATION}t{blake2b(repr(tables).encode(), digest_size=4).hexdigest()}" if any(tables) else ""


def _newest(name: str, known: Iterable[str], *, later: int = 0) -> str:
    """Return the id of the newest ``known`` shard called ``name``, or ``later`` after it (numbered from 2)."""
    number = max((number for shard, number in map(_numbered, known) if shard == name), default=0) + later
    return name if number <= 1 else f"{name}{INCARNATION}{number}"


def _numbered(shard: str) -> tuple[str, int]:
    name, _, number = shard.rpartition(INCARNATION)
    return (name, int(number)) if name and number.isdigit() else (shard, 1)


def _range_of(name: str) -> KeyRange:
    return shard_range(name.rpartition("/")[2])
