"""Snapshots whose relay is killed at each step of what it commits, with statements and stops in between: I1, I3, I7."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.change import MARK
from tests.command_line import relay
from tests.faults.altered import Altered
from tests.faults.harness import Relay

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("kills in the snapshot of another source: test_snapshots.py kills at each commit of one"),
]

WORKER = "tests.faults.snapshot_killed_worker"


@pytest.fixture
def altered(tmp_path: Path, kafka: Any, mariadb: Any, unique: str) -> Iterator[Altered]:
    world = Altered(tmp_path, kafka.bootstrap_servers, mariadb, unique, snapshot="none")
    yield world
    world.close()


def command(world: Altered, *arguments: str) -> str:
    done = relay("snapshot", world.path, "s", *arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def stopped_and_resumed(world: Altered) -> None:
    assert "is stopping where it is" in command(world, "--stop")
    assert "all tables resumes" in command(world)


def withdrawn_and_requested(world: Altered) -> None:
    assert "was withdrawn" in command(world, "--stop")
    assert "all tables was requested" in command(world)


def stopped_for_a_run(world: Altered) -> None:
    """A relay that runs meanwhile reads nothing."""
    command(world, "--stop")
    before = reads(world)
    world.catch_up()
    assert reads(world) == before
    command(world)


def reads(world: Altered) -> list[str]:
    changes = [change for table in "abc" for *_, change in world.changes(table)]
    return [change["event_id"] for change in changes if change["operation"] == "READ" and change["key"]]


KILLS: list[tuple[str, str, Callable[[Altered], object]]] = [
    # The request is taken, and no segment planned yet.
    ("was requested", "before_commit", withdrawn_and_requested),
    ("was requested", "after_send_offsets", lambda world: world.within("alter table b add early int default 1")),
    ("was requested", "after_commit", stopped_and_resumed),
    # The begin is marked, and the segments are planned.
    ("starts, about", "before_commit", lambda world: world.within("delete from b where id % 3 = 0")),
    ("starts, about", "after_commit", stopped_for_a_run),
    # Rows.
    ("reading table", "before_commit", lambda world: world.within("alter table c modify id varchar(9)")),
    ("reading table", "after_commit", stopped_and_resumed),
    (
        "reading table",
        "after_commit",
        lambda world: world.within("truncate table a", "insert a values (3, 'after')", "alter table b drop early"),
    ),
    # The end is marked.
    ("is finished", "before_commit", lambda world: world.within("update b set v = 'after' where id = 5")),
    ("is finished", "after_commit", lambda world: world.within("delete from c where id = '7'")),
]
"""What is logged before, at which step of the commit after it the relay dies, and what happens before the next one."""


def test_a_snapshot_equals_the_tables_wherever_its_relay_is_killed(altered: Altered) -> None:
    """I1, I3, I7: a row is read once, unless the key of its table changed or the table was emptied."""
    for table in "abc":
        altered.fill(table, 200)
    altered.catch_up()
    command(altered)
    for text, step, then in KILLS:
        log = altered.path.parent / f"killed-{len(altered.relays)}.log"
        altered.relays.append(Relay([sys.executable, "-m", WORKER, str(altered.path), step, text], log))
        assert altered.relays[-1].wait(120) == -9, altered.relays[-1].log()
        then(altered)
    altered.catch_up()
    altered.catch_up()
    assert {table: altered.copy(table) for table in "abc"} == {table: altered.rows(table) for table in "abc"}
    of_b = [change for *_, change in altered.changes("b")]
    ids = Counter(change["event_id"] for change in of_b if change["key"])
    assert max(ids.values()) == 1
    assert len({change["snapshot"]["id"] for change in of_b if change["snapshot"]}) == 1
    assert Counter(change["attributes"][MARK] for change in of_b if MARK in change["attributes"]) == {
        "begin": 2,
        "end": 2,
    }
