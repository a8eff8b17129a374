"""A target's notes about itself, beside its tables, so that they are lost with them: the offsets that these include.

There is one note for each room, which is a source of a copy, or the whole log. Compared at each start.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from relay.cache.continuity import AppliedChanges
from relay.errors import ConfigError, RelayError
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import Offsets
from spark_consumers.gaps import Hole, LostChanges, fewest, from_json, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ChangeNote = Callable[["SparkSession", str, Callable[[str], str]], str]
"""Replaces a room's note, "" if there is none, with the result of a function, and returns that."""


@dataclass(frozen=True, slots=True)
class Start:
    """The state in which a consumer is about to begin.

    ``resume``: the offsets of its checkpoint at ``location``, which has applied nothing yet if it ``is_new``.
    ``first``: the same, or the first offsets that Kafka still has. ``ends``, ``ids``: the topics'. ``refusal``: what
    to say if the offsets turn out to be another cache's.
    """

    resume: Offsets
    first: Offsets
    ends: Offsets
    ids: Mapping[str, str]
    location: str
    is_new: bool
    refusal: str | None = None

    @property
    def removed(self) -> list[Hole]:
        """The offsets that Kafka removed before they were applied."""
        return holes(self.resume, self.first)

    def lacking(self, name: str, applied: Offsets | None) -> list[Hole]:
        """Return what the target of ``name`` will always lack, to be noted as gaps before anything is applied (I9).

        ``applied``: the offsets up to which it has everything, or None if unknown. Raises ``ConfigError`` if the
        checkpoint cannot be continued.
        """
        if applied is None:
            if self.removed and not self.is_new:  # I1
                raise ConfigError(
                    f"{self.removed[0]} was removed from Kafka before {name} received it, so the checkpoint "
                    f"{self.location} cannot be continued: start with a new checkpoint, which skips these changes; and "
                    "give the topic a longer retention"
                )
            return []
        if self.is_new:
            return holes(applied, self.first)  # I9
        way_out = (
            "name another folder with --checkpoint, which starts at the beginning of the topics "
            f"and records whatever the {name} lacks as a gap"
        )
        if self.removed and holes(applied, self.first):  # I1
            raise ConfigError(
                f"{self.removed[0]} was removed from Kafka before the {name} applied it, so the checkpoint "
                f"{self.location} cannot be continued: {way_out}; and give the topic a longer retention"
            )
        if lost := holes(applied, self.resume):  # I1
            raise ConfigError(
                f"the {name} lacks {lost[0]}, but the checkpoint {self.location} is already past those offsets: its "
                f"tables were deleted, restored to an earlier state, or moved. Restore them; or {way_out}; or rebuild "
                f"them with `relay replay {name}`"
            )
        return []


def holes(begin: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> list[Hole]:
    """Return the offsets between two positions of each partition that has an ``end``. A missing beginning is 0."""
    return [
        Hole(topic, partition, first, stop)
        for topic, partitions in end.items()
        for partition, stop in partitions.items()
        if (first := max(0, begin.get(topic, {}).get(partition, 0))) < stop
    ]


@dataclass(eq=False, repr=False)
class AppliedNotes:
    """The notes of one target. ``_rooms``: the topics of each. ``_ids``: returns the topics' ids.

    ``_change``: reads and changes a note. ``_find_lost``: returns which of the tables of a room are missing, with their
    topics. A topic whose table has left the config stays in the note as long as it is read. A source that has left the
    config completely has no room.
    """

    _rooms: Mapping[str, Collection[str]]
    _ids: Callable[[], Mapping[str, str]]
    _change: ChangeNote
    _find_lost: Callable[[SparkSession, str, Collection[str]], Mapping[str, str]] = lambda *_: {}

    def __post_init__(self) -> None:
        # The tables that have changes, and those in the note that the target lacks, with their topics.
        self._tables: defaultdict[str, set[str]] = defaultdict(set)
        self._lost: dict[str, Mapping[str, str]] = {}
        # The known content of each room's note, and topics in it that no longer belong to the room.
        self._last: dict[str, Mapping[str, Mapping[str, int]]] = {}
        self._left: dict[str, Collection[str]] = {}
        # The gaps of tables set aside, until they are repaired, by room. Other threads read it: each change is one
        # assignment.
        self._open: Mapping[str, Sequence[LostChanges]] = {}

    def set_aside(self) -> dict[tuple[str, str], LostChanges]:
        """Return the tables that are set aside, by source and name, each with its gap up to now."""
        return {name: gap for name, gap in self.incomplete().items() if not gap.taken_back}

    def incomplete(self) -> dict[tuple[str, str], LostChanges]:
        """Return the tables that are set aside, and those that take changes again but still need a snapshot."""
        return {(str(gap.source), str(gap.table)): gap for gaps in self._open.values() for gap in gaps}

    def applied(self, session: SparkSession) -> Offsets:
        """Return the offsets up to which the target has everything, for all topics that have a room."""
        reached: dict[str, list[Mapping[str, int]]] = {topic: [] for topics in self._rooms.values() for topic in topics}
        known, without = set[str](), list[str]()
        for room, topics in self._rooms.items():
            text, self._lost[room] = self._change(session, room, str), {}
            noted = self._read(room, text)
            self._lost[room] = self._find_lost(session, room, noted[2])  # I1
            offsets = self._read(room, text)[0].offsets
            self._last[room], self._left[room] = offsets, offsets.keys() - set(topics)
            known.update(_rooms_in(text))
            without += [] if text else [room]
            for topic in noted[0].offsets.keys() & set(topics):
                reached[topic].append(offsets.get(topic, {}))
        for room in known.intersection(without):  # I1: its note is lost with its tables
            for topic in self._rooms[room]:
                reached[topic].append({})
        # Rooms that share a topic may have been lost or restored separately.
        return {
            topic: {number: min(each.get(number, 0) for each in of) for number in {n for each in of for n in each}}
            for topic, of in reached.items()
        }

    def gaps(self, session: SparkSession, room: str) -> list[LostChanges]:
        return self._read(room, self._change(session, room, str))[1] if room in self._rooms else []

    def add_gaps(self, session: SparkSession, gaps: Sequence[LostChanges]) -> None:
        """Note gaps, each once."""
        for room in self._rooms:
            if of_room := [gap for gap in gaps if gap.source in (room, None)]:
                self._change(session, room, partial(self._advanced, room, {}, of_room))

    def advance(self, session: SparkSession, ends: Offsets) -> None:
        """Note that everything before ``ends`` is applied, or lost in gaps. Raises ``RelayError`` if a note is lost."""
        for room, topics in self._rooms.items():
            reached = {topic: ends[topic] for topic in (*topics, *self._left.get(room, ())) if topic in ends}
            if holes(self._last.get(room, {}), reached):
                self._change(session, room, partial(self._advanced, room, reached, ()))
                self._last[room] = {**self._last.get(room, {}), **reached}
                self._lost[room] = {}

    def add_tables(self, names: Iterable[tuple[str, str]]) -> None:
        """Note tables, by source, together with the next offsets."""
        for room, table in names:
            self._tables[room].add(table)

    def _advanced(self, room: str, reached: Offsets, gaps: Sequence[LostChanges], text: str) -> str:
        applied, noted, tables = self._read(room, text)
        if holes(applied.offsets, self._last.get(room, {})):  # I1
            raise RelayError(
                f"{_note_of(room)} is missing: the tables were deleted while the consumer was running. Restore them, "
                "or name another folder with --checkpoint"
            )
        # I9: tables may share a topic
        listed = fewest({(gap.id, gap.table): gap for gap in (*noted, *gaps)}.values())
        self._know_open(room, listed)
        reached_json = applied.advanced(reached).to_json().decode()
        aside = {gap.table for gap in self._open[room] if not gap.taken_back}
        there = sorted(self._tables[room].union(tables) - aside)
        topics = set(self._rooms.get(room, ()))
        # Only rooms that have a note, too: it is missing if it is not there at the next start.
        beside = sorted(each for each in self._rooms if each != room and topics.intersection(self._last.get(each, ())))
        note = {"applied": reached_json, "gaps": to_json(listed), "tables": there}
        return json.dumps({**note, "beside": beside} if beside else note)

    def _read(self, room: str, text: str) -> tuple[AppliedChanges, list[LostChanges], list[str]]:
        """Return the offsets, gaps and tables in a note, without topics that were created again and lost tables."""
        ids = self._ids()
        try:
            found = json.loads(text or "{}")
            applied = AppliedChanges.read(found.get("applied", "").encode()) or AppliedChanges("", {}, {})
            gaps, lost = from_json(found.get("gaps", "")), self._lost.get(room, {})
            tables = [table for table in found.get("tables", ()) if table not in lost]
        except (ValueError, TypeError, AttributeError) as error:
            raise RelayError(
                f"{_note_of(room)} cannot be read: {error}: go back to the version of the program that wrote it, or "
                "remove it and name another folder with --checkpoint"
            ) from error
        self._know_open(room, gaps)
        without = {*created_again(applied.ids, ids), *lost.values()}
        kept = {topic: offsets for topic, offsets in applied.offsets.items() if topic not in without}
        return replace(applied, ids={**applied.ids, **ids}, offsets=kept), gaps, tables

    def _know_open(self, room: str, gaps: Iterable[LostChanges]) -> None:
        self._open = {**self._open, room: [gap for gap in gaps if gap.open_since]}


def _rooms_in(text: str) -> Sequence[str]:
    """Return the rooms that shared a topic with that of a note, and had notes of their own then."""
    found: Sequence[str] = json.loads(text or "{}").get("beside", ())
    return found


def _note_of(room: str) -> str:
    return f"the record of what the tables{room and f' of source {room}'} contain"


NOT_KNOWN = AppliedNotes({}, dict, lambda *_: "")  # the notes of a target that is unknown here
