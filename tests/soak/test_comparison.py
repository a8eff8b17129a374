"""The comparisons of a soak notice what they are there for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.soak.application import ItemRead, stale
from tests.soak.scripted_items import ScriptedItems, exists_after
from tests.soak.topic import AppliedTimes, TopicCheck

ITEM = "item-1"
LAST = 30
RIGHT = list(range(1, LAST + 1))


def change(version: int) -> dict[str, Any]:
    """A change as it comes from a topic, committed 9.5 s after the one before."""

    def image(of: int) -> str | None:
        return orjson.dumps({"version": {"N": str(of)}}).decode() if exists_after(of) else None

    return {
        "event_id": f"{version:032x}"[::-1],
        "key": {"id": ITEM},
        "old": image(version - 1),
        "new": image(version),
        "token": {"position": f"DynamoDB/{version}"},
        "committed_at": datetime.fromtimestamp(version * 9.5, UTC),
    }


def checked(versions: Sequence[int], log: Path | None = None) -> TopicCheck:
    with ScriptedItems(1, 1.0) as part:
        check = TopicCheck(part, {ITEM: range(1, LAST + 1)}, AppliedTimes(log) if log else None)
        for offset, version in enumerate(versions):
            check.take("t", 0, offset, change(version))
        check.end()
        return check


@pytest.mark.parametrize(
    ("versions", "lost", "doubled", "disordered"),
    [
        (RIGHT, 0, 0, 0),
        (RIGHT[:-2], 2, 0, 0),
        (RIGHT[:4] + RIGHT[7:], 3, 0, 1),
        (RIGHT[:9] + RIGHT[6:], 0, 3, 0),
        ([*RIGHT[:4], 6, 5, *RIGHT[6:]], 0, 0, 2),
        ([*RIGHT, 99], 0, 0, 1),
    ],
    ids=["all", "the end is lost", "three are lost", "three are doubled", "two change places", "one was never written"],
)
def test_what_a_topic_lacks_doubles_and_disorders_is_counted(
    versions: list[int], lost: int, doubled: int, disordered: int
) -> None:
    check = checked(versions)
    assert (check.lost, check.doubled, check.disordered) == (lost, doubled, disordered)
    assert bool(check.problems) == bool(lost or doubled or disordered)


def test_an_item_in_two_partitions_is_a_problem() -> None:
    check = checked(RIGHT)
    check.take("t", 1, 0, change(LAST))
    assert "earlier ones are in partition 0" in check.problems[0]


@pytest.mark.parametrize(
    ("version", "started", "is_stale"),
    [
        (9, 99.0, False),  # nothing is applied yet
        (9, 101.0, True),  # changes 1 to 10 are
        (10, 101.0, False),
        (None, 101.0, True),
        (None, 105.0, False),  # change 11, a delete, was committed
        (None, 201.0, True),  # change 22 was not
        (20, 201.0, False),
    ],
)
def test_a_read_older_than_an_applied_invalidation_is_stale(
    tmp_path: Path, version: int | None, started: float, is_stale: bool
) -> None:
    """The batches end at changes 10 and 20, and are applied in seconds 100 and 200."""
    log = tmp_path / "cache.log"
    lines = [{"event": "batch", "applied_at": n * 100.0, "end_offsets": {"t": {"0": n * 10}}} for n in (1, 2)]
    log.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b'\n{"event": "batch", "applied')
    check = checked(RIGHT, log)
    assert (stale(check, ItemRead(ITEM, version, started, started, True)) is not None) == is_stale
