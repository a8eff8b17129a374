"""Load items of several tables by their keys, in time linear in the distinct keys.

The algorithm is from Bloop's "Internals" ("Loading"), whose index confuses (a, b) with (b, a), S "1" with N "1", and
takes N "1.0" and N "1" for different keys. Here it is the name, type and canonical value of each key attribute (I8).

Answers without binary are parsed as JSON, because botocore's parser takes most of the time and gives the same items.
This relies on the event ``before-parse``, as ``relay.dynamodb.raw_records`` does. Other calls on the user's client are
not affected.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from botocore.exceptions import ClientError

from relay.dynamodb.stream_calls import is_transient
from relay.dynamodb.values import canonical_number
from relay.errors import RelayError, Unavailable

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

Key = Mapping[str, Mapping[str, Any]]
"""The key attributes of an item, typed: ``{"customer": {"S": "ada"}, "order_id": {"N": "7"}}``; B as bytes."""

Item = dict[str, dict[str, Any]]
"""All attributes of an item, typed, as boto3's client returns them."""

Index = tuple[str | bytes, ...]
"""The canonical values of a key, in the order of its attributes in the table's ``Keys``."""

Place = tuple[str, Index]
"""A table, and the index of a key in it."""

# AWS, "BatchGetItem": up to 100 distinct keys; keys past 16 MB and throttled keys come back unprocessed.
_CHUNK = 100
_is_own: ContextVar[bool] = ContextVar("relay_batch_get_item", default=False)
_SHORTEST_WAIT = 0.05
_LONGEST_WAIT = 5.0
_MOST_STALLS = 10
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {"S": (str,), "N": (str,), "B": (bytes, bytearray)}


class Loaded(NamedTuple):
    """The result of ``batch_load``, by table name.

    ``items``: one item for each distinct key that exists, in the order in which the keys were first given. Contains
    every table of the request. ``missing``: the other keys, in the same order and as the caller wrote them, without
    repetitions. Contains only tables with missing keys.
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
    """Load items by their keys, 100 per request; each distinct key is requested once, however often it is given.

        loaded = batch_load(boto3.client("dynamodb"), {"orders": [{"id": {"S": "1"}}]}, consistent=True)
        loaded.items["orders"]  # [{"id": {"S": "1"}, "total": {"N": "9.50"}}]
        loaded.missing  # {} or {"orders": [{"id": {"S": "1"}}]}

    ``keys``: a table's keys, typed, by table name. ``consistent``: read consistently, at twice the capacity units.
    ``sleep``: waits for a number of seconds.

    Keys that DynamoDB throttles or leaves unprocessed are requested again (AWS, "BatchGetItem"). Raises ``Unavailable``
    after about 20 seconds without progress; ``ValueError``, before the first request, if a key is not valid or the keys
    of a table differ in their attributes; ``RelayError`` if DynamoDB answers with a key that was not requested; and
    botocore's errors if DynamoDB refuses the request or cannot be reached.
    """
    tables = {name: _Table(name, given) for name, given in keys.items()}
    places = ((name, index) for name, table in tables.items() for index in table.requested)
    for (name, index), item in load_each(client, tables, places, consistent=consistent, sleep=sleep):
        tables[name].items[index] = item
    return Loaded(
        {name: table.found() for name, table in tables.items()},
        {name: missing for name, table in tables.items() if (missing := table.missing())},
    )


class Keys:
    """How the keys of one table are written: ``shape`` has the name and type of each of their attributes."""

    def __init__(self, name: str, shape: tuple[tuple[str, str], ...]) -> None:
        self.name = name
        self.shape = shape

    def key(self, index: Index) -> Key:
        return {name: {kind: value} for (name, kind), value in zip(self.shape, index, strict=True)}

    def place_of(self, item: Mapping[str, Mapping[str, Any]], expected: Container[Place]) -> Place:
        """Return the expected place of an item or key that DynamoDB returned. Raises ``RelayError``."""
        try:
            values = tuple([item[name][kind] for name, kind in self.shape])
            place = (self.name, values)
            if place in expected:
                return place
            place = (self.name, self._canonical(values, item))
        except (KeyError, TypeError, ValueError) as error:
            raise RelayError(f"table {self.name}: DynamoDB answered with an item without its key: {error!r}") from error
        if place not in expected:
            # Never guess (I8).
            raise RelayError(f"table {self.name}: DynamoDB answered with a key that was not requested: {place}")
        return place

    def _canonical(self, values: Index, key: Key) -> Index:
        typed = zip(values, self.shape, strict=True)
        try:
            return tuple([canonical_number(str(value)) if kind == "N" else value for value, (_, kind) in typed])
        except ValueError as error:
            raise ValueError(f"table {self.name}: {key!r} is not a key: {error}") from error


def load_each(
    client: DynamoDBClient,
    tables: Mapping[str, Keys],
    places: Iterator[Place],
    *,
    consistent: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Place, Item]]:
    """Yield the items at distinct places, which it takes as it requests them. Otherwise as ``batch_load``."""
    again: deque[Place] = deque()
    stalls = 0
    while True:
        chunk = list(islice(places, _CHUNK))
        chunk += [again.popleft() for _ in range(min(_CHUNK - len(chunk), len(again)))]
        if not chunk:
            return
        found, unprocessed, refusal = _request(client, tables, chunk, consistent)
        yield from found
        if not unprocessed:
            stalls = 0
            continue
        # At the end, so that other tables do not wait for a throttled one.
        again.extend(unprocessed)
        stalls = stalls + 1 if len(unprocessed) == len(chunk) else 0
        if stalls == _MOST_STALLS:
            left = [*again, *places]
            names = ", ".join(sorted({name for name, _ in left}))
            raise Unavailable(
                f"DynamoDB processed no key of {names} in {stalls} requests in a row, {len(left)} keys are left: "
                "try again later, or raise the tables' read capacity"
            ) from refusal
        longest = min(_LONGEST_WAIT, _SHORTEST_WAIT * 2**stalls)
        sleep(random.uniform(longest / 2, longest))


class _Table(Keys):
    """The requested keys of one table, as their caller wrote them, and the items that were returned."""

    def __init__(self, name: str, keys: Iterable[Key]) -> None:
        super().__init__(name, ())  # the first key has this shape
        self._types: tuple[tuple[type, ...], ...] = ()
        # The requested key and its other spellings, by index.
        self.requested: dict[Index, Key] = {}
        self._other_spellings: dict[Index, list[Key]] = {}
        # The index by the values as written.
        indexes: dict[Index, Index] = {}
        self.items: dict[Index, Item] = {}
        for key in keys:
            values = self._values(key)
            if values not in indexes:
                index = indexes[values] = self._canonical(values, key)
                if self.requested.setdefault(index, key) is not key:
                    self._other_spellings.setdefault(index, []).append(key)

    def key(self, index: Index) -> Key:
        return self.requested[index]

    def found(self) -> list[Item]:
        return [self.items[index] for index in self.requested if index in self.items]

    def missing(self) -> list[Key]:
        return [
            key
            for index, first in self.requested.items()
            if index not in self.items
            for key in (first, *self._other_spellings.get(index, ()))
        ]

    def _values(self, key: Key) -> Index:
        """Return the values of ``key`` as written. Raises ValueError if it does not have the table's shape."""
        shape = self.shape or self._take_shape(key)
        try:
            values = tuple([key[name][kind] for name, kind in shape])
            fits = len(key) == len(shape) == sum(map(len, key.values())) and all(map(isinstance, values, self._types))
        except (KeyError, TypeError):
            fits = False
        if not fits:
            expected = ", ".join(f"{name} ({kind})" for name, kind in shape)
            raise ValueError(f"table {self.name}: {key!r} must have the attributes of the first key: {expected}")
        return tuple([bytes(value) if isinstance(value, bytearray) else value for value in values])

    def _take_shape(self, key: Key) -> tuple[tuple[str, str], ...]:
        if len(key) not in (1, 2):
            raise ValueError(f"table {self.name}: {key!r} is not a key: a key has one or two attributes")
        for name, value in key.items():
            kind = next(iter(value), "") if isinstance(value, Mapping) else ""
            if kind not in _PYTHON_TYPES or len(value) != 1:
                raise ValueError(f"table {self.name}: {key!r} is not a key: the type of {name} must be S, N or B")
            if not isinstance(value[kind], _PYTHON_TYPES[kind]):
                # Also for binary: base64 text would be mistaken for other bytes.
                wanted = "bytes" if kind == "B" else "text"
                raise ValueError(f"table {self.name}: {key!r} is not a key: {name} of type {kind} must be {wanted}")
            self.shape += ((name, kind),)
            self._types += (_PYTHON_TYPES[kind],)
        return self.shape


def _request(
    client: DynamoDBClient, tables: Mapping[str, Keys], chunk: list[Place], consistent: bool
) -> tuple[list[tuple[Place, Item]], list[Place], ClientError | None]:
    """Request the keys at ``chunk``; return items, places to request again, and the error if all were throttled."""
    request: dict[str, Any] = {}
    for name, index in chunk:
        request.setdefault(name, {"Keys": [], "ConsistentRead": consistent})["Keys"].append(tables[name].key(index))
    try:
        answer = batch_get_item(client, request)
    except ClientError as error:
        if not is_transient(error):
            raise
        return [], chunk, error
    expected = set(chunk)
    left = {name: one["Keys"] for name, one in answer.get("UnprocessedKeys", {}).items()}
    if unknown := (answer["Responses"].keys() | left) - tables.keys():
        raise RelayError(f"table {min(unknown)}: DynamoDB answered with a table that was not requested")
    items = [(name, item) for name, of_table in answer["Responses"].items() for item in of_table]
    found = [(tables[name].place_of(item, expected), item) for name, item in items]
    unprocessed = [tables[name].place_of(key, expected) for name, keys in left.items() for key in keys]
    return found, unprocessed, None


def batch_get_item(client: DynamoDBClient, items: Mapping[str, Any]) -> Mapping[str, Any]:
    """Call BatchGetItem; return the ``Responses`` and ``UnprocessedKeys``. Raises botocore's errors."""
    # The second registration does nothing.
    client.meta.events.register("before-parse.dynamodb.BatchGetItem", _replace_answer, unique_id="relay")
    token = _is_own.set(True)
    try:
        return client.batch_get_item(RequestItems=items)
    finally:
        _is_own.reset(token)


def _replace_answer(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    body = response_dict["body"]
    # Types of binary are "B" and "BS", unless an escape spells them differently.
    if not _is_own.get() or response_dict["status_code"] != 200 or b'"B"' in body or b'"BS"' in body or b"\\u" in body:
        return
    try:
        answer = orjson.loads(body)
    except ValueError:
        return
    # botocore knows how to read everything else, such as null for an absent member.
    if isinstance(answer, dict) and answer.keys() <= {"Responses", "UnprocessedKeys"} and b"null" not in body:
        customized_response_dict.update(answer)
        response_dict["body"] = b"{}"  # leave only the headers to botocore
