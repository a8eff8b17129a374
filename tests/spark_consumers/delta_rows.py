"""Tables of Delta, read by delta-rs: in Spark, each query takes a second of CPU, of a table with ten rows too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder

_KNOWN = {"deletionVectors"}
_EXACT = {"string", "integer", "long", "boolean"}


def is_there(path: str | Path) -> bool:
    """Whether Delta has a table there."""
    return DeltaTable.is_deltatable(str(path))


def operations(path: str | Path) -> list[str]:
    """Return what made each version, newest first."""
    return [commit["operation"] for commit in DeltaTable(path).history()]


def parameters(path: str | Path, operation: str) -> list[dict[str, str]]:
    """Return the parameters of the versions that an operation made, newest first."""
    return [each["operationParameters"] for each in DeltaTable(path).history() if each["operation"] == operation]


def rows(path: str | Path, columns: Sequence[str], *, where: str = "true") -> list[tuple[Any, ...]]:
    """Return columns of the rows that meet a condition of SQL, ordered by the first one, nulls first."""
    listed = ", ".join(f'"{name}"' for name in columns)
    query = QueryBuilder().register("t", DeltaTable(path))
    found = query.execute(f'SELECT {listed} FROM t WHERE {where} ORDER BY "{columns[0]}" NULLS FIRST').read_all()
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def is_exact(path: str | Path, columns: Sequence[str]) -> bool:
    """Whether delta-rs can read the table, and returns exactly the values of these columns that Spark does."""
    table = DeltaTable(path)
    if set(table.protocol().reader_features or ()) - _KNOWN:
        return False
    types = {field.name: getattr(field.type, "type", None) for field in table.schema().fields}
    return {types[name] for name in columns} <= _EXACT
