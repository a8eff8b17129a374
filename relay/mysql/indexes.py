"""The indexes by which a table can be read in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

INDEXES = (
    "SELECT INDEX_NAME, COLUMN_NAME, COLLATION = 'D', SUB_PART, INDEX_TYPE <> 'BTREE', NULLABLE = 'YES'"
    " FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0"
    " /*!80000 AND IS_VISIBLE = 'YES' *//*M!100600 AND IGNORED = 'NO' */"
    " ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX"
)
"""Selects the parts of the unique indexes of a table that statements may use, the primary key first."""

PRIMARY = "PRIMARY"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an index. ``column``: None for an expression of MySQL. ``first``: of how many characters, 0 for all.

    ``is_hashed``: it is in no order, as by default in tables of the MEMORY engine.
    """

    column: str | None
    is_descending: bool = False
    first: int = 0
    is_hashed: bool = False
    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    name: str
    parts: tuple[Part, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(str(part.column) for part in self.parts)

    @property
    def replaces_primary(self) -> bool:
        """Whether a table can be read by it instead, each row once."""
        return not any(part.column is None or part.is_nullable or part.first for part in self.parts)


def indexes_of(rows: Iterable[Sequence[Any]]) -> tuple[UniqueIndex, ...]:
    """Return the indexes in the rows that `INDEXES` selects."""
    found: dict[str, list[Part]] = {}
    for name, column, is_descending, first, is_hashed, is_nullable in rows:
        part = Part(column, bool(is_descending), int(first or 0), bool(is_hashed), bool(is_nullable))
        found.setdefault(str(name), []).append(part)
    return tuple(UniqueIndex(name, tuple(parts)) for name, parts in found.items())
