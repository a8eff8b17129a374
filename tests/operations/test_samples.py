"""Which samples `relay verify --forever` looks at, in simulated time, and how they end."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from relay.errors import RelayError, Unavailable
from relay.operations import samples
from relay.operations.expected_values import Comparison, ServedValue
from relay.operations.verify_forever import WatchedCache, WatchedTables
from relay.table import KeyColumn
from tests.operations.watched_orders import (
    SCHEMA,
    Copied,
    KeptNotes,
    Orders,
    World,
    lose_a_table,
    plant,
    settled_world,
    write,
)


@pytest.fixture
def world() -> World:
    return settled_world()


def test_samples_that_cannot_be_read_leave_time_for_all_others(world: World) -> None:
    """I12: there are more of them than fit in a round."""
    lose_a_table(world).watch((("lost", (str(number),)), None) for number in range(200))
    world.apply(write(world, 100, 1, "new"))
    world.copy[1] = 100, "other", "e"
    world.rounds(20)
    assert world.accused == {("copy", "different", "1")}


def test_samples_histories_and_accusations_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11"""
    monkeypatch.setattr(samples, "_PASSED", 100)
    monkeypatch.setattr(samples, "_SAMPLES", 150)
    for number in range(400):
        write(world, 1000 + number, number, "new")
    for number in range(600):
        world.rounds(0.01 if number % 20 == 0 else 0)
        write(world, 2000 + number, number % 10, str(number))
    world.rounds(20)
    for sink in world.sinks.values():
        assert len(sink.watched) <= 150
        assert all(len(each.history) <= 20 for each in sink.watched.values())
        assert len(sink._passed) == 100
    assert len(world.told) > 100
    assert len(world.observer.report()["accused"]) == 100


class _Unreadable:
    """Key 5 cannot be read; of the cache or, for a sink of tables, of the row."""

    def __init__(self, world: World) -> None:
        self.world = world

    def compare(self, served: Mapping[str, ServedValue]) -> dict[str, Comparison]:
        if "order:5" in served:
            raise Unavailable(f"the loader failed for {len(served)} keys")
        return self.world.compare(served)

    def open_tables(self, tables: Collection[str]) -> Iterator[Orders]:
        for _ in tables:
            yield _UnreadableRow(self.world)


class Nothing(Copied):
    """A copy that has no row."""

    @property
    def rows(self) -> KeptNotes:
        return {}


class _UnreadableRow(Orders):
    def of(self, keys: Sequence[Sequence[str]]) -> Iterator[tuple[Mapping[str, Any], Any]]:
        if ("5",) in keys:
            raise RelayError(f"a value among {len(keys)} rows cannot be carried")
        return super().of(keys)


def without_random_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only changes become samples, as with large tables."""
    monkeypatch.setattr(samples, "_PASSED", 0)
    for sink in world.sinks.values():
        sink.watched.clear()
        sink._passed.clear()
        sink._picked_at = math.inf


@pytest.mark.parametrize("name", ["cache", "copy"])
def test_a_key_that_cannot_be_read_keeps_no_other_from_being_judged_and_is_unknown_in_the_end(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: the sink is blind until then."""
    without_random_keys(world, monkeypatch)
    sink = world.sinks[name]
    if isinstance(sink, WatchedTables):
        sink._sources = {"shop": _Unreadable(world).open_tables}
    else:
        assert isinstance(sink, WatchedCache)
        sink._compare = _Unreadable(world).compare
    for id in range(20):
        world.apply(write(world, 100 + id, id, "new"))
        plant(world, f"order:{id}", b"new")
    plant(world, "order:1", b"note 1")
    world.copy[1] = 101, "other", "e"

    def report() -> Any:
        return {each["sink"]: each for each in world.observer.report()["sinks"]}[name]

    world.rounds(15)
    assert {found for found in world.accused if found[0] == name} == {
        (name, *({"cache": ("stale", "order:1"), "copy": ("different", "1")}[name]))
    }
    assert report()["samples"]["consistent"] >= 18
    # The key is looked at alone, or beside one that was accused.
    blind = {"cache": "the loader failed for [12] keys", "copy": "a value among [12] rows cannot be carried"}[name]
    assert re.fullmatch(blind, report()["blind"])
    assert f"{name} cannot be looked at" in [stall.what for stall in world.observer.stalls()]
    world.rounds(20)
    assert report()["samples"]["unknown"] == 1
    assert report()["blind"] is None
    assert world.said[-1] == f"{name} can be looked at again"


def test_an_accusation_ends_although_the_next_look_could_not_decide(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is repaired after the relay was down for so long that the sample ended as unknown; the log is not."""
    without_random_keys(world, monkeypatch)
    world.apply(write(world, 100, 1, "new"))
    world.copy[1] = 100, "other", "e"
    del world.logged["-:100"]
    world.rounds(15)
    assert world.accused == {("copy", "different", "1"), ("log", "lost change", "1")}
    world.progress.is_running = False
    world.rounds(60)
    world.progress.is_running = True
    world.copy[1] = 101, "new", "repaired"
    world.rounds(15)
    assert world.accused == {("log", "lost change", "1")}


def test_an_accusation_of_a_key_ends_when_the_key_of_its_table_is_altered(world: World) -> None:
    world.apply(write(world, 100, 1, "new"))
    world.copy[1] = 100, "other", "e"
    world.rounds(15)
    assert world.accused == {("copy", "different", "1")}
    wider = replace(SCHEMA, key=(*SCHEMA.key, KeyColumn("note", "string")))

    def open_tables(tables: Collection[str]) -> Iterator[Orders]:
        for _ in tables:
            yield Orders(world, wider)

    for sink in world.sinks.values():
        if isinstance(sink, WatchedTables):
            sink._sources = {"shop": open_tables}
            sink._open_kept = lambda layout, wanted: Nothing(world)
    world.rounds(60)
    assert world.accused == set()
    assert [each.ended_at is not None for each in world.told] == [True, True]
