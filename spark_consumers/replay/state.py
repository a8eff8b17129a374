"""The progress of a replay, in one local file that is written after each batch, and its next batch. Without Spark."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from relay.errors import ConfigError
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import Offsets, count_between, up_to
from spark_consumers.applied_notes import holes
from spark_consumers.locations import LocalFolder

_FILE = "replay.json"


@dataclass
class ReplayState:
    """A replay's state. ``asked``: what decides its content. ``topics``: topic ids. ``reached``: offsets written."""

    asked: dict[str, str]
    topics: dict[str, str]
    start: Offsets
    end: Offsets
    reached: Offsets

    @property
    def total(self) -> int:
        return count_between(self.start, self.end)

    @property
    def done(self) -> int:
        return count_between(self.start, self.reached)

    @property
    def is_complete(self) -> bool:
        return self.reached == self.end

    def next_end(self, at_most: int, first: str) -> Offsets:
        """Return the end of the next batch, of ``at_most`` offsets; each partition gets its share of the rest.

        The topic ``first`` comes before the others: with gaps before them, a later snapshot shows as their repair.
        """
        left = {(hole.topic, hole.partition): hole.end - hole.begin for hole in holes(self.reached, self.end)}
        left = {where: count for where, count in left.items() if where[0] == first} or left
        total = sum(left.values())
        after = {topic: dict(partitions) for topic, partitions in self.reached.items()}
        for (topic, partition), count in left.items():
            after[topic][partition] += count if total <= at_most else max(1, count * at_most // total)
        return after


class StateFile:
    """The state of the replay of ``kind`` ``into`` a target, in a separate folder below ``base``."""

    def __init__(self, base: str, kind: str, into: str) -> None:
        digest = hashlib.sha256(into.encode()).hexdigest()[:12]
        self.path = Path(base) / f"replay-{kind}-{digest}"
        self._folder = LocalFolder(self.path)

    def read(self) -> ReplayState | None:
        text = self._folder.read(_FILE)
        return None if text is None else ReplayState(**json.loads(text))

    def write(self, state: ReplayState) -> None:
        self._folder.write(_FILE, json.dumps(asdict(state)))

    def remove(self) -> None:
        (self.path / _FILE).unlink(missing_ok=True)


def refuse_another(state: ReplayState, asked: Mapping[str, str], topics: Mapping[str, str], path: Path) -> None:
    for option, value in asked.items():
        if state.asked.get(option) != value:
            raise ConfigError(
                f"the replay into this target began with {option} {state.asked.get(option)}, not {value}: use the "
                f"same value; or, to start over, remove the target and {path}"
            )
    for topic in created_again(state.topics, topics):
        raise ConfigError(
            f"topic {topic} was created again since the replay began: remove the target and {path} to start over"
        )


def refuse_lost(state: ReplayState, first: Offsets, path: Path) -> None:
    """Raise ``ConfigError`` if a replay cannot read what it has left. ``first``: the oldest offsets of the topics."""
    for topic in sorted(state.end.keys() - first.keys()):
        raise ConfigError(
            f"topic {topic} is no longer in the config, but the replay into this target began with it: add its table "
            f"again; or, to start over, remove the target and {path}"
        )
    for lost in holes(state.reached, up_to(state.end, first)):
        oldest = first[lost.topic][lost.partition]
        raise ConfigError(
            f"{lost.topic}[{lost.partition}]: Kafka has removed the records from offset {lost.begin} to {oldest} since "
            "the replay began: give the topic a longer retention, remove the target, and start over"
        )


def refuse_emptied(state: ReplayState, applied: Offsets, target: str, path: Path) -> None:
    """Raise ``ConfigError`` if a target has lost what was written. ``applied``: the offsets that it has, by its note.

    The note is written before the state, so a crash does not look like that.
    """
    reached = {topic: state.reached[topic] for topic in applied.keys() & state.reached.keys()}
    if state.done and (lost := holes(applied, reached)):  # I1
        raise ConfigError(
            f"{target} lacks {lost[0]}, which the replay has written there: remove it and {path} to start over"
        )
