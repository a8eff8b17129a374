"""Changes of two tables with equal keys, for one topic of both."""

from __future__ import annotations

from collections.abc import Sequence

from relay.change import Change, Operation
from tests.spark_consumers.topic import change, mark

AS_OF = 1_700_000_000 + 200


def of_lines(changes: Sequence[Change]) -> list[Change]:
    """Make these changes of the other table."""
    for each in changes:
        each.source = each.table = "lines"
        each.event_id = f"lines-{each.event_id}"
    return list(changes)


def rows(version: int) -> list[Change]:
    """Return three customers, inserted at this version and the next two."""
    return [change(f"c{number}", version + number, Operation.INSERT) for number in range(3)]


def snapshot(*found: Change) -> list[Change]:
    return [mark("begin", AS_OF), *found, mark("end", AS_OF)]
