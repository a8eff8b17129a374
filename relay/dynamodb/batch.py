"""Items of several tables by their keys, in time linear in the distinct keys (seed 003, "Loading").

The seed's index is the sorted values of a key, which confuses (a, b) with (b, a), S "1" with N "1", and misses that
N "1.0" is N "1". Here a key is known by name, type and canonical value of its attributes (I8).
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore.exceptions import ClientError

from relay.dynamodb.values import canonical_number
from relay.errors import RelayError, Unavailable

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

Key = Mapping[str, Mapping[str, Any]]
"""The key attributes, typed: ``{"customer": {"S": "ada"}, "order_id": {"N": "7"}}``; B as bytes."""

Item = dict[str, dict[str, Any]]
"""All attributes, typed, as boto3's client gives them."""

_Index = tuple[str | bytes, ...]
_Place = tuple[str, _Index]

# AWS, "BatchGetItem": up to 100 keys, given once each; what is past 16 MB or throttled comes back unprocessed.
_CHUNK = 100
_SHORTEST_WAIT = 0.05
_LONGEST_WAIT = 5.0
_MOST_STALLS = 10
_THROTTLED = {"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {"S": (str,), "N": (str,), "B": (bytes, bytearray)}


class Loaded(NamedTuple):
    """What ``batch_load`` found, by table.

    ``items``: one for each key that was found, in the order the keys were first given; every table is named.
    ``missing``: the keys without an item, in that order and as they were given: each spelling of a key once. Only
    tables that miss some are named.
    """

    items: dict[str, list[Item]]
    missing: dict[str, list[Key]]


def batch_load(
    client: DynamoDBClient,
    keys: Mapping[str, Iterable[Key]],
    *,
    consistent: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Loaded:
    """Load the items of ``keys``, a table's keys by its name; a key may be given any number of times.

        loaded = batch_load(boto3.client("dynamodb"), {"orders": [{"id": {"S": "1"}}]}, consistent=True)

    What DynamoDB leaves unprocessed or throttles is asked again after a wait, up to some 20 seconds without any
    progress: then ``Unavailable``. ValueError, before anything is asked, if the keys of a table are not of one
    shape; botocore's errors if DynamoDB refuses them or is not there; ``RelayError`` if it answers what was not asked.
    """
    tables = {name: _Table(name, given) for name, given in keys.items()}
    waiting: deque[_Place] = deque((name, index) for name, table in tables.items() for index in table.given)
    stalls = 0
    while waiting:
        asked = [waiting.popleft() for _ in range(min(_CHUNK, len(waiting)))]
        unprocessed, refusal = _ask(client, tables, asked, consistent)
        if not unprocessed:
            stalls = 0
            continue
        # To the end: the keys of other tables need not wait for one that is throttled.
        waiting.extend(unprocessed)
        stalls = stalls + 1 if len(unprocessed) == len(asked) else 0
        if stalls == _MOST_STALLS:
            names = ", ".join(sorted({name for name, _ in waiting}))
            raise Unavailable(
                f"DynamoDB processed none of {stalls} requests for {names} in a row, {len(waiting)} keys are left:"
                " wait for the throttling to end, or raise the read capacity"
            ) from refusal
        longest = min(_LONGEST_WAIT, _SHORTEST_WAIT * 2**stalls)
        sleep(random.uniform(longest / 2, longest))
    return Loaded(
        {name: table.found() for name, table in tables.items()},
        {name: missing for name, table in tables.items() if (missing := table.missing())},
    )


class _Table:
    """The keys wanted of one table, and the items that came.

    Its keys are of one shape, so the values in the order of the shape tell them apart as well as with name and type.
    """

    def __init__(self, name: str, keys: Iterable[Key]) -> None:
        self.name = name
        # Name and type of each key attribute, as in the first key, and what Python may hold of it.
        self.shape: tuple[tuple[str, str], ...] = ()
        self._types: tuple[tuple[type, ...], ...] = ()
        # The key that is asked, and other spellings of it that were given, by its index.
        self.given: dict[_Index, Key] = {}
        self._respelt: dict[_Index, list[Key]] = {}
        # The index by values as written; canonical ones, as DynamoDB writes them, are mostly here, too.
        self._indexes: dict[_Index, _Index] = {}
        self.items: dict[_Index, Item] = {}
        for key in keys:
            values = self._values(key)
            if values not in self._indexes:
                index = self._indexes[values] = self._canonical(values, key)
                if self.given.setdefault(index, key) is not key:
                    self._respelt.setdefault(index, []).append(key)

    def __repr__(self) -> str:
        return f"<_Table[{self.name}: {len(self.items)} of {len(self.given)}]>"

    def index_of(self, item: Mapping[str, Mapping[str, Any]]) -> _Index:
        """Return the index of an item, or of a key, as DynamoDB gave it."""
        try:
            values = tuple([item[name][kind] for name, kind in self.shape])
            return self._indexes.get(values) or self._canonical(values, item)
        except (KeyError, TypeError, ValueError) as error:
            raise RelayError(f"table {self.name}: DynamoDB gave an item without its key: {error!r}") from error

    def found(self) -> list[Item]:
        return [self.items[index] for index in self.given if index in self.items]

    def missing(self) -> list[Key]:
        return [
            key
            for index, first in self.given.items()
            if index not in self.items
            for key in (first, *self._respelt.get(index, ()))
        ]

    def _values(self, key: Key) -> _Index:
        """Return the values of ``key`` as they are written. ValueError if it is not of the table's shape."""
        shape = self.shape or self._take_shape(key)
        try:
            values = tuple([key[name][kind] for name, kind in shape])
            fits = len(key) == len(shape) == sum(map(len, key.values())) and all(map(isinstance, values, self._types))
        except (KeyError, TypeError):
            fits = False
        if not fits:
            expected = ", ".join(f"{name} ({kind})" for name, kind in shape)
            raise ValueError(f"table {self.name}: {key!r} is not of the shape of the first key: {expected}")
        return tuple([bytes(value) if isinstance(value, bytearray) else value for value in values])

    def _take_shape(self, key: Key) -> tuple[tuple[str, str], ...]:
        """Take the shape of the table's first key for all."""
        if len(key) not in (1, 2):
            raise ValueError(f"table {self.name}: {key!r} is no key: a key has one or two attributes")
        for name, value in key.items():
            kind = next(iter(value), "") if isinstance(value, Mapping) else ""
            if kind not in _PYTHON_TYPES or len(value) != 1:
                raise ValueError(f"table {self.name}: {key!r} is no key: {name} must be one of S, N or B")
            if not isinstance(value[kind], _PYTHON_TYPES[kind]):
                # Text for binary, too: as base64 it would mean other bytes.
                wanted = "bytes" if kind == "B" else "text"
                raise ValueError(f"table {self.name}: {key!r} is no key: {name}, of type {kind}, must be {wanted}")
            self.shape += ((name, kind),)
            self._types += (_PYTHON_TYPES[kind],)
        return self.shape

    def _canonical(self, values: _Index, key: Key) -> _Index:
        if all(kind != "N" for _, kind in self.shape):
            return values
        try:
            return tuple(
                [
                    canonical_number(str(value)) if kind == "N" else value
                    for value, (_, kind) in zip(values, self.shape, strict=True)
                ]
            )
        except ValueError as error:
            raise ValueError(f"table {self.name}: {key!r} is no key: {error}") from error


def _ask(
    client: DynamoDBClient, tables: Mapping[str, _Table], asked: list[_Place], consistent: bool
) -> tuple[list[_Place], ClientError | None]:
    """Ask once for the keys at ``asked``; return those to ask for again, and the refusal if all were refused."""
    request: dict[str, Any] = {}
    for name, index in asked:
        one = request.setdefault(name, {"Keys": [], "ConsistentRead": consistent})
        one["Keys"].append(tables[name].given[index])
    try:
        answer: Any = client.batch_get_item(RequestItems=request)
    except ClientError as error:
        if not _passes(error):
            raise
        return asked, error
    expected = set(asked)
    for name, items in answer["Responses"].items():
        for item in items:
            _, index = _known(tables, name, item, expected)
            tables[name].items[index] = item
    return [
        _known(tables, name, key, expected)
        for name, left in answer.get("UnprocessedKeys", {}).items()
        for key in left["Keys"]
    ], None


def _known(tables: Mapping[str, _Table], name: str, item: Key, expected: set[_Place]) -> _Place:
    place = (name, tables[name].index_of(item)) if name in tables else None
    if place is None or place not in expected:
        # Its place in the answer is not to be guessed (I8).
        raise RelayError(f"table {name}: DynamoDB answered with a key that was not asked for: {place}")
    return place


def _passes(error: ClientError) -> bool:
    """Whether it is DynamoDB's trouble of the moment, not the request's."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or error.response.get("Error", {}).get("Code", "") in _THROTTLED
