"""Decides from histories alone whether changes were lost, doubled, reordered, torn, or served stale.

``python checker.py FOLDER`` needs Python and nothing else: neither this project nor a library. README.md in this folder
describes the histories. Prints one JSON object; exit code 0 if nothing is wrong, 4 if something is, 2 if a history
cannot be read.
"""

import json
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLOCK = 1.0
"""Seconds by which the clock of a source and that of a reader may differ: sources give the time in whole seconds."""

FIELDS = {
    "committed": {"table", "item", "version", "at"},
    "writes": {"who", "table", "first", "last", "wrote", "result"},
    "topic": {"table", "item", "partition", "offset", "event", "old", "version"},
    "gaps": {"table", "from", "to"},
    "log": {"event"},
    "copy": {"table", "read"},
    "applied": {"table", "partition", "end", "at"},
    "reads": {"who", "table", "item", "version", "invoked", "completed"},
}
"""What each line of a history has, by the name of its file."""

Name = tuple[str, str]
"""A table and an item of it, as JSON."""


class UnreadableHistoryError(Exception):
    """A line of a history is not what README.md says: file, line and reason."""


@dataclass
class Findings:
    """What is wrong, by kind, with an example for each of the first; and how much was looked at."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    looked_at: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= 5:
            self.examples.append(f"{kind}: {what}")

    def as_json(self) -> str:
        return json.dumps(
            {"wrong": dict(self.counts), "examples": self.examples, "looked_at": dict(sorted(self.looked_at.items()))}
        )


@dataclass
class Item:
    """``versions``: after each committed change, None where it deleted the item. ``at``: when each was committed."""

    versions: list[int | None] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    # Number of a change by what it was and became: versions are given out once.
    numbers: dict[tuple[int | None, int | None], int] = field(default_factory=dict)
    # Numbers of the changes on the topic, in its order, and where each is.
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    partitions: set[int] = field(default_factory=set)

    def take(self, version: int | None, at: float) -> None:
        before = self.versions[-1] if self.versions else None
        self.numbers[before, version] = len(self.versions)
        self.versions.append(version)
        self.at.append(at)

    def state(self, number: int) -> int | None:
        """Return the version after so many changes."""
        return self.versions[number - 1] if number else None


class Checker:
    """Reads the histories in ``folder``. What was not recorded is not checked, and not counted as looked at."""

    def __init__(self, folder: Path) -> None:
        self.found = Findings()
        self._folder = folder
        self._items: dict[Name, Item] = defaultdict(Item)
        self._events: set[str] = set()

    def check(self) -> Findings:
        self._read_committed()
        self._check_topic()
        self._check_lost()
        self._check_torn()
        self._check_log()
        self._check_copy()
        self._check_cache()
        return self.found

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self._folder / f"{name}.jsonl"
        if not path.exists():
            return
        with path.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                try:
                    line = json.loads(text)
                except ValueError as error:
                    raise UnreadableHistoryError(f"{path}, line {number} is not JSON: {error}") from error
                if lacks := FIELDS[name] - (line.keys() if isinstance(line, dict) else set()):
                    raise UnreadableHistoryError(f"{path}, line {number} lacks {', '.join(sorted(lacks))}")
                self.found.looked_at[name] += 1
                yield line

    def _read_committed(self) -> None:
        for line in self._lines("committed"):
            self._items[_name(line)].take(line["version"], line["at"])

    # ------------------------------------------------------------------ topic

    def _check_topic(self) -> None:
        last: dict[Name, int] = {}
        offsets: dict[tuple[str, int], int] = {}
        for line in self._lines("topic"):
            name, where = _name(line), (line["partition"], line["offset"])
            if line["offset"] <= offsets.get((line["table"], line["partition"]), -1):
                raise UnreadableHistoryError(f"topic.jsonl: {line} comes after a later offset of its partition")
            offsets[line["table"], line["partition"]] = line["offset"]
            item = self._items[name]
            number = item.numbers.get((line["old"], line["version"]))
            if line["event"] in self._events:
                self.found.add("doubled", f"event {line['event']} of {name} at {where} was there before")
            elif number is None:
                change = f"from {line['old']} to {line['version']}"
                self.found.add("invented", f"{name} at {where}: nobody committed a change {change}")
            elif number in item.told:
                self.found.add("doubled", f"change {number} of {name} at {where} is at {item.told[number]} too")
            else:
                if number < last.get(name, -1):
                    self.found.add(
                        "disordered", f"change {number} of {name} at {where} comes after change {last[name]}"
                    )
                last[name] = max(number, last.get(name, -1))
                item.told[number] = where
            self._events.add(line["event"])
            item.partitions.add(line["partition"])
        for name, item in self._items.items():
            if len(item.partitions) > 1:
                self.found.add("disordered", f"{name} is in the partitions {sorted(item.partitions)}")

    def _check_lost(self) -> None:
        """Each committed change is on the topic, or a gap says that it is not; and each gap lacks something."""
        gaps = [(line["table"], line["from"], line["to"]) for line in self._lines("gaps")]
        used: set[int] = set()
        for name, item in self._items.items():
            for number, at in enumerate(item.at):
                if number in item.told:
                    continue
                said = [
                    gap
                    for gap, (table, begin, end) in enumerate(gaps)
                    if table == name[0] and begin - CLOCK <= at <= end + CLOCK
                ]
                used.update(said)
                if said:
                    self.found.looked_at["lost, and a gap says so"] += 1
                else:
                    self.found.add("lost", f"change {number} of {name}, to version {item.versions[number]}")
        for gap in set(range(len(gaps))) - used:
            self.found.add("false gap", f"{gaps[gap]}: the topic has every change of that time")

    def _check_torn(self) -> None:
        """Of each transaction the topic has all changes or none. Deletes have no version, so they are not looked at."""
        where: dict[tuple[str, int], tuple[Name, int]] = {
            (name[0], version): (name, number)
            for name, item in self._items.items()
            for number, version in enumerate(item.versions)
            if version is not None
        }
        for line in self._lines("writes"):
            changes = [where.get((line["table"], version)) for version in range(line["first"], line["last"] + 1)]
            there = [number in self._items[name].told for name, number in filter(None, changes)]
            if line["result"] == "ok" and not there and line["wrote"]:
                self.found.add("forgotten", f"{line['who']} was told that {line} is committed, and the source lacks it")
            if any(there) and not all(there):
                self.found.add("torn", f"{line}: the topic has {sum(there)} of {len(there)} changes")

    # ------------------------------------------------------------------ log and copy

    def _check_log(self) -> None:
        if not (self._folder / "log.jsonl").exists():
            return
        left = set(self._events)
        for line in self._lines("log"):
            if line["event"] in left:
                left.remove(line["event"])
            else:
                self.found.add("wrong in the log", f"event {line['event']} is there twice, or never was on the topic")
        for event in left:
            self.found.add("missing in the log", f"event {event}")

    def _check_copy(self) -> None:
        """Each read of the copy shows versions that were committed, none older than one seen before; the last is right.

        A read is all lines of one number, in ascending order.
        """
        tables: dict[str, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        for line in self._lines("copy"):
            rows = tables[line["table"]][line["read"]]
            if "item" not in line:  # there is such a line for each read, so that an empty copy is one, too
                continue
            name = _name(line)
            if name[1] in rows:
                self.found.add("diverged", f"the copy has {name} twice")
            rows[name[1]] = line["version"]
        for table, reads in tables.items():
            seen: dict[str, int] = defaultdict(int)  # the least number of changes that a read has shown
            for read in sorted(reads):
                self._compare(table, read, reads[read], seen, is_last=read == max(reads))

    def _compare(self, table: str, read: int, rows: dict[str, int], seen: dict[str, int], *, is_last: bool) -> None:
        for (of_table, key), item in self._items.items():
            if of_table != table:
                continue
            version = rows.get(key)
            if is_last:
                if version != item.state(len(item.versions)):
                    final = item.state(len(item.versions))
                    self.found.add("diverged", f"the copy has {key} of {table} at {version}, the source at {final}")
                continue
            states = [number for number in range(len(item.versions) + 1) if item.state(number) == version]
            if not states:
                self.found.add(
                    "diverged", f"read {read} of the copy has {key} of {table} at {version}: never committed"
                )
            elif states[-1] < seen[key]:
                self.found.add(
                    "went back", f"read {read} of the copy has {key} of {table} at {version}, older than before"
                )
            else:
                seen[key] = next(number for number in states if number >= seen[key])
        for key in rows.keys() - {key for of_table, key in self._items if of_table == table}:
            self.found.add("diverged", f"the copy has {key} of {table}, which was never written")

    # ------------------------------------------------------------------ cache

    def _check_cache(self) -> None:
        """No read returns what is older than a change that the cache had applied before the read began."""
        ends: dict[tuple[str, int], list[int]] = defaultdict(list)
        times: dict[tuple[str, int], list[float]] = defaultdict(list)
        for line in self._lines("applied"):
            where = line["table"], line["partition"]
            if line["end"] > (ends[where] or [0])[-1]:  # what is applied again was applied before
                ends[where].append(line["end"])
                times[where].append(line["at"])
        applied = {name: self._applied(name[0], item, ends, times) for name, item in self._items.items()}
        for line in self._lines("reads"):
            name = _name(line)
            item = self._items.get(name, Item())
            oldest = bisect_left(applied.get(name, []), line["invoked"])
            newest = bisect_right(_rising(item.at), line["completed"] + CLOCK)
            states = range(oldest, max(oldest, newest) + 1)
            if all(item.state(state) != line["version"] for state in states):
                self.found.add("stale", f"{line}: change {oldest} of {len(item.versions)} had been applied before")

    @staticmethod
    def _applied(
        table: str, item: Item, ends: dict[tuple[str, int], list[int]], times: dict[tuple[str, int], list[float]]
    ) -> list[float]:
        """Return when each change had been applied; a change is not applied before those that precede it."""
        found = []
        for number in range(len(item.versions)):
            at = float("inf")
            if number in item.told:
                partition, offset = item.told[number]
                batch = bisect_right(ends[table, partition], offset)
                at = times[table, partition][batch] if batch < len(times[table, partition]) else at
            found.append(at)
        return _rising(found)


def _rising(times: list[float]) -> list[float]:
    """Return each time, or the latest before it."""
    found: list[float] = []
    for at in times:
        found.append(max(at, found[-1]) if found else at)
    return found


def _name(line: dict[str, Any]) -> Name:
    return line["table"], json.dumps(line["item"])


def main(folder: Path) -> int:
    """Check, print what was found, and return the exit code."""
    if not (folder / "committed.jsonl").exists():
        print(f"{folder} has no committed.jsonl: see README.md beside {Path(__file__).name}", file=sys.stderr)
        return 2
    try:
        found = Checker(folder).check()
    except UnreadableHistoryError as error:
        print(error, file=sys.stderr)
        return 2
    print(found.as_json())
    return 4 if found.counts else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
