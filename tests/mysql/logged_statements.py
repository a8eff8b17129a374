"""Statements that were read, in short, as tests compare them."""

from __future__ import annotations

from typing import Any

from relay.change import SchemaChange, TableColumns


def names(columns: TableColumns | None, by: str | None) -> Any:
    return "?" if by is None else columns and " ".join(column.name for column in columns.columns)


def short(change: SchemaChange) -> tuple[Any, ...]:
    return change.kind, *(
        (table.table, table.renamed_to, names(table.before, table.before_by), names(table.after, table.after_by))
        for table in change.tables
    )
