"""Loads objects by their keys, in time linear in the distinct keys, with ``batch_load``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from relay.dynamodb.batch import batch_load
from relay.dynamodb.models.declaration import Model, declaration_of
from relay.dynamodb.models.errors import InvalidModel, MissingObjects
from relay.dynamodb.values import canonical_number

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

_CHUNK = 1_000
"""Keys, of ten requests, whose items are kept until they are in their objects: all of a large load would take their
memory, and time of Python's garbage collector."""

_Identity = tuple[Any, ...]


class _Wanted:
    """The objects of one class, by their keys. Keys are typed and in order, so (a, b) is not (b, a) (I8)."""

    def __init__(self, model: type[Model]) -> None:
        self.declared = declaration_of(model)
        self.shape = tuple([(each.attribute, str(each.type.kind)) for each in self.declared.key])
        self.objects: dict[_Identity, list[Model]] = {}
        # The same groups by the values in Python, with their types, since 1 == True. Only of types that we know.
        self._known: dict[_Identity, list[Model]] = {}
        self._names = [each.name for each in self.declared.key]
        self._is_known = not self.declared.changeable & self.declared.key_names()

    def add(self, of: Model) -> None:
        if not self._is_known:
            self._group(of).append(of)
            return
        given = tuple([(type(value), value) for value in map(vars(of).get, self._names)])
        try:
            group = self._known.get(given)
        except TypeError:  # unhashable: a bytearray, or a value that is refused
            group = self._group(of)
        else:
            if group is None:
                group = self._known[given] = self._group(of)
        group.append(of)

    def _group(self, of: Model) -> list[Model]:
        key = self.declared.key_of(of)
        return self.objects.setdefault(tuple([key[name][kind] for name, kind in self.shape]), [])

    def wire(self, identity: _Identity) -> dict[str, dict[str, Any]]:
        return {name: {kind: value} for (name, kind), value in zip(self.shape, identity, strict=True)}

    def take(self, item: Mapping[str, Any]) -> list[Model]:
        """Return the objects of an item, and take them off the list."""
        identity = tuple([item[name][kind] for name, kind in self.shape])
        found = self.objects.pop(identity, None)
        if found is None:
            numbers = zip(identity, self.shape, strict=True)
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
    keys: dict[tuple[str, _Identity], None] = {}
    tables: dict[str, list[_Wanted]] = {}
    for model, of in wanted.items():
        name = table_name(model)
        sharing = tables.setdefault(name, [])
        if sharing and sharing[0].shape != of.shape:  # I8: N "1" would be taken for S "1"
            first = sharing[0].declared.model.__name__
            raise InvalidModel(f"{model.__name__} and {first} declare different keys of the table {name}")
        sharing.append(of)
        keys |= dict.fromkeys([(name, identity) for identity in of.objects])
    waiting = iter(keys)
    while chunk := list(islice(waiting, _CHUNK)):
        requested: dict[str, list[Any]] = {}
        for name, identity in chunk:
            requested.setdefault(name, []).append(tables[name][0].wire(identity))
        loaded = batch_load(client, requested, consistent=consistent)
        for table, items in loaded.items.items():
            for of in tables[table]:
                for item in items:
                    if objects_of := of.take(item):
                        of.declared.fill(objects_of, item, of.declared.names)
    missing = [each for of in wanted.values() for group in of.objects.values() for each in group]
    if missing:
        shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise MissingObjects(f"{len(missing)} of {len(objects)} objects are not in their tables: {shown}", missing)
