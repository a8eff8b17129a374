"""Secondary indexes, as a class declares them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from relay.dynamodb.models.errors import InvalidModel

if TYPE_CHECKING:
    from relay.dynamodb.models.attribute import Attribute

NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
NAME_IS = "3 to 255 letters, digits, dots, dashes and underscores"
"""The characters in the name of a table or an index."""

Projection = Literal["all", "keys"] | Iterable[str]


class Index:
    """An index of a table. Columns are given by their Python names.

    ``hash``, ``range``: the key of the index. ``projection``: ``all``, ``keys``, or the columns that the index has
    besides the keys. ``name``: the index's name in the table, if that is not its name in Python.
    """

    is_local = False

    def __init__(self, hash: str, range: str | None, projection: Projection, name: str | None) -> None:
        self._wanted = (hash, range)
        self._projection: str | list[str] = projection if isinstance(projection, str) else list(projection)
        self.name = name or ""
        self.label = ""
        self.key: tuple[Attribute[Any], ...] = ()
        """The columns of its key, hash first."""
        self.columns: frozenset[str] = frozenset()
        """The columns that the index has, by Python name."""
        self.included: frozenset[str] = frozenset()
        """Those of them that are of no key."""

    def __repr__(self) -> str:
        return self.label or f"<{type(self).__name__}[{self.name}]>"

    @property
    def mode(self) -> str:
        """DynamoDB's ProjectionType."""
        return "ALL" if self._projection == "all" else "INCLUDE" if self.included else "KEYS_ONLY"

    def bind(self, owner: str, name: str, columns: Mapping[str, Attribute[Any]], table_key: list[str]) -> None:
        """Resolve the columns. Raises ``InvalidModel``, naming the class, the index and the column."""
        self.label = f"{owner}.{name}"
        self.name = self.name or name
        if self.is_local and len(table_key) == 1:
            raise InvalidModel(f"{self.label} is a local index, so {owner} needs a range key")
        wanted_hash, wanted_range = self._wanted
        wanted = [table_key[0] if self.is_local else wanted_hash, *([wanted_range] if wanted_range else [])]
        self.key = tuple([self._column(each, columns) for each in wanted])
        if len({*wanted}) < len(wanted):
            label = self.key[0].label
            raise InvalidModel(f"{self.label} has the key {label} twice: choose another range key, or none")
        if isinstance(self._projection, str) and self._projection not in ("all", "keys"):
            raise InvalidModel(f'{self.label}: the projection must be "all", "keys" or a list of columns')
        listed = [] if isinstance(self._projection, str) else self._projection
        if unknown := [each for each in listed if each not in columns]:
            raise InvalidModel(f"{self.label} projects {unknown[0]!r}, which is not a column of {owner}")
        if not NAME.fullmatch(self.name):
            raise InvalidModel(f"{self.label}: an index name must consist of {NAME_IS}; {self.name!r} does not")
        keys = {*table_key, *wanted}
        self.columns = frozenset(columns if self._projection == "all" else keys | set(listed))
        self.included = self.columns - keys

    def _column(self, name: str, columns: Mapping[str, Attribute[Any]]) -> Attribute[Any]:
        if (found := columns.get(name)) is None:
            there = ", ".join(columns)
            raise InvalidModel(f"{self.label} has the key {name!r}, which is not a column: its columns are {there}")
        if found.type.kind not in ("S", "N", "B"):
            raise InvalidModel(f"{self.label} has the key {found.label}: a key must be text, a number or bytes")
        return found


class GlobalIndex(Index):
    """An index with a key of its own."""

    def __init__(
        self, *, hash: str, range: str | None = None, projection: Projection = "all", name: str | None = None
    ) -> None:
        super().__init__(hash, range, projection, name)


class LocalIndex(Index):
    """An index with the table's hash key and another range key."""

    is_local = True

    def __init__(self, *, range: str, projection: Projection = "all", name: str | None = None) -> None:
        super().__init__("", range, projection, name)
