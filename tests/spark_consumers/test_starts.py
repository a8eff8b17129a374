"""Where the consumers begin: what their checkpoint, the topics and the target say, and what follows from that."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

import pytest

from relay.change import Operation
from relay.errors import ConfigError, RelayError
from relay.kafka.group_offsets import Offsets
from relay.services.postgres import execute
from spark_consumers.applied_notes import AppliedNotes, Start
from spark_consumers.gaps import Hole, LostChanges
from tests.log_lines import log_lines
from tests.spark_consumers import delta_rows
from tests.spark_consumers.noted_gaps import noted_gaps
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change, mark, read

NOTHING: list[Hole] = []


@pytest.fixture
def topic(tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark_process: SparkProcess) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process, partitions=1)


def at(offset: int) -> Offsets:
    return {"orders": {"0": offset}}


def test_a_target_has_what_the_last_of_the_sources_of_a_topic_has() -> None:
    """I1: the tables of one source may be lost or restored alone; a source that joins has lost nothing."""
    stored: dict[str, str] = {}
    lost: dict[str, str] = {}

    def change_note(session: Any, room: str, rule: Callable[[str], str]) -> str:
        stored[room] = rule(stored.get(room, ""))
        return stored[room]

    def notes(*rooms: str) -> AppliedNotes:
        return AppliedNotes(
            {room: ["orders"] for room in rooms}, dict, change_note, lambda _, room, tables: lost if room == "b" else {}
        )

    session = cast(Any, None)
    alone = notes("a")
    assert alone.applied(session) == {"orders": {}}
    alone.advance(session, at(100))
    both = notes("a", "b")
    assert both.applied(session) == at(100)
    both.advance(session, at(200))
    of_b = stored["b"]
    both.advance(session, at(300))
    assert notes("a", "b").applied(session) == at(300)
    lost["lines"] = "orders"
    assert notes("a", "b").applied(session) == at(0)
    lost.clear()
    stored["b"] = of_b
    assert notes("a", "b").applied(session) == at(200)
    del stored["b"]
    assert notes("a", "b").applied(session) == at(0)
    assert notes("a").applied(session) == at(300)


def hole(begin: int, end: int) -> list[Hole]:
    return [Hole("orders", "0", begin, end)]


def start(checkpoint: int, beginning: int, *, is_new: bool) -> Start:
    return Start(at(checkpoint), at(max(checkpoint, beginning)), at(20), {}, "/c", is_new)


@pytest.mark.parametrize(
    ("is_new", "checkpoint", "beginning", "applied", "outcome"),
    [
        (True, 0, 0, {}, NOTHING),  # the first start
        (True, 0, 0, at(9), NOTHING),  # everything again, into a target that has it
        (True, 9, 0, at(9), NOTHING),  # --from committed
        (True, 0, 5, at(9), NOTHING),  # what was removed is in the target
        (True, 0, 5, {}, hole(0, 5)),
        (True, 0, 9, at(5), hole(5, 9)),
        (True, 9, 0, at(5), hole(5, 9)),  # --from latest
        (False, 9, 0, at(9), NOTHING),
        (False, 9, 9, at(9), NOTHING),
        (False, 9, 0, at(12), NOTHING),  # a crash before Spark has written that the batch is applied
        (False, 9, 12, at(12), NOTHING),  # and the batch was removed meanwhile
        (False, 9, 12, at(9), "orders[0] from offset 9 to 12 was removed from Kafka before the copy applied it"),
        (
            False,
            9,
            0,
            {},
            "the copy lacks orders[0] from offset 0 to 9, but the checkpoint /c is already past those offsets",
        ),
        (
            False,
            9,
            0,
            at(5),
            "the copy lacks orders[0] from offset 5 to 9, but the checkpoint /c is already past those offsets",
        ),
        (False, 9, 12, {}, "orders[0] from offset 9 to 12 was removed from Kafka before the copy applied it"),
    ],
)
def test_each_state_of_checkpoint_topic_and_target_has_its_outcome(
    is_new: bool, checkpoint: int, beginning: int, applied: Offsets, outcome: list[Hole] | str
) -> None:
    """I1, I9: a checkpoint that cannot go on says what to do, and a new one says what the target lacks."""
    begun = start(checkpoint, beginning, is_new=is_new)
    if isinstance(outcome, list):
        assert begun.lacking("copy", applied) == outcome
        return
    with pytest.raises(ConfigError) as refused:
        begun.lacking("copy", applied)
    assert str(refused.value).startswith(outcome)
    assert "name another folder with --checkpoint" in str(refused.value)


def test_a_target_that_is_not_known_lacks_what_was_removed() -> None:
    """I1: and a new checkpoint begins where the topics begin."""
    assert start(9, 5, is_new=False).lacking("mine", None) == NOTHING
    assert start(0, 5, is_new=True).lacking("mine", None) == NOTHING
    with pytest.raises(ConfigError, match=r"offset 9 to 12 was removed from Kafka before mine received it"):
        start(9, 12, is_new=False).lacking("mine", None)


class Notes:
    """The notes of a target, as it keeps them. ``deleted``: its tables that are not there."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.ids = {"orders": "a", "lines": "b"}
        self.deleted: set[str] = set()

    def open(self) -> AppliedNotes:
        return AppliedNotes({"shop": ["orders"], "more": ["lines"]}, lambda: self.ids, self.change, self.lost)

    def lost(self, session: Any, room: str, tables: Collection[str]) -> dict[str, str]:
        return {table: table for table in tables if table in self.deleted}

    def change(self, session: Any, room: str, rule: Any) -> str:
        self.texts[room] = rule(self.texts.get(room, ""))
        return self.texts[room]


def test_a_table_that_left_the_config_and_comes_back_is_as_far_as_it_was_read() -> None:
    """I12: its topic is read as long as the checkpoint has offsets of it."""
    target, none = Notes(), cast(Any, None)
    target.open().advance(none, {"orders": {"0": 5}, "lines": {"0": 3}})
    without = AppliedNotes({"shop": [], "more": ["lines"]}, lambda: target.ids, target.change)
    without.applied(none)
    without.advance(none, {"orders": {"0": 9}, "lines": {"0": 4}})
    assert target.open().applied(none) == {"orders": {"0": 9}, "lines": {"0": 4}}


def test_a_table_that_was_deleted_has_nothing_until_it_is_filled_or_its_gap_is_noted() -> None:
    """I1: the note is of all tables of a source. A table that no change comes for may stay away then."""
    target, none = Notes(), cast(Any, None)
    notes = target.open()
    notes.add_tables([("shop", "orders")])
    notes.advance(none, {"orders": {"0": 5}, "lines": {"0": 3}})
    target.deleted = {"orders", "lines"}  # no change has come of lines
    for _ in range(2):
        notes = target.open()
        assert notes.applied(none) == {"orders": {}, "lines": {"0": 3}}
    notes.advance(none, {"orders": {"0": 2}})
    notes.advance(none, {"orders": {"0": 3}})
    assert target.open().applied(none) == {"orders": {"0": 3}, "lines": {"0": 3}}


def test_a_table_that_had_no_change_since_the_start_is_missed_all_the_same() -> None:
    """I1: when it is deleted."""
    target, none = Notes(), cast(Any, None)
    notes = target.open()
    notes.add_tables([("shop", "orders")])
    notes.advance(none, at(5))
    notes = target.open()
    notes.applied(none)
    notes.advance(none, at(9))  # by changes of other tables, or none
    assert target.open().applied(none)["orders"] == {"0": 9}
    target.deleted = {"orders"}
    assert target.open().applied(none)["orders"] == {}


def test_a_note_that_is_gone_while_a_consumer_runs_ends_it() -> None:
    """I1: or the tables that were made anew would be taken for complete."""
    target, none = Notes(), cast(Any, None)
    notes = target.open()
    notes.applied(none)
    notes.advance(none, at(5))
    del target.texts["shop"]
    with pytest.raises(RelayError, match="the tables of source shop contain is missing: the tables were deleted"):
        notes.advance(none, at(9))
    target.texts["shop"] = "not JSON"
    with pytest.raises(RelayError, match="the tables of source shop contain cannot be read"):
        target.open().applied(none)


def test_a_target_knows_how_far_it_is_and_not_of_topics_that_were_created_again() -> None:
    """I1, I7: two drivers do not set each other back."""
    target = Notes()
    none: Any = None
    assert target.open().applied(none) == {"orders": {}, "lines": {}}
    target.open().advance(none, {"orders": {"0": 7}, "lines": {"0": 3}, "shop.gaps": {"0": 1}})
    target.open().advance(none, {"orders": {"0": 5, "1": 2}})
    assert target.open().applied(none) == {"orders": {"0": 7, "1": 2}, "lines": {"0": 3}}
    del target.texts["more"]  # as by DROP SCHEMA
    assert target.open().applied(none) == {"orders": {"0": 7, "1": 2}, "lines": {}}
    target.ids = {"orders": "c", "lines": "b"}
    assert target.open().applied(none) == {"orders": {}, "lines": {}}
    target.open().advance(none, {"orders": {"0": 1}})
    assert target.open().applied(none) == {"orders": {"0": 1}, "lines": {}}


def test_a_target_remembers_gaps_for_the_tables_that_are_yet_to_come() -> None:
    """I9"""
    target = Notes()
    none: Any = None
    missed = LostChanges("m", "shop", "missed", 5.0, "{}", "orders")
    unreadable = LostChanges("u", None, "unreadable", 0.0, "")
    target.open().add_gaps(none, [missed, unreadable])
    target.open().advance(none, {"orders": {"0": 8}})
    target.open().add_gaps(none, [missed])
    assert target.open().gaps(none, "shop") == [missed, unreadable]
    assert target.open().gaps(none, "more") == [unreadable]
    assert target.open().gaps(none, "elsewhere") == []
    assert target.open().applied(none) == {"orders": {"0": 8}, "lines": {}}


@pytest.mark.services
def test_a_log_and_a_copy_behind_what_retention_removed_say_so_and_a_new_checkpoint_notes_the_gap(
    topic: Topic, database_url: str
) -> None:
    """I1, I9: the way out of one that cannot go on is a new checkpoint, which passes over what is lost."""
    topic.set_copy_url(database_url)
    topic.publish([change(name, version) for name in ("gone", "stays") for version in (1, 2)])
    topic.consume("log copy", checkpoint="one")
    topic.publish([change("gone", 3, Operation.DELETE)])
    topic.remove_all()
    topic.publish([change("stays", 4)])
    for kind in ("log", "copy"):
        topic.refuse(kind, checkpoint=f"one/{kind}")
        assert f"{topic.name}[0] from offset 4 to 5 was removed from Kafka before the {kind}" in topic.log.read_text()
    topic.consume("log copy", checkpoint="two")
    assert [line["table"] for line in log_lines(topic.log, "gap")] == ["orders", "orders"]
    missed = f"the consumer began behind changes that it had not applied: {topic.name}[0] from offset 4 to 5"
    assert noted_gaps(topic.path, "orders", "orders") == [missed]
    assert delta_rows.rows(topic.folder / "log_gaps", ["reason"]) == [(missed,)]


@pytest.mark.services
def test_a_log_and_a_copy_behind_what_retention_removed_say_so_even_if_the_table_has_left_the_config(
    topic: Topic,
) -> None:
    """I1: its changes were still to be read."""
    lines = [change("c0", version) for version in (1, 2)]
    for line in lines:
        line.source = line.table = "lines"
    topic.publish(lines[:1])
    topic.consume("log copy", checkpoint="one")
    topic.publish(lines[1:])
    topic.leave_out("lines")
    topic.remove_all("lines")
    for kind in ("log", "copy"):
        topic.refuse(kind, checkpoint=f"one/{kind}")
        assert f"was removed from Kafka before the {kind}" in topic.log.read_text()


@pytest.mark.services
def test_a_copy_that_begins_behind_removed_records_notes_a_gap_of_that_table_alone(
    topic: Topic, database_url: str
) -> None:
    """I9, I12: until a snapshot has read the table."""
    topic.set_copy_url(database_url)
    line = change("c0", 1)
    line.source = line.table = "lines"
    topic.publish([change("c0", 1)])
    topic.remove_all()
    topic.publish([change("c0", 2), line])
    topic.consume("copy", checkpoint="one")
    missed = f"the consumer began behind changes that it had not applied: {topic.name}[0] from offset 0 to 1"
    assert (noted_gaps(topic.path, "orders", "orders"), noted_gaps(topic.path, "lines", "lines")) == ([missed], [])
    as_of = 2_000_000_000
    topic.publish([mark("begin", as_of), read("c0", 2, as_of), mark("end", as_of)])
    topic.consume("copy", checkpoint="one")
    assert (noted_gaps(topic.path, "orders", "orders"), noted_gaps(topic.path, "lines", "lines")) == ([], [])


@pytest.mark.services
@pytest.mark.parametrize(
    "target",
    [
        pytest.param("delta", marks=pytest.mark.faults("one rule for both: [postgres], and each state above")),
        "postgres",
    ],
)
@pytest.mark.parametrize("is_table", [False, True])
def test_tables_that_were_deleted_are_noticed_and_filled_again_by_a_new_checkpoint(
    topic: Topic, target: str, is_table: bool, request: pytest.FixtureRequest
) -> None:
    """I1: a consumer that went on would leave a fraction of the rows, and say that all is well.

    Also if it is one table, and the note of its source is still there.
    """
    if target == "postgres":
        topic.set_copy_url(url := request.getfixturevalue("database_url"))
    line = change("a", 1)
    line.source = line.table = "lines"
    line.event_id = "line"
    topic.publish([line, *(change(name, 1) for name in ("a", "b"))])
    topic.consume("log copy", checkpoint="one")
    shutil.rmtree(topic.folder / "log")
    if target == "postgres":
        execute(url, "DROP TABLE orders._relay_rows_orders CASCADE" if is_table else "DROP SCHEMA orders CASCADE")
    else:
        shutil.rmtree(topic.folder / ("copy/orders/orders" if is_table else "copy"))
    topic.publish([change("c", 1)])
    for kind in ("log", "copy"):
        topic.refuse(kind, checkpoint=f"one/{kind}")
        assert re.search(rf"the {kind} lacks \S+\[0\] from offset 0 to \d, but the checkpoint", topic.log.read_text())
    found = topic.apply(("log", "two/log"), ("copy", "two/copy"))
    assert (found["copy"], len(found["log"])) == ({"a": 1, "b": 1, "c": 1}, 4)
