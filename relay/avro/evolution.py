"""From one schema of a table to its next: what differs, and which earlier records the next one can stand for.

A record's name ends in a hash of its columns, so Avro takes the records of two versions for strangers unless the next
one names the one before in its ``aliases``. They are no part of a fingerprint. An alias says "what I wrote then can be
read as this", so it is given only where that is exact (I8): change here which column types may become which.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.avro.schema import source_name
from relay.table import MAX_AVRO_PRECISION, Decimals, column_type

Schema = Mapping[str, Any]

_PARTS = {"key": "key", "row": "old"}  # where the envelope defines the record of each
# Every value of the first is exactly one of the second, and Avro's readers read it so.
_WIDER = {("int", "long"), ("int", "double")}


def same(a: Schema, b: Schema) -> bool:
    """Whether two schemas differ in nothing but their aliases."""
    return bool(_bare(a) == _bare(b))


def following(schema: Schema, earlier: Sequence[Schema]) -> dict[str, Any]:
    """Return ``schema`` with its key and row records aliased to all those of ``earlier`` that they can stand for."""
    next_one = copy.deepcopy(_bare(schema))
    for part in _PARTS:
        record = _record(next_one, part)
        if record is None:
            continue
        names = [_full_name(old) for each in earlier if (old := _record(each, part)) and _stands_for(record, old, part)]
        if aliases := [name for name in dict.fromkeys(names) if name != _full_name(record)]:
            record["aliases"] = aliases
    return dict(next_one)


def of_one_table(a: Schema, b: Schema) -> bool:
    """Whether both schemas are of changes of one table of one source."""
    one, other = _record(a, "key"), _record(b, "key")
    return one is not None and other is not None and one.get("namespace") == other.get("namespace")


def differences(before: Schema, after: Schema) -> list[str]:
    """Say column by column what is different: ``row total: int -> string``, ``row note: added, of type string``."""
    found = [difference for part in _PARTS for difference in _in_part(before, after, part)]
    old, new = _envelope(before), _envelope(after)
    found += [f"{name}: {_change(old.get(name), new.get(name))}" for name in _either(old, new)]
    return found or ["the order of its columns"]


def _in_part(before: Schema, after: Schema, part: str) -> Iterator[str]:
    was, now = _record(before, part), _record(after, part)
    if was is None or now is None:
        if was is not now:
            kinds = ["typed columns" if record else "JSON text" for record in (was, now)]
            yield f"{part}: {' -> '.join(kinds)}"
        return
    old, new = _columns(was), _columns(now)
    for name in _either(old, new):
        yield f"{part} {name}: {_change(old.get(name), new.get(name))}"


def _either(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]


def _change(old: str | None, new: str | None) -> str:
    if old is None:
        return f"added, of type {new}"
    return f"{old} -> {new}" if new is not None else f"removed, was of type {old}"


def _stands_for(record: Schema, earlier: Schema, part: str) -> bool:
    new, old = _columns(record), _columns(earlier)
    if part == "key" and new.keys() != old.keys():
        return False  # the columns of a key have no default, and fewer of them name other items
    return all(old[name] == new[name] or _widens(old[name], new[name]) for name in new.keys() & old.keys())


def _widens(old: str, new: str) -> bool:
    if (old, new) in _WIDER:
        return True
    try:
        was, now = column_type(old), column_type(new)
    except ValueError:
        return False  # not a column type of ours
    if not isinstance(was, Decimals) or not isinstance(now, Decimals):
        return False
    # Up to there they are Avro decimals, past it text.
    sides = {was.precision > MAX_AVRO_PRECISION, now.precision > MAX_AVRO_PRECISION}
    return was.scale == now.scale and was.precision <= now.precision and len(sides) == 1


def _columns(record: Schema) -> dict[str, str]:
    """Return the type of each column by its name at the source."""
    return {source_name(field): _type(field) for field in record["fields"]}


def _type(field: Schema) -> str:
    declared = field.get("relay.type")
    if declared is not None:
        return str(declared)
    return str(field.get("dynamodb") or {"string": "S", "bytes": "B"}.get(str(field["type"]), field["type"]))


def _envelope(schema: Schema) -> dict[str, str]:
    fields = schema.get("fields", [])
    if not fields:
        return {"schema": str(schema.get("name", schema.get("type", "")))}
    return {field["name"]: str(field["type"]) for field in fields if field["name"] not in ("key", "old", "new")}


def _record(schema: Schema, part: str) -> dict[str, Any] | None:
    """Return the key or row record that a schema defines, None where it has none."""
    for field in schema.get("fields", []):
        if field["name"] == _PARTS[part] and isinstance(field["type"], list):
            return next((kind for kind in field["type"] if isinstance(kind, dict) and "fields" in kind), None)
    return None


def _full_name(record: Schema) -> str:
    return f"{record['namespace']}.{record['name']}" if "namespace" in record else str(record["name"])


def _bare(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: _bare(value) for name, value in part.items() if name != "aliases"}
    if isinstance(part, list):
        return [_bare(value) for value in part]
    return part
