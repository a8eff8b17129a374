"""Evolution of a table's schemas: their differences, and the aliases with which Avro readers resolve them.

A record's name ends in a hash of its columns, so for Avro the records of two versions are unrelated unless the new
record names the old one in its ``aliases``, which are not part of a fingerprint. An alias makes readers read an old
record as the new one, so it is added only where every value stays exactly the same (I8).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.avro.schema import source_name, without
from relay.types.columns import ColumnKind, column_type

Schema = Mapping[str, Any]

# The envelope's field that defines each record: ours, or Debezium's, whose key has a schema of its own.
_PARTS = {"key": ("key",), "row": ("old", "before")}
_IMAGES = ("key", "old", "new", "before", "after")
# Avro's readers promote the first to the second, and every value stays the same.
_WIDER = {("int", "long"), ("int", "double")}


def same(a: Schema, b: Schema) -> bool:
    """Whether two schemas are equal except for their aliases."""
    return bool(without("aliases", a) == without("aliases", b))


def following(schema: Schema, earlier: Sequence[Schema]) -> dict[str, Any]:
    """Return ``schema`` with aliases for all records of ``earlier`` that its key and row records can replace."""
    next_one: dict[str, Any] = without("aliases", schema)
    for part in _PARTS:
        record = _record(next_one, part)
        if record is None:
            continue
        names = [_full_name(old) for each in earlier if (old := _record(each, part)) and _replaces(record, old, part)]
        if aliases := [name for name in dict.fromkeys(names) if name != _full_name(record)]:
            record["aliases"] = aliases
    return next_one


def is_of_changes(schema: Schema) -> bool:
    """Whether a schema is for the relay's changes, and not for other values."""
    return _record(schema, "key") is not None and {"event_id", "old", "new"} <= {
        each["name"] for each in schema["fields"]
    }


def is_envelope(schema: Schema) -> bool:
    """Whether a schema is for changes in Debezium's envelope."""
    return schema.get("name") == "Envelope" and {"before", "after"} <= {each["name"] for each in schema["fields"]}


def refused_envelope(topic: str) -> str:
    return (
        f"topic {topic} has records of a different `envelope`, and its readers take only one: set the former "
        '`envelope` again, or choose another topic for the table, such as `topics: "{name}.cdc.{table}"`, and '
        "confirm it with `relay reset CONFIG --moved TABLE`"
    )


def table_of(schema: Schema) -> str | None:
    """Return the part that all schemas of a source's table share, or None if this is not a schema of changes."""
    key = _record(schema, "key")
    return None if key is None else key.get("namespace")


def differences(before: Schema, after: Schema) -> list[str]:
    """Return the differences by column: ``row total: int -> string``, ``row note: added, of type string``."""
    found = [difference for part in _PARTS for difference in _in_part(before, after, part)]
    old, new = _envelope(before), _envelope(after)
    found += [f"{name}: {_change(old.get(name), new.get(name))}" for name in _differing(old, new)]
    return found or ["the order of its columns"]


def _in_part(before: Schema, after: Schema, part: str) -> Iterator[str]:
    was, now = _record(before, part), _record(after, part)
    if was is None or now is None:
        if was is not now:
            kinds = ["typed columns" if record else "JSON text" for record in (was, now)]
            yield f"{part}: {' -> '.join(kinds)}"
        return
    old, new = _columns(was), _columns(now)
    for name in _differing(old, new):
        yield f"{part} {name}: {_change(old.get(name), new.get(name))}"


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]


def _change(old: str | None, new: str | None) -> str:
    if old is None:
        return f"added, of type {new}"
    return f"{old} -> {new}" if new is not None else f"removed, was of type {old}"


def _replaces(record: Schema, earlier: Schema, part: str) -> bool:
    new, old = _columns(record), _columns(earlier)
    if part == "key" and new.keys() != old.keys():
        return False  # key columns have no default, and fewer of them would identify other items
    return all(old[name] == new[name] or _widens(old[name], new[name]) for name in new.keys() & old.keys())


def _widens(old: str, new: str) -> bool:
    if (old, new) in _WIDER:
        return True
    try:
        was, now = column_type(old), column_type(new)
    except ValueError:
        return False  # not one of our column types
    if not was.kind is now.kind is ColumnKind.DECIMAL:
        return False
    return was.scale == now.scale and was.precision <= now.precision and was.is_wide == now.is_wide


def _columns(record: Schema) -> dict[str, str]:
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
    return {field["name"]: str(field["type"]) for field in fields if field["name"] not in _IMAGES}


def _record(schema: Schema, part: str) -> dict[str, Any] | None:
    for field in schema.get("fields", []):
        if field["name"] in _PARTS[part] and isinstance(field["type"], list):
            return next((kind for kind in field["type"] if isinstance(kind, dict) and "fields" in kind), None)
    return None


def _full_name(record: Schema) -> str:
    return f"{record['namespace']}.{record['name']}" if "namespace" in record else str(record["name"])
