"""Lineage that the streams themselves announce: reshards, by their journals.

A source with journals has no listing of shards. Its shards follow from the plan and from the last checkpoint of each
shard that a journal ended. A shard there has a number behind its name if an earlier shard had the same name. Every
worker derives the same shards.
"""

from collections.abc import Iterable, Mapping

from relay.errors import RelayError
from relay.records import INCARNATION, Plan, ReshardJournal, Shard, ShardCheckpoint, Start, has_ended


def record_of(
    journal: ReshardJournal, shard: Shard, plan: Plan, checkpoints: Mapping[str, ShardCheckpoint]
) -> ReshardJournal:
    """Return the journal that ended ``shard``, as its last checkpoint keeps it.

    Raises ``RelayError`` if the journal does not name the shard.
    """
    if shard.name not in journal.participants:
        raise RelayError(
            f"the journal {journal.id} that ended shard {shard.id} does not name it, but "
            f"{', '.join(journal.participants)}"
        )
    for other in checkpoints.values():
        if (named := other.journal) is not None and named.id == journal.id and shard.id in named.participants:
            return named  # another participant has ended already, and named the shards for all
    there = [each.id for each in shards_of(plan, checkpoints)]
    known = [*there, *plan.past]
    for name in journal.participants:
        if _newest(name, there) not in there:
            raise RelayError(
                f"the journal {journal.id} merges shard {shard.id} with {name}, which this source does not read: its "
                "key range no longer covers whole shards. Widen `keyrange`, then run `relay reset` to begin with the "
                "current shards"
            )
    return ReshardJournal(
        journal.id,
        tuple(shard.id if name == shard.name else _newest(name, there) for name in journal.participants),
        {_newest(name, known, later=1): start for name, start in sorted(journal.targets.items())},
    )


def shards_of(plan: Plan, checkpoints: Mapping[str, ShardCheckpoint]) -> list[Shard]:
    """Return every shard of the stream, past and present: the plan's, and the ones that journals announced."""
    shards = {name: Shard(name) for name in plan.shards}
    for checkpoint in checkpoints.values():
        if checkpoint.journal is not None:
            for name, start in checkpoint.journal.targets.items():
                shards[name] = Shard(name, checkpoint.journal.participants, start)
    return list(shards.values())


def renamed(
    starts: Mapping[str, Start], before: Plan, checkpoints: Mapping[str, ShardCheckpoint]
) -> tuple[dict[str, Start], tuple[str, ...]]:
    """Return ``starts``, by shard, for a stream that is reset, and the newest shard of each name so far.

    If a shard had ended, one of the same name is another shard now: its positions may be of another sequence, so tokens
    of the two must not look as if they came from one shard. ``before``: the plan until now.
    """
    there = {shard.id for shard in shards_of(before, checkpoints)}
    known = {*there, *before.past}
    ids: dict[str, Start] = {}
    for name, start in starts.items():
        newest = _newest(name, known)
        goes_on = newest in there and not has_ended(checkpoints, newest)
        ids[newest if goes_on or newest not in known else _newest(name, known, later=1)] = start
    names = {shard.partition(INCARNATION)[0] for shard in (*known, *ids)}
    return ids, tuple(sorted(_newest(name, {*known, *ids}) for name in names))


def _newest(name: str, known: Iterable[str], *, later: int = 0) -> str:
    """Return the id of the newest of the ``known`` shards called ``name``, or of the one ``later`` places after it.

    The first shard of a name has no number behind it.
    """
    parts = (shard.partition(INCARNATION) for shard in known)
    number = max((int(number or 1) for shard, _, number in parts if shard == name), default=0) + later
    return name if number <= 1 else f"{name}{INCARNATION}{number}"
