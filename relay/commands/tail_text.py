"""The output of ``relay tail``: for people, which may change freely, and with ``--json``, which is a contract."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from relay.dynamodb.values import TYPES

_COLOURS = {"INSERT": "green", "UPDATE": "yellow", "DELETE": "red", "READ": "cyan", "TRUNCATE": "bold red"}


def json_line(record: Mapping[str, Any]) -> str:
    """Return the line that ``--json`` prints for a record from ``relay.operations.tail.record_json``."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def printer() -> Callable[[Mapping[str, Any]], None]:
    """Return a function that prints a record from ``relay.operations.tail.record_json`` to stdout."""
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)

    def show(record: Mapping[str, Any]) -> None:
        for text in _record(record):
            console.print(text)

    return show


def _record(record: Mapping[str, Any]) -> Iterator[Text]:
    where = Text() + Text(f"{record['topic']}[{record['partition']}]@{record['offset']}  ", "dim")
    value = record["value"]
    if "error" in record:
        yield where + Text(f"cannot be decoded: {_printable(record['error'])}  ", "bold red") + Text(str(value))
    elif not isinstance(value, dict) or "operation" not in value:
        shown = "(deleted)" if value is None else _json(value)
        yield where + Text(f"{_printable(str(record['key']))}  ", "bold") + Text(shown)
    else:
        operation = value["operation"]
        key = "".join(f" {_printable(name)}={_short(part)}" for name, part in (value["key"] or {}).items())
        edge = value["attributes"].get("snapshot")  # the record that begins or ends a snapshot has no row
        yield (
            where
            + Text(f"{value['committed_at']}  ", "dim")
            + Text(f"{operation:8} ", _COLOURS.get(operation, ""))
            + Text(f"{_printable(value['table'])}{key}", "bold")
            + Text(f"  {edge} of snapshot {value['snapshot']['id']}" if edge else "")
        )
        yield from _difference(value["old"] or {}, value["new"] or {}, set(value["key"] or {}))


def _difference(old: Mapping[str, Any], new: Mapping[str, Any], key: set[str]) -> Iterator[Text]:
    for name in [*new, *(name for name in old if name not in new)]:
        if name in key or old.get(name) == new.get(name):
            continue
        line = Text(f"  {'~' if name in old and name in new else '+' if name in new else '-'} {_printable(name)}: ")
        if name in old:
            line += Text(_short(old[name]), "red")
        if name in old and name in new:
            line += Text(" → ")
        if name in new:
            line += Text(_short(new[name]), "green")
        yield line


def _short(value: Any) -> str:
    unpacked = _unpacked(value)
    return _printable(unpacked) if isinstance(unpacked, str) else _json(unpacked)


def _unpacked(value: Any) -> Any:
    """Remove the types from a DynamoDB value: ``12`` reads more easily than ``{"N": "12"}``."""
    if isinstance(value, dict) and len(value) == 1 and value.keys() <= TYPES:
        kind, inner = next(iter(value.items()))
        if kind == "M":
            return {name: _unpacked(part) for name, part in inner.items()}
        if kind == "L":
            return [_unpacked(part) for part in inner]
        return None if kind == "NULL" else inner
    return value


def _json(value: Any) -> str:
    return _printable(json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    """Escape what a terminal would obey: the values come from an application's users."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
