"""How the shards of a keyspace are read: settings from the config, fixed limits, and the tables of a stream."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from relay.source import STREAMED_PAGE

_INTERNAL = ("_vt_", "_vt.")  # the prefixes of the names of Vitess' internal tables
_HIDDEN = re.compile(r"_.*_old|_[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}_[0-9]{14}_(?:gho|ghc|del|new|vrepl)")


def is_hidden(table: str) -> bool:
    """Whether Vitess sends no rows of a table called like part of an online schema change (IsOnlineDDLTableName)."""
    return _HIDDEN.fullmatch(table) is not None


@dataclass(frozen=True, slots=True)
class Portion:
    """Which of the wanted tables one stream of a shard has: MoveTables takes tables to other keyspaces, and back."""

    only: tuple[str, ...] = ()  # if it is not empty, the only tables of the stream
    without: tuple[str, ...] = ()  # tables that the stream does not have
    moves: tuple[str, ...] = ()  # the ids of the moves that this includes; if empty, the stream's start says which

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """Return the portion in the JSON of a start."""
        return cls(tuple(raw.get("only", ())), tuple(raw.get("without", ())), tuple(raw.get("moves", ())))

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) for name, value in asdict(self).items() if value}

    @property
    def pattern(self) -> str:
        """The rule of a stream that matches every table but ``without``, even tables that are created later."""
        return f"/^{_other_than(self.without)}" if self.without else "/.*"

    def has(self, table: str) -> bool:
        return (not self.only or table in self.only) and table not in self.without

    def less(self, tables: Collection[str], moves: Collection[str]) -> Portion | None:
        """Return the portion after ``moves`` took ``tables`` away, or None if nothing is left."""
        if self.only:
            left = tuple(table for table in self.only if table not in tables)
            return Portion(left, moves=tuple(sorted(moves))) if left else None
        return Portion((), tuple(sorted({*self.without, *tables})), tuple(sorted(moves)))


@dataclass(frozen=True, slots=True)
class VStreamSettings:
    keyspace: str
    tables: Sequence[str] | None = None  # None means all, including tables that are created later
    tablet_type: str = "REPLICA"  # PRIMARY, REPLICA or RDONLY
    cells: str = ""  # the cells whose tablets may be read, with commas between them; "" for any
    silence: float = 30.0  # seconds without an expected event after which a stream is reopened
    ask_every: float = 5.0  # seconds between two requests for the head of an idle shard
    heartbeat: int = 1  # seconds between two heartbeats of vtgate
    margin: int = 65  # seconds by which an idle shard's progress lags: clocks differ, and a transaction takes time
    page_bytes: int = STREAMED_PAGE  # of changes, at which a page ends
    wait: float = 0.5  # seconds that one read waits for a first change
    largest_unnamed: int = 64 << 20  # bytes of a transaction that wait for its GTID, which came last before v23
    copied_rows_per_second: int | None = None  # of a table; None means no limit
    portion: Portion = Portion()  # which of these tables the stream of one shard has

    def name_of(self, keyspace: str, shard: str) -> str:
        """Return the name that a shard of any keyspace has in the source."""
        return shard if keyspace == self.keyspace else f"{keyspace}/{shard}"

    def is_wanted(self, table: str) -> bool:
        """Whether changes of ``table`` are relayed, even if it does not exist."""
        is_named = table in self.tables if self.tables is not None else not table.startswith(_INTERNAL)
        return is_named and self.portion.has(table)

    @property
    def streamed(self) -> Sequence[str] | None:
        """The tables that a stream asks for; None means all tables of its portion. vtgate may send more."""
        if self.portion.only or self.tables is None:
            return self.portion.only or None
        return [table for table in self.tables if self.portion.has(table)]

    def shows(self, table: str) -> bool:
        return self.is_wanted(table) and not is_hidden(table)


def _other_than(names: Collection[str]) -> str:
    """Return a regular expression that matches every text but ``names``, to its end. RE2 has no negation."""
    first = {name[0] for name in names if name}
    ends = [] if "" in names else ["$"]
    other = f"[^{''.join(map(_escaped, sorted(first)))}].*" if first else ".+"
    longer = [_escaped(one) + _other_than([name[1:] for name in names if name[:1] == one]) for one in sorted(first)]
    return f"(?:{'|'.join([*ends, other, *longer])})"


def _escaped(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"
