"""What a target of tables says of itself: up to which offsets it has everything. This is compared at each start.

The note is kept beside the tables, by room: a source of a copy, or all of the log. So it goes where they go, and is
lost with them, unlike a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from relay.cache.continuity import AppliedChanges
from relay.errors import ConfigError, RelayError
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import Offsets
from spark_consumers.gaps import Hole, LostChanges, from_json, to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ChangeNote = Callable[["SparkSession", str, Callable[[str], str]], str]
"""Replaces the note of a room, "" if there is none, with what a function makes of it, and returns that."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a consumer is about to begin.

    ``resume``: the offsets of its checkpoint at ``location``, which has applied nothing yet if it ``is_new``.
    ``first``: the same, or the first offsets that Kafka still has. ``ends``, ``ids``: the topics'.
    """

    resume: Offsets
    first: Offsets
    ends: Offsets
    ids: Mapping[str, str]
    location: str
    is_new: bool

    @property
    def removed(self) -> list[Hole]:
        """What Kafka has removed before it was applied."""
        return holes(self.resume, self.first)

    def lacking(self, name: str, applied: Offsets | None) -> list[Hole]:
        """Return what the target of ``name`` lacks for good, to be noted before anything is applied (I9).

        ``applied``: the offsets up to which it has everything, or None if it is not known here. Raises ``ConfigError``
        if the checkpoint cannot be continued.
        """
        if applied is None:
            if self.removed and not self.is_new:  # I1
                raise ConfigError(
                    f"{self.removed[0]} was removed from Kafka before {name} got it, so the checkpoint {self.location} "
                    "cannot go on: begin with another one, without these changes; and give the topic a longer retention"
                )
            return []
        if self.is_new:
            return holes(applied, self.first)  # I9
        way_out = (
            f"name another folder with --checkpoint, which begins where the topics begin, and notes what the {name} "
            "lacks as a gap"
        )
        if self.removed and holes(applied, self.first):  # I1
            raise ConfigError(
                f"{self.removed[0]} was removed from Kafka before the {name} applied it, so the checkpoint "
                f"{self.location} cannot go on: {way_out}; and give the topic a longer retention"
            )
        if lost := holes(applied, self.resume):  # I1
            raise ConfigError(
                f"the {name} lacks {lost[0]}, and the checkpoint {self.location} goes on behind that: its tables were "
                f"deleted, or put back to an earlier state, or are elsewhere. Put them back; or {way_out}; or rebuild "
                f"them with `relay replay {name}`"
            )
        return []


def holes(begin: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> list[Hole]:
    """Return what is between two offsets of each partition that has an ``end``. One without a beginning begins at 0."""
    return [
        Hole(topic, partition, first, stop)
        for topic, partitions in end.items()
        for partition, stop in partitions.items()
        if (first := max(0, begin.get(topic, {}).get(partition, 0))) < stop
    ]


class AppliedNotes:
    """The notes of one target. ``rooms``: the topics of each. ``ids``: returns the topics' ids.

    ``change``: reads and changes a note. ``lost``: returns which of the tables of a room are not there, with their
    topics. A topic that has left its room, with a table that has left the config, is noted as long as it is read. A
    source that has left as a whole has no room.
    """

    def __init__(
        self,
        rooms: Mapping[str, Collection[str]],
        ids: Callable[[], Mapping[str, str]],
        change: ChangeNote,
        lost: Callable[[SparkSession, str, Collection[str]], Mapping[str, str]] = lambda *_: {},
    ) -> None:
        self._rooms = rooms
        self._ids = ids
        self._change = change
        self._find_lost = lost
        # The tables that have changes, and those that the note has and the target lacks, with their topics.
        self._tables: dict[str, set[str]] = {room: set() for room in rooms}
        self._lost: dict[str, Mapping[str, str]] = {}
        # What is known to be in the note of a room, and topics there that no longer belong to the room.
        self._last: dict[str, Mapping[str, Mapping[str, int]]] = {}
        self._left: dict[str, Collection[str]] = {}
        # The gaps of tables that were set aside, until they are repaired, by room. Other threads read it: each change
        # is one assignment.
        self._open: Mapping[str, Sequence[LostChanges]] = {}

    def set_aside(self) -> dict[tuple[str, str], LostChanges]:
        """Return the tables that are set aside, by source and name, each with the gap that it has until now."""
        return {name: gap for name, gap in self.incomplete().items() if not gap.taken_back}

    def incomplete(self) -> dict[tuple[str, str], LostChanges]:
        """Return the same, and those that take changes again and have not been read again by a snapshot."""
        return {(str(gap.source), str(gap.table)): gap for gaps in self._open.values() for gap in gaps}

    def applied(self, session: SparkSession) -> Offsets:
        """Return the offsets up to which the target has everything, for all topics that have a room."""
        found: Offsets = {topic: {} for topics in self._rooms.values() for topic in topics}
        for room, topics in self._rooms.items():
            text, self._lost[room] = self._change(session, room, str), {}
            self._lost[room] = self._find_lost(session, room, self._read(room, text)[2])  # I1
            offsets = self._read(room, text)[0].offsets
            self._last[room], self._left[room] = offsets, offsets.keys() - set(topics)
            found.update((topic, dict(offsets[topic])) for topic in topics if topic in offsets)
        return found

    def gaps(self, session: SparkSession, room: str) -> list[LostChanges]:
        """Return all gaps that were noted of a room."""
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
        """Note tables, by source, together with the offsets that come next."""
        for room, table in names:
            self._tables.setdefault(room, set()).add(table)

    def _advanced(self, room: str, reached: Offsets, gaps: Sequence[LostChanges], text: str) -> str:
        applied, noted, tables = self._read(room, text)
        if holes(applied.offsets, self._last.get(room, {})):  # I1
            raise RelayError(
                f"{_note_of(room)} is no longer there: they were deleted while the consumer ran. Put them back, or "
                "name another folder with --checkpoint"
            )
        listed = {gap.id: gap for gap in (*noted, *gaps)}.values()
        self._know_open(room, listed)
        reached_json = applied.advanced(reached).to_json().decode()
        there = self._tables.get(room, set()).union(tables) - {
            gap.table for gap in self._open[room] if not gap.taken_back
        }
        return json.dumps({"applied": reached_json, "gaps": to_json([*listed]), "tables": sorted(there)})

    def _read(self, room: str, text: str) -> tuple[AppliedChanges, list[LostChanges], list[str]]:
        """Return what a note says, without topics that were created again and lost tables: offsets, gaps, tables."""
        ids = self._ids()
        try:
            found = json.loads(text or "{}")
            applied = AppliedChanges.from_json(found.get("applied", "").encode()) or AppliedChanges("", {}, {})
            gaps, lost = from_json(found.get("gaps", "")), self._lost.get(room, {})
            tables = [table for table in found.get("tables", ()) if table not in lost]
        except (ValueError, TypeError, AttributeError) as error:
            raise RelayError(
                f"{_note_of(room)} cannot be read: {error}: put back what wrote it, or remove it and name another "
                "folder with --checkpoint"
            ) from error
        self._know_open(room, gaps)
        without = {*created_again(applied.ids, ids), *lost.values()}
        kept = {topic: offsets for topic, offsets in applied.offsets.items() if topic not in without}
        return replace(applied, ids={**applied.ids, **ids}, offsets=kept), gaps, tables

    def _know_open(self, room: str, gaps: Iterable[LostChanges]) -> None:
        self._open = {**self._open, room: [gap for gap in gaps if gap.open_since]}


def _note_of(room: str) -> str:
    return f"the note of what the tables{room and f' of source {room}'} have"


NOT_KNOWN = AppliedNotes({}, dict, lambda *_: "")
"""Those of a target that is not known here."""
