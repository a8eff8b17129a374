"""The contents of a change log, written with each append: the offsets that it covers, and how new its changes are."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import Offsets

Range = tuple[str, int, int, int]  # topic, partition, first offset, end offset
_MARK = "relay.log"


@dataclass
class LogContents:
    """``offsets``: by topic and partition, ranges of offsets, each up to its end. ``newest``: by ``source/table``, the
    latest commit time, in microseconds. ``topics``: the id of each topic, which a topic that is created again does not
    keep. ``version``: the number of the append.
    """

    version: int = 0
    topics: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, dict[str, list[list[int]]]] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str | None) -> Self | None:
        """Return the contents that ``to_json`` has written, or None for other text."""
        try:
            return cls(**json.loads(text or "null")[_MARK])
        except (TypeError, ValueError, KeyError):
            return None

    def to_json(self) -> str:
        return json.dumps({_MARK: vars(self)}, separators=(",", ":"))

    def keep_only(self, topics: Mapping[str, str]) -> None:
        """Forget the offsets of topics that were created again. ``topics``: the current ids of all topics."""
        for topic in created_again(self.topics, topics):
            self.offsets.pop(topic, None)
        self.topics.update(topics)

    def covered(self, begin: Offsets, end: Offsets) -> list[Range]:
        """Return which of the offsets of a batch the log has."""
        return [
            (topic, partition, max(first, start), min(last, stop))
            for topic, partition, start, stop in _ranges(begin, end)
            for first, last in self.offsets.get(topic, {}).get(str(partition), [])
            if max(first, start) < min(last, stop)
        ]

    def after(self, begin: Offsets, end: Offsets, newest: Mapping[str, int]) -> Self:
        """Return the contents after a batch is appended. ``newest``: the batch's newest times, by ``source/table``."""
        offsets = {topic: dict(partitions) for topic, partitions in self.offsets.items()}
        for topic, partition, start, stop in _ranges(begin, end):
            of_topic = offsets.setdefault(topic, {})
            of_topic[str(partition)] = _merged([*of_topic.get(str(partition), []), [start, stop]])
        latest = {name: max(time, self.newest.get(name, time)) for name, time in newest.items()}
        return type(self)(self.version + 1, dict(self.topics), offsets, {**self.newest, **latest})


def _ranges(begin: Offsets, end: Offsets) -> Iterator[Range]:
    """Yield the offsets of a batch. If it began at the end (-1), it is unknown which offset that was."""
    for topic, partitions in end.items():
        for partition, stop in partitions.items():
            # A partition that did not exist is read from its beginning, like -2.
            start = begin.get(topic, {}).get(partition, 0)
            if start != -1 and max(start, 0) < stop:
                yield topic, int(partition), max(start, 0), stop


def _merged(ranges: list[list[int]]) -> list[list[int]]:
    found: list[list[int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = [found[-1][0], max(found[-1][1], stop)]
        else:
            found.append([start, stop])
    return found
