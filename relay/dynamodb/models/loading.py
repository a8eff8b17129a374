"""Loads objects by their keys, each key requested once, in time linear in the distinct keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from relay.dynamodb.batch import Index, Keys, load_each
from relay.dynamodb.models.declaration import Model, declaration_of
from relay.dynamodb.models.errors import InvalidModel, MissingObjects

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient


class _Wanted:
    """The objects of one class, by their keys. Keys are typed and in order, so (a, b) is not (b, a) (I8).

    Objects with the same key are a chain of their numbers: lists, one for each key, would be Python's garbage
    collector's work for as long as the load takes.
    """

    def __init__(self, model: type[Model], objects: Sequence[Model]) -> None:
        self.declared = declaration_of(model)
        self.shape = tuple([(each.attribute, str(each.type.kind)) for each in self.declared.key])
        self._objects = objects
        # The number of the last object with a key that is not loaded, and of each object the one before it, or -1.
        self.last: dict[Index, int] = {}
        self._before: list[int] = []
        for number, identity in enumerate(self._identities()):
            self._before.append(self.last.get(identity, -1))
            self.last[identity] = number

    def _identities(self) -> Iterator[Index]:
        """Yield the keys of the objects, each made once where their values in Python are the same."""
        names = [each.name for each in self.declared.key]
        if self.declared.changeable.intersection(names):  # types that we do not know
            yield from map(self._identity, self._objects)
            return
        known: dict[tuple[Any, ...], Index] = {}
        for of in self._objects:
            values = [*map(vars(of).get, names)]
            given = (*values, *map(type, values))  # with their types, since 1 == True
            try:
                identity = known.get(given)
            except TypeError:  # unhashable: a bytearray, or a value that is refused
                identity = self._identity(of)
            else:
                if identity is None:
                    identity = known[given] = self._identity(of)
            yield identity

    def _identity(self, of: Model) -> Index:
        key = self.declared.key_of(of)
        return tuple([key[name][kind] for name, kind in self.shape])

    def take(self, identity: Index) -> list[Model]:
        """Return the objects with a key, and take them off the list."""
        return self._chain(self.last.pop(identity, -1))

    def missing(self) -> list[Model]:
        return [each for last in self.last.values() for each in reversed(self._chain(last))]

    def _chain(self, last: int) -> list[Model]:
        found = []
        while last >= 0:
            found.append(self._objects[last])
            last = self._before[last]
        return found


def load_all(
    client: DynamoDBClient, table_name: Callable[[type[Model]], str], objects: Sequence[Model], *, consistent: bool
) -> None:
    """Load objects of any classes, as ``Engine.load`` does."""
    by_model: dict[type[Model], list[Model]] = {}
    for each in {id(each): each for each in objects}.values():
        by_model.setdefault(type(each), []).append(each)
    wanted = {model: _Wanted(model, of) for model, of in by_model.items()}
    # Two classes may be of one table.
    sharing: dict[str, list[_Wanted]] = {}
    for model, of in wanted.items():
        of_table = sharing.setdefault(table_name(model), [])
        if of_table and of_table[0].shape != of.shape:  # I8: N "1" would be taken for S "1"
            first = of_table[0].declared.model.__name__
            raise InvalidModel(f"{model.__name__} and {first} declare different keys of the table {table_name(model)}")
        of_table.append(of)
    keys = {name: dict.fromkeys(chain.from_iterable(of.last for of in of_table)) for name, of_table in sharing.items()}
    places = ((name, key) for name, of_table in keys.items() for key in of_table)
    tables = {name: Keys(name, of_table[0].shape) for name, of_table in sharing.items()}
    for (name, key), item in load_each(client, tables, places, consistent=consistent):
        for of in sharing[name]:
            if loaded := of.take(key):
                of.declared.fill(loaded, item, of.declared.names)
    missing = [each for of in wanted.values() for each in of.missing()]
    if missing:
        shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise MissingObjects(f"{len(missing)} of {len(objects)} objects are not in their tables: {shown}", missing)
