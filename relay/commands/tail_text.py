"""The output of ``relay tail``: for people, which may change freely, and with ``--json``, which is a contract."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from relay.change import MARK
from relay.config.value_types import iso_time
from relay.types.items import TYPES

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
    elif headers := record.get("headers"):
        what = f"{headers.get('table') or headers.get('topic', '')} {headers.get('key', '')}".strip()
        part = f", part {headers['chunk']}" if headers.get("chunk", "1/1") != "1/1" else ""
        said = f"{headers.get('reason', '')}: {headers.get('detail', '')}".strip(": ")
        yield where + Text(f"{_printable(str(record['key']))}  ", "bold") + Text(_printable(f"{what}: {said}{part}"))
    elif isinstance(value, dict) and "statement" in value:
        what = f"{value['kind']:8} {', '.join(table['table'] for table in value['tables'])}"
        committed = iso_time(value["committed_at"] / 1e6, "microseconds")
        said = value["statement"] or "(a statement that is too long)"
        yield where + Text(f"{committed}  ", "dim") + Text(f"{_printable(what)}  ", "bold") + Text(_printable(said))
    elif not isinstance(value, dict) or "operation" not in value:
        shown = "(deleted)" if value is None else _json(value)
        yield where + Text(f"{_printable(str(record['key']))}  ", "bold") + Text(shown)
    else:
        operation = value["operation"]
        key = "".join(f" {_printable(name)}={_short(part)}" for name, part in (value["key"] or {}).items())
        # The record that begins or ends a snapshot, or ends a partition, carries no row.
        mark, snapshot = value["attributes"].get(MARK), value.get("snapshot")
        edge = f"  {mark} of snapshot {snapshot['id']}" if mark and snapshot else f"  {mark}" if mark else ""
        yield (
            where
            + Text(f"{value['committed_at']}  ", "dim")
            + Text(f"{operation:8} ", _COLOURS.get(operation, ""))
            + Text(f"{_printable(value['table'])}{key}", "bold")
            + Text(edge)
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
    """Return a DynamoDB value without its types: ``12`` reads more easily than ``{"N": "12"}``."""
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
    """Escape characters that a terminal would obey: the values come from an application's users."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)
