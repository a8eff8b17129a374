"""Which tables a DDL statement empties: TRUNCATE and DROP TABLE, as they stand in a stream."""

from __future__ import annotations

import re

_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|\#[^\n]*(?:\n|$)|/\*(?!!).*?\*/|/\*!\d*|\*/)"
_NAME = r"(?:`(?:[^`]|``)+`|[^\s`.,;()/*]+)"
_HEAD = re.compile(
    rf"{_SPACE}*(?:truncate(?:{_SPACE}+table)?|drop{_SPACE}+table(?:{_SPACE}+if{_SPACE}+exists)?)(?={_SPACE}|`)",
    re.IGNORECASE | re.DOTALL,
)
_TABLE = re.compile(rf"{_SPACE}*({_NAME})(?:{_SPACE}*\.{_SPACE}*({_NAME}))?{_SPACE}*(,)?", re.DOTALL)


def emptied(statement: str) -> list[str]:
    """Return the names, without database, of the tables that ``statement`` empties; none for any other statement."""
    head = _HEAD.match(statement)
    if head is None:
        return []
    names: list[str] = []
    at = head.end()
    while (found := _TABLE.match(statement, at)) is not None:
        names.append(_unquoted(found[2] or found[1]))
        at = found.end()
        if not found[3]:
            break
    return names


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
