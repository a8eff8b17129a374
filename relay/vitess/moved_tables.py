"""Tables that MoveTables has taken to another keyspace: journals in the databases say so, and no stream has them."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from relay.errors import RelayError, Unavailable
from relay.gtid import GtidSet, parse
from relay.vitess.client import Vtgate
from relay.vitess.shard import VitessShard

MovedTo = Callable[[VitessShard, str, GtidSet, str], str | None]
"""`moved_to` of one vtgate."""

_JOURNALS = "select val from _vt.resharding_journal where db_name = database()"
_ABSENT = re.compile(r"errno (1146|1049)|(doesn't|does not) exist|not found|unknown database", re.IGNORECASE)
_RESHARD = re.compile(r"\bmigration_type:\s*SHARDS\b")
_TABLE = re.compile(r'\btables:\s*"([^"]*)"')
_GTIDS = r'"((?:MySQL56|MariaDB)/[^"]*)"'
_POSITION = re.compile(rf"\blocal_position:\s*{_GTIDS}")
_TARGET = re.compile(rf'\bshard_gtids:\s*\{{\s*keyspace:\s*"([^"]*)"\s*shard:\s*"([^"]*)"\s*gtid:\s*{_GTIDS}')


class _Move(NamedTuple):
    """``position``: of the shard that had the table. ``targets``: of each that has it since, by keyspace and shard."""

    position: GtidSet
    targets: Mapping[tuple[str, str], GtidSet]


def moved_to(vtgate: Vtgate, shard: VitessShard, table: str, executed: GtidSet, remade: str) -> str | None:
    """Return the keyspace that a table was moved to from ``shard``; None if it was not, or is back.

    ``executed``: what the shard had executed when that was so. ``remade``: as in ``VStreamPosition``. Raises
    ``Unavailable``.
    """
    here = shard.keyspace, shard.name
    found, since = _moves(vtgate, *here, table), parse(remade)
    # I7: the journal of a table stays for ever, also after another one got its name.
    moves = [move for move in found if executed.contains(move.position) and move.position.contains(since)]
    last = next((move for move in moves if all(move.position.contains(each.position) for each in moves)), None)
    if last is None:
        return None
    for place in last.targets:
        try:
            found = _moves(vtgate, *place, table)
        except RelayError:  # it may have been resharded since
            continue
        back = [move.targets[here] for move in found if here in move.targets]
        if any(executed.contains(at) and at != last.position and at.contains(last.position) for at in back):
            return None
    return next(iter(last.targets))[0]


def _moves(vtgate: Vtgate, keyspace: str, shard: str, table: str) -> list[_Move]:
    """Return the moves of ``table`` to other keyspaces that a shard has executed. Raises ``Unavailable``."""
    try:
        rows = vtgate.execute(_JOURNALS, f"{keyspace}:{shard}@primary")
    except Unavailable:
        raise
    except RelayError as error:
        if _ABSENT.search(str(error)) is None:  # I1
            raise Unavailable(
                f"shard {keyspace}/{shard}: whether {table} was moved to another keyspace cannot be asked: {error}"
            ) from error
        return []  # the shard never had one
    journals = [str(row["val"]) for row in rows]
    return [
        _Move(parse(position[1]), {(to, name): parse(at) for to, name, at in _TARGET.findall(journal)})
        for journal in journals
        if not _RESHARD.search(journal) and table in _TABLE.findall(journal) and (position := _POSITION.search(journal))
    ]
