"""Which of the wanted tables one stream of a shard has: MoveTables takes tables to other keyspaces, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Portion:
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


ALL = Portion()


def _other_than(names: Collection[str]) -> str:
    """Return a regular expression that matches every text but ``names``, to its end. RE2 has no negation."""
    first = {name[0] for name in names if name}
    ends = [] if "" in names else ["$"]
    other = f"[^{''.join(map(_escaped, sorted(first)))}].*" if first else ".+"
    longer = [_escaped(one) + _other_than([name[1:] for name in names if name[:1] == one]) for one in sorted(first)]
    return f"(?:{'|'.join([*ends, other, *longer])})"


def _escaped(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"
