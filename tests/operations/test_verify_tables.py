"""When `relay verify` accuses a row of the copy or the log, by looks that the test plays one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from relay.change import Uncarriable
from relay.errors import RelayError, Unavailable
from relay.operations import suspicion, verify_tables
from relay.operations.compared_rows import ComparedTable, NoRoom
from relay.operations.verify_tables import AppliedTime, TableVerification, TableVerifier, verify_source
from relay.source import SourceRows
from relay.table import Column, KeyColumn, TableSchema
from spark_consumers.kept_rows import KeptRow, KeptRows
from tests.clock import Clock

SCHEMA = TableSchema("shop", "orders", (KeyColumn("id", "int"),), 1, (Column("id", "int"), Column("note", "string")))
WITHIN = 10.0


@dataclass
class World:
    """A table and what is kept of it, both by id. ``step``: what happens while the verifier sleeps, given the time."""

    clock: Clock
    truth: dict[int, str | Uncarriable] = field(default_factory=dict)
    kept: dict[int, KeptRow] = field(default_factory=dict)
    through: Callable[[float], float] = lambda now: now
    step: Callable[[float], None] = lambda now: None
    from_start: bool = True
    twice: list[tuple[str, str]] = field(default_factory=list)
    looks: int = 0

    def keep(self, id: int, note: str | None, *, incomplete: bool = False, event_id: str = "e") -> None:
        self.kept[id] = KeptRow((str(id),), None if note is None else (note,), incomplete, event_id)

    def verify(self, sample: int | None = None) -> TableVerification:
        def sleep(seconds: float) -> None:
            self.clock.now += seconds
            self.looks += 1
            self.step(self.clock.now)

        verifier = TableVerifier(
            ComparedTable(SCHEMA), Truth(self), Kept(self), Applied(self), WITHIN, lambda _: None,
            clock=self.clock, sleep=sleep,
        )  # fmt: skip
        return verifier.run(sample)


@dataclass
class Truth:
    world: World
    schema: TableSchema = SCHEMA

    def close(self) -> None: ...

    def all(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        for id, note in self.world.truth.items():
            yield {"id": id}, note if isinstance(note, Uncarriable) else {"id": id, "note": note}

    def some(self, count: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
        return iter(list(self.all())[:count])

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        return (row for row in list(self.all()) if [str(row[0]["id"])] in [list(key) for key in keys])


@dataclass
class Kept(KeptRows):
    world: World
    where: str = "somewhere"

    @property
    def from_start(self) -> bool:
        return self.world.from_start

    @from_start.setter
    def from_start(self, value: bool) -> None: ...

    def all(self) -> Iterator[KeptRow]:
        return iter(list(self.world.kept.values()))

    def some(self, count: int) -> Iterator[KeptRow]:
        return iter(list(self.world.kept.values())[:count])

    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[KeptRow]:
        return iter([row for row in self.world.kept.values() if row.key in keys])

    def duplicates(self) -> tuple[int, list[tuple[str, str]]]:
        return len(self.world.twice), self.world.twice


@dataclass
class Applied(AppliedTime):
    world: World
    is_running: bool = True
    apply_every: float = 0.0
    waiting: int = 0
    committed: dict[str, dict[str, int]] = field(default_factory=dict)

    def close(self) -> None: ...

    def through(self) -> float:
        return self.world.through(self.world.clock())


@pytest.fixture
def world(clock: Clock) -> World:
    return World(clock)


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


def kinds(found: TableVerification) -> dict[str, list[str]]:
    return {kind: [row.key["id"] for row in found.wrong_rows if row.kind == kind] for kind in found.wrong}


def test_missing_extra_and_different_rows_are_named_with_their_values(world: World) -> None:
    world.truth = {1: "same", 2: "missing", 3: "true"}
    for id, note in ((1, "same"), (3, "kept"), (4, "extra")):
        world.keep(id, note)
    found = world.verify()
    assert (found.checked, found.consistent, found.late) == (4, 1, 0)
    assert kinds(found) == {"missing": ["2"], "extra": ["4"], "different": ["3"]}
    assert found.problems == "1 missing, 1 extra, 1 different"
    different = next(row for row in found.to_json()["wrong_rows"] if row["kind"] == "different")
    assert different["columns"] == {"note": {"kept": "kept", "source": "true"}}
    assert different["seconds"] >= WITHIN


def test_what_arrives_in_time_is_late_and_not_wrong(world: World) -> None:
    world.truth = {1: "new", 2: "new"}
    world.keep(1, "old")
    world.keep(3, "deleted at the source")

    def step(now: float) -> None:
        if now > 1005:
            world.kept.clear()
            world.keep(1, "new", event_id="e2")
            world.keep(2, "new")

    world.step = step
    found = world.verify()
    assert (found.consistent, found.late, found.wrong.total()) == (3, 3, 0)
    assert 5 < found.slowest < WITHIN


def test_nothing_is_accused_before_the_consumer_has_applied_what_was_committed_before(world: World) -> None:
    world.truth = {1: "new"}
    world.keep(1, "old")
    world.through = lambda now: 999.0 if now < 1060 else now  # a backlog of a minute

    def step(now: float) -> None:
        if now >= 1061:
            world.keep(1, "new", event_id="e2")

    world.step = step
    found = world.verify()
    assert (found.consistent, found.late, found.wrong.total()) == (1, 1, 0)


def test_a_consumer_that_stays_behind_makes_rows_unknown_in_bounded_time(world: World) -> None:
    world.truth = {1: "new"}
    world.through = lambda now: 999.0
    found = world.verify()
    assert (found.checked, dict(found.unknown)) == (
        0, {"relay and consumer had not caught up with the source at the end": 1},
    )  # fmt: skip
    assert world.clock.now < 1200


def test_a_row_that_changes_from_look_to_look_is_unknown(world: World) -> None:
    world.truth = {1: "0"}
    world.keep(1, "-1")

    def step(now: float) -> None:
        world.truth[1] = str(now)

    world.step = step
    assert dict(world.verify().unknown) == {suspicion.CHANGING: 1}


def test_a_row_that_alternates_between_two_values_is_not_accused_for_the_copy_of_one(world: World) -> None:
    """At each look the source has A again, and the copy has come as far as the last B."""
    world.truth = {1: "A"}
    world.keep(1, "B", event_id="0")

    def step(now: float) -> None:
        world.keep(1, "B", event_id=str(now))

    world.step = step
    assert world.verify().wrong.total() == 0


def test_incomplete_rows_are_reported_as_such(world: World) -> None:
    world.truth = {1: "new", 2: "only a stub", 4: "equal anyway"}
    world.keep(1, "old", incomplete=True)
    world.keep(2, None, incomplete=True)
    world.keep(3, None, incomplete=True)  # deleted since
    world.keep(4, "equal anyway", incomplete=True)
    found = world.verify()
    assert (found.incomplete, found.checked, found.wrong.total()) == (2, 2, 0)
    assert sorted(key["id"] for key in found.incomplete_keys) == ["1", "2"]
    assert world.looks == 0


@pytest.mark.parametrize("sample", [None, 10])
def test_a_row_that_cannot_be_carried_is_incomplete_or_missing_in_the_copy(world: World, sample: int | None) -> None:
    """I8: of such a row the copy has a stub, and an earlier value if there was one."""
    world.truth = dict.fromkeys(range(1, 5), Uncarriable({}, "half a surrogate pair"))
    world.keep(1, None, incomplete=True)
    world.keep(2, "old", incomplete=True)
    world.keep(3, "old")
    found = world.verify(sample)
    assert (found.consistent, found.incomplete) == (0, 2)
    assert kinds(found) == {"missing": ["4"], "different": ["3"]}
    assert sorted(key["id"] for key in found.incomplete_keys) == ["1", "2"]


def test_an_incomplete_row_whose_item_is_gone_is_extra(world: World) -> None:
    world.keep(1, "old", incomplete=True)
    assert kinds(world.verify()) == {"extra": ["1"]}


def test_a_row_that_the_log_lacks_is_only_missing_if_a_snapshot_has_read_the_table(world: World) -> None:
    world.truth = {1: "older than the log?"}
    world.from_start = False
    found = world.verify()
    assert (found.wrong.total(), found.unknown.total()) == (0, 1)
    world.from_start = True
    assert kinds(world.verify()) == {"missing": ["1"]}


def test_changes_that_the_log_has_twice_are_a_problem_of_a_complete_run(world: World) -> None:
    world.twice = [("e1", '{"id":1}')]
    assert world.verify().problems == "1 duplicated"
    assert world.verify(sample=5).problems == ""


def test_keys_of_which_the_copy_has_several_rows_are_a_problem(world: World) -> None:
    """I7: also if one of the rows is the source's. A row of which only a change without its image came is none."""
    world.truth = {1: "same", 2: "same", 3: "same"}
    for id in world.truth:
        world.keep(id, "same", event_id=f"e{id}")
    world.kept[-2] = KeptRow(("2",), ("other",), False, "earlier")
    world.kept[-3] = KeptRow(("3",), None, True, "stub")
    world.kept = dict(sorted(world.kept.items()))
    found = world.verify()
    assert (found.consistent, found.problems) == (3, "1 duplicated")
    named = [{"event_id": event_id, "key": '{"id":"2"}'} for event_id in ("earlier", "e2")]
    assert found.to_json()["duplicated"] == named


def test_a_table_that_cannot_be_compared_keeps_no_other_from_it(world: World) -> None:
    """I12: such as one whose key was altered, whose rows the copy keeps by the key before."""

    def verify(rows: SourceRows) -> TableVerification:
        raise RelayError("the key of its rows is id")

    opened = []

    def open_rows(tables: Sequence[str]) -> Iterator[Truth]:
        opened.append(tables)
        for table in tables:
            yield Truth(world, replace(SCHEMA, table=table))

    found, other = verify_source(open_rows, ["orders", "others"], verify, WITHIN)
    assert (found.table, found.problems, found.checked) == ("orders", "the key of its rows is id", 0)
    assert found.to_json()["refused"] == "the key of its rows is id"
    assert other.table == "others"
    assert opened == [["orders", "others"]], "the source is opened once"


def test_a_table_whose_rows_cannot_be_read_keeps_no_other_from_being_compared(world: World) -> None:
    """I12: its source may lack it, or a value that cannot be carried ends its read. What does not answer ends all."""

    class Broken(Truth):
        def all(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
            raise error

    def open_rows(tables: Sequence[str]) -> Iterator[Truth]:
        for table in tables:
            if table == "lost":
                raise RelayError("there is no table lost")
            yield (Broken if table == "broken" else Truth)(world, replace(SCHEMA, table=table))

    def verify(rows: SourceRows) -> TableVerification:
        table = ComparedTable(rows.schema)
        return TableVerifier(table, rows, Kept(world), Applied(world), WITHIN, lambda _: None).run(None)

    tables, error = ["orders", "lost", "broken", "others", "lost"], RelayError("a value cannot be carried")
    found = verify_source(open_rows, tables, verify, WITHIN)
    assert [(each.table, each.problems) for each in found] == [
        ("orders", ""), ("lost", "there is no table lost"), ("broken", "a value cannot be carried"), ("others", ""),
        ("lost", "there is no table lost"),
    ]  # fmt: skip
    for error in (NoRoom("the disk is full"), Unavailable("it does not answer")):
        with pytest.raises(type(error)):
            list(verify_source(open_rows, tables, verify, WITHIN))


def test_a_sample_compares_rows_of_both_sides(world: World) -> None:
    world.truth = dict.fromkeys(range(100), "same")
    for id in range(100):
        world.keep(id, "same")
    world.keep(-1, "extra")
    world.kept = {-1: world.kept[-1], **world.kept}
    found = world.verify(sample=10)
    assert (found.checked, found.consistent, found.late) == (11, 10, 0)
    assert kinds(found) == {"extra": ["-1"]}


def test_of_any_number_of_wrong_rows_all_are_counted_and_a_bounded_number_is_looked_at_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11"""
    monkeypatch.setattr(verify_tables, "_MOST_AGAIN", 50)
    world.truth = dict.fromkeys(range(120), "missing")
    found = world.verify()
    assert (found.wrong["missing"], found.unknown.total(), len(found.wrong_rows)) == (50, 70, 20)
    assert found.to_json()["unknown_reasons"] == {"only the first 50 rows that differ are looked at again": 70}
