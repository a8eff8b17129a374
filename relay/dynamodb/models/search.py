"""Queries and scans: the request, checked against the class, and the iterator over its results."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from relay.dynamodb.models.attribute import Attribute
from relay.dynamodb.models.conditions import Comparable, Condition, Junction, Placeholders, Test
from relay.dynamodb.models.declaration import Declaration
from relay.dynamodb.models.errors import ConstraintViolation, InvalidSearch
from relay.dynamodb.models.indexes import Index
from relay.dynamodb.models.types import Wire

M = TypeVar("M")

Columns = Literal["all", "count"] | Iterable[Attribute[Any] | str]
"""The result of a search: all columns, only the number of items, or objects with these columns and the key."""

Token = Mapping[str, Wire]
"""A place in the results of a search: the key of an item, as JSON if it has no bytes."""

_RANGE_TESTS = {"=", "<", "<=", ">", ">=", "between", "begins_with"}


@dataclass(eq=False, repr=False)
class Search(Generic[M]):
    """The results of a query or scan, which are requested page by page as needed. Use it in one thread.

    ``count``: results received so far, including those not returned yet. ``scanned``: items that DynamoDB read.
    """

    _call: Callable[..., Any]
    _request: Mapping[str, Any]
    _declared: Declaration
    _index: Index | None
    _made: Callable[[Mapping[str, Any]], M]

    def __post_init__(self) -> None:
        key_of_index = self._index.key if self._index else ()
        self._key = {each.attribute for each in (*self._declared.key, *key_of_index)}
        self.reset()

    def __repr__(self) -> str:
        return f"<Search[{self._declared.model.__name__}: {self.count} of {self.scanned} scanned]>"

    def reset(self) -> None:
        """Begin again, at the first result."""
        self.move_to(None)

    def again(self) -> Search[M]:
        """Return another iterator over the same results, from the first one. Each iterator has its own place."""
        other = copy.copy(self)
        other.reset()
        return other

    def move_to(self, token: Token | None) -> None:
        """Continue after the result with this ``token`` of the same search, and count from there; None: begin again."""
        self._items: deque[Any] = deque()
        self._next: Mapping[str, Any] | None = {"ExclusiveStartKey": token} if token else {}
        self._last = token
        self.count = self.scanned = 0

    @property
    def token(self) -> Token | None:
        """The place after the last result that was returned, for ``move_to``; None at the beginning."""
        return None if self._last is None else {name: self._last[name] for name in self._key}

    @property
    def exhausted(self) -> bool:
        return self._next is None and not self._items

    def __iter__(self) -> Search[M]:
        return self

    def __next__(self) -> M:
        # A page may be empty because a filter has removed everything.
        while not self._items and self._next is not None:
            answer = self._call(**self._request, **self._next)
            self.count += answer["Count"]
            self.scanned += answer["ScannedCount"]
            self._items.extend(answer.get("Items", ()))
            last = answer.get("LastEvaluatedKey")
            self._next = {"ExclusiveStartKey": last} if last else None
        if not self._items:
            raise StopIteration
        made = self._made(self._items[0])
        self._last = self._items.popleft()  # only now, so that an item that cannot be loaded is not skipped
        return made

    def first(self) -> M:
        """Begin again, and return the first result. Raises ``ConstraintViolation`` if there is none."""
        self.reset()
        for found in self:
            return found
        raise ConstraintViolation(f"{self._declared.model.__name__}: the search has no result")

    def one(self) -> M:
        """Begin again, and return the only result. Raises ``ConstraintViolation`` unless there is exactly one."""
        found = self.first()
        if next(self, None) is not None:
            raise ConstraintViolation(f"{self._declared.model.__name__}: the search has more than one result")
        return found


def searched(
    declared: Declaration,
    table: str,
    index: Index | None,
    key: Condition | None,
    filter: Condition | None,
    projection: Columns,
    consistent: bool,
    strict: bool,
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the request that queries and scans share, and the columns of its results. Raises ``InvalidSearch``."""
    owner = declared.model.__name__
    if index is not None and all(index is not each for each in declared.indexes.values()):
        raise InvalidSearch(f"{index!r} is not an index of {owner}")
    if consistent and index is not None and not index.is_local:
        raise InvalidSearch(f"{index!r} is a global index, which cannot be read consistently")
    placeholders = Placeholders()
    request: dict[str, Any] = {"TableName": table, "ConsistentRead": consistent}
    if index is not None:
        request["IndexName"] = index.name
    if key is not None:
        _check_key(declared, index, key)
        request["KeyConditionExpression"] = key.render(placeholders)
    # The columns that the table has of an item, and those returned without being requested.
    available = declared.names if index is None or (index.is_local and not strict) else index.columns
    unasked = declared.names if index is None else index.columns
    if filter is not None:
        _check_filter(declared, index, filter, unasked, is_query=key is not None)
        request["FilterExpression"] = filter.render(placeholders)
    if projection == "count":
        request["Select"] = "COUNT"
        names: frozenset[str] = frozenset()
    elif projection == "all":
        names = available
        if names != unasked:
            request["Select"] = "ALL_ATTRIBUTES"
    else:
        names = _projected(declared, index, projection, available)
        key_of_index = {each.name for each in index.key} if index else set()  # for the token
        paths = [placeholders.path(declared.columns[name].attribute) for name in sorted(names | key_of_index)]
        request["ProjectionExpression"] = ", ".join(paths)
    return request | placeholders.arguments, names


def _projected(
    declared: Declaration, index: Index | None, projection: Iterable[Attribute[Any] | str], available: frozenset[str]
) -> frozenset[str]:
    owner = declared.model.__name__
    names = declared.key_names()
    for each in [projection] if isinstance(projection, str) else projection:
        name = each.name if isinstance(each, Attribute) else each
        if name not in declared.columns or (isinstance(each, Attribute) and declared.columns[name] is not each):
            raise InvalidSearch(f"{owner}: {each!r} cannot be projected: it is not a column of {owner}")
        if name not in available:
            raise InvalidSearch(f"{declared.columns[name].label} cannot be projected: {index!r} does not have it")
        names |= {name}
    return names


def _check_filter(
    declared: Declaration, index: Index | None, filter: Condition, unasked: frozenset[str], *, is_query: bool
) -> None:
    """Check that a filter tests what the table or the index has; a query's filter must not test its key."""
    if not isinstance(filter, Condition):
        raise InvalidSearch(f"{declared.model.__name__}: {filter!r} is not a condition: compare a column of the class")
    place, key = _place_and_key(declared, index)
    found = {declared.columns[name].path for name in unasked}
    for column in filter.columns():
        if column.path[:1] not in found:
            raise InvalidSearch(f"{column!r} cannot be tested: {place} does not have it")
        if is_query and column.path in [each.path for each in key]:
            untested = "which the filter of a query cannot test: test it in the key"
            raise InvalidSearch(f"{column!r} belongs to the key of {place}, {untested}")


def _place_and_key(declared: Declaration, index: Index | None) -> tuple[str, tuple[Attribute[Any], ...]]:
    """Return the name of the searched table or index for messages, and its key."""
    return (declared.model.__name__, declared.key) if index is None else (repr(index), index.key)


def _check_key(declared: Declaration, index: Index | None, key: Condition) -> None:
    """Check that a condition finds items by their key: its hash with ``==``, and at most one test of its range."""
    place, (hash, *ranged) = _place_and_key(declared, index)
    parts = key.parts if isinstance(key, Junction) and key.word == "AND" else [key]
    tests = [each for each in parts if isinstance(each, Test)]
    tests = [each for each in tests if not any(isinstance(value, Comparable | None) for value in each.values)]
    hashes = [each for each in tests if each.column.path == hash.path and each.operator == "="]
    range_paths = [each.path for each in ranged]
    ranges = [each for each in tests if each.column.path in range_paths and each.operator in _RANGE_TESTS]
    if len(hashes) != 1 or len(ranges) > 1 or len(parts) != len(hashes) + len(ranges):
        more = f", and at most one of < <= == >= > between begins_with of {ranged[0].label}" if ranged else ""
        raise InvalidSearch(f"{place}: {key!r} is not a key: it must be {hash.label} == a value{more}; use `filter=`")
