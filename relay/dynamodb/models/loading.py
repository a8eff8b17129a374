"""Loads objects by their keys, in time linear in the distinct keys, with ``batch_load``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relay.dynamodb.batch import batch_load
from relay.dynamodb.models.declaration import Declaration, Model, declaration_of
from relay.dynamodb.models.errors import InvalidValue, MissingObjects
from relay.dynamodb.values import canonical_number

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

_Identity = tuple[Any, ...]


class _Wanted:
    """The objects of one class, by their keys. Keys are typed and in order, so (a, b) is not (b, a) (I8)."""

    def __init__(self, model: type[Model]) -> None:
        self.declared = declaration_of(model)
        self._shape = [(each.attribute, str(each.type.kind)) for each in self.declared.key]
        self.objects: dict[_Identity, list[Model]] = {}

    def add(self, of: Model) -> None:
        values = []
        for each, (_, kind) in zip(self.declared.key, self._shape, strict=True):
            wire = each.wire(of)
            if wire is None:
                raise InvalidValue(f"{each.label} has no value, but is part of the key")
            values.append(wire[kind])
        self.objects.setdefault(tuple(values), []).append(of)

    def keys(self) -> list[dict[str, dict[str, Any]]]:
        return [
            {name: {kind: value} for (name, kind), value in zip(self._shape, identity, strict=True)}
            for identity in self.objects
        ]

    def take(self, item: Mapping[str, Any]) -> list[Model]:
        """Return the objects of an item, and take them off the list."""
        identity = tuple([item[name][kind] for name, kind in self._shape])
        found = self.objects.pop(identity, None)
        if found is None:
            numbers = zip(identity, self._shape, strict=True)
            identity = tuple([canonical_number(value) if kind == "N" else value for value, (_, kind) in numbers])
            found = self.objects.pop(identity, [])
        return found


def load_all(
    client: DynamoDBClient, table_name: Callable[[type[Model]], str], objects: Sequence[Model], *, consistent: bool
) -> None:
    """Load objects of any classes, as ``Engine.load`` does."""
    wanted: dict[type[Model], _Wanted] = {}
    for each in {id(each): each for each in objects}.values():
        model = type(each)
        if model not in wanted:
            wanted[model] = _Wanted(model)
        wanted[model].add(each)
    # Two classes may be of one table.
    keys: dict[str, list[Any]] = {}
    tables: dict[str, list[_Wanted]] = {}
    for model, of in wanted.items():
        name = table_name(model)
        keys.setdefault(name, []).extend(of.keys())
        tables.setdefault(name, []).append(of)
    loaded = batch_load(client, keys, consistent=consistent)
    for table, items in loaded.items.items():
        for of in tables[table]:
            for item in items:
                _fill(of.declared, of.take(item), item)
    missing = [each for of in wanted.values() for group in of.objects.values() for each in group]
    if missing:
        shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise MissingObjects(f"{len(missing)} of {len(objects)} objects are not in their tables: {shown}", missing)


def _fill(declared: Declaration, objects: list[Model], item: Mapping[str, Any]) -> None:
    if not objects:
        return
    names = declared.names
    seen = declared.seen(item, names)
    values = declared.values(item, names)
    declared.fill(objects[0], values, names, seen)
    for each in objects[1:]:
        # What can change in place is made for each object anew.
        own = declared.values(item, declared.changeable)
        declared.fill(each, {**values, **own}, names, seen)
