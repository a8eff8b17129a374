"""``Engine``: loads, saves and deletes objects, and searches for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from botocore.exceptions import ClientError

from relay.dynamodb.batch import Keys, Place, load_each
from relay.dynamodb.models.conditions import Condition, Placeholders
from relay.dynamodb.models.declaration import Declaration, Model, declaration_of, declarations_below
from relay.dynamodb.models.errors import (
    ConstraintViolation,
    InvalidCondition,
    InvalidModel,
    InvalidSearch,
    MissingObjects,
)
from relay.dynamodb.models.indexes import Index
from relay.dynamodb.models.search import Columns, Search, searched
from relay.dynamodb.models.tables import bound
from relay.dynamodb.models.tracking import Known, known_of
from relay.dynamodb.models.types import Wire, in_use
from relay.dynamodb.stream import Stream
from relay.dynamodb.stream_calls import code_of
from relay.dynamodb.stream_record import Record
from relay.dynamodb.stream_shard import OnGap
from relay.stream_token import InvalidStream

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

M = TypeVar("M", bound=Model)
R = TypeVar("R")

Item = Mapping[str, Wire]


class InvalidatesRows(Protocol):
    """A cache: ``relay.cache.TokenCache``."""

    def invalidate_rows(self, templates: Sequence[str], *rows: Mapping[str, Any]) -> bool: ...


class Engine:
    """Reads and writes the objects of declared tables. Threads may share it, but not an object::

        engine = Engine(boto3.client("dynamodb"))
        engine.bind(Order)
        engine.save(Order(customer="ada", number=1, total=Decimal("9.50")))

    ``streams``: a client of ``dynamodbstreams``, for ``stream``. ``table_name``: returns the name of the table for the
    name that a class declares. ``consistent``: whether items are read consistently by default; a global index never is.
    ``strict``: search a local index only for columns that it projects.

    All methods raise botocore's errors, ``InvalidModel`` for a class without a table, and ``InvalidValue`` for a value
    that is not of its column's type, in an object before anything is written, or in the table.
    """

    def __init__(
        self,
        client: DynamoDBClient,
        streams: DynamoDBStreamsClient | None = None,
        *,
        table_name: Callable[[str], str] = str,
        consistent: bool = False,
        strict: bool = False,
    ) -> None:
        self.client = client
        self.streams = streams
        self._consistent = consistent
        self._strict = strict
        self._table_name = table_name
        self._verified: set[Declaration] = set()

    def table_name(self, model: type[Model]) -> str:
        return self._table_name(declaration_of(model).table)

    def bind(self, *models: type[Model], patience: float = 300.0, sleep: Callable[[float], None] = time.sleep) -> None:
        """Make sure that the tables of these classes and their subclasses are as declared.

        Missing tables are created, and awaited for up to ``patience`` seconds. A time to live is enabled where there is
        none; nothing else of an existing table is changed. Correct tables are remembered by class. Raises
        ``TableMismatch`` with every difference, and ``Unavailable`` for a table that does not become active.
        """
        wanted = [each for each in declarations_below(models) if each not in self._verified]
        bound(self.client, [(each, self._table_name(each.table)) for each in wanted], patience, sleep)
        self._verified.update(wanted)

    # ------------------------------------------------------------------ single items

    @in_use
    def load(self, *objects: Model, consistent: bool | None = None) -> None:
        """Read the items of objects, which need their keys, into the objects: 100 keys per request, each key once.

        Raises ``MissingObjects`` with the objects that have no item; all others are loaded.
        """
        declared = {model: declaration_of(model) for model in map(type, objects)}
        keys = {
            model: Keys(self._table_name(of.table), tuple([(each.attribute, str(each.type.kind)) for each in of.key]))
            for model, of in declared.items()
        }
        tables = {each.name: each for each in keys.values()}
        for name, table in tables.items():
            models = [model for model, each in keys.items() if each.name == name]
            if any(keys[model].shape != table.shape for model in models):  # I8: N "1" would be mistaken for S "1"
                names = " and ".join(model.__name__ for model in models)
                raise InvalidModel(f"{names} declare different keys for the table {name}")
        # Keys are typed and ordered, so (a, b) is not (b, a).
        wanted: dict[Place, list[Model]] = {}
        for each in {id(each): each for each in objects}.values():
            table, key = keys[type(each)], declared[type(each)].key_of(each)
            wanted.setdefault((table.name, tuple([key[name][kind] for name, kind in table.shape])), []).append(each)
        for place, item in load_each(self.client, tables, iter([*wanted]), consistent=self._is_consistent(consistent)):
            for each in wanted.pop(place):
                declared[type(each)].fill(each, item, declared[type(each)].names)
        missing = [each for of_key in wanted.values() for each in of_key]
        if missing:
            shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
            raise MissingObjects(f"{len(missing)} of {len(objects)} objects are not in their tables: {shown}", missing)

    @in_use
    def save(
        self,
        *objects: Model,
        condition: Condition | None = None,
        atomic: bool = False,
        cache: InvalidatesRows | None = None,
    ) -> None:
        """Write the columns that were set, deleted or loaded; all other attributes of the items stay as they are.

        ``condition``: the item must meet it. ``atomic``: the item must be as the object last saw it; absent if it was
        neither loaded nor saved. Each object is a separate request, in order; the first failure ends the call. Raises
        ``ConstraintViolation``.

        ``cache``: drops the item's entries, under the class' ``cache_keys``, before this returns or raises.
        """
        for each in objects:
            known, declared = known_of(each), declaration_of(type(each))
            wires = {
                declared.columns[name].attribute: declared.columns[name].wire(each)
                for name in (known.marked & declared.names) - declared.key_names()
            }
            key = self._write(self.client.update_item, each, wires, condition, atomic, cache)
            known.seen = {**wires, **key}

    @in_use
    def delete(
        self,
        *objects: Model,
        condition: Condition | None = None,
        atomic: bool = False,
        cache: InvalidatesRows | None = None,
    ) -> None:
        """Delete the items of objects. Takes the arguments, and raises the errors, of ``save``."""
        for each in objects:
            self._write(self.client.delete_item, each, {}, condition, atomic, cache)
            known_of(each).seen = None

    def _write(
        self,
        call: Callable[..., Any],
        of: Model,
        wires: Mapping[str, Wire | None],
        condition: Condition | None,
        atomic: bool,
        cache: InvalidatesRows | None,
    ) -> dict[str, Wire]:
        """Write an item, and return its key. ``wires``: the attributes to set, or to remove for None."""
        declared, known, placeholders = declaration_of(type(of)), known_of(of), Placeholders()
        owner, key = declared.model.__name__, declared.key_of(of)
        if cache is not None and not declared.cache_keys:
            unknown = "so the entries to drop from the cache are not known: declare them"
            raise InvalidModel(f"{owner} declares no cache_keys, {unknown}")
        request = _condition(declared, known, condition, atomic, placeholders)
        if wires:
            request["UpdateExpression"] = _update(wires, placeholders)
        if cache is not None:
            request["ReturnValues"] = "ALL_OLD"  # I6: the old item may be in the cache under another key
        request |= {"TableName": self._table_name(declared.table), "Key": key, **placeholders.arguments}
        # Until an answer says otherwise: after a refusal, too, which may be of the second try of a write that was done.
        old: Mapping[str, Wire | None] = known.seen or {}
        left: Mapping[str, Wire] = {}
        try:
            old = left = call(**request).get("Attributes", {})
        except ClientError as error:
            if code_of(error) == "ConditionalCheckFailedException":
                raise ConstraintViolation(f"{owner} {key}: the item does not meet the condition") from error
            raise
        finally:
            if cache is not None:  # I6: before returning, drop the item both as it was and as it will be
                rows = old, {**left, **wires, **key}
                present = [{name: wire for name, wire in row.items() if wire is not None} for row in rows]
                cache.invalidate_rows(declared.cache_keys, *present)
        return key

    # ------------------------------------------------------------------ searches

    @in_use
    def query(
        self,
        model: type[M],
        key: Condition,
        *,
        index: Index | None = None,
        filter: Condition | None = None,
        projection: Columns = "all",
        consistent: bool | None = None,
        forward: bool = True,
    ) -> Search[M]:
        """Return the items with a hash key, from the table or an index, in the order of the range key.

        ``key``: the hash key ``==`` a value, and at most one condition on the range key. ``filter``: any other
        condition, which DynamoDB applies after reading. ``projection``: ``all`` columns of the index, ``count``, or the
        columns to read. ``forward``: ascending. Raises ``InvalidSearch``, ``InvalidCondition``.
        """
        declared, table = declaration_of(model), self.table_name(model)
        consistent = self._is_consistent(consistent, index)
        request, names = searched(declared, table, index, key, filter, projection, consistent, self._strict)
        request["ScanIndexForward"] = forward
        return Search(self.client.query, request, declared, index, partial(self._call, declared.made, names=names))

    @in_use
    def scan(
        self,
        model: type[M],
        *,
        index: Index | None = None,
        filter: Condition | None = None,
        projection: Columns = "all",
        consistent: bool | None = None,
        parallel: tuple[int, int] | None = None,
    ) -> Search[M]:
        """Return all items from the table or an index.

        ``parallel``: the number of this part, from 0, and the number of all parts that are scanned in parallel. For
        the other arguments, see ``query``.
        """
        declared, table = declaration_of(model), self.table_name(model)
        consistent = self._is_consistent(consistent, index)
        request, names = searched(declared, table, index, None, filter, projection, consistent, self._strict)
        if parallel is not None:
            segment, total = parallel
            if not 0 <= segment < total:
                raise InvalidSearch(f"parallel={parallel}: the number of the part must be from 0 to {total - 1}")
            request |= {"Segment": segment, "TotalSegments": total}
        return Search(self.client.scan, request, declared, index, partial(self._call, declared.made, names=names))

    def _is_consistent(self, consistent: bool | None, index: Index | None = None) -> bool:
        by_default = self._consistent and (index is None or (isinstance(index, Index) and index.is_local))
        return by_default if consistent is None else consistent

    # ------------------------------------------------------------------ streams

    def stream(
        self,
        model: type[Model],
        position: str | datetime | Mapping[str, Any] = "trim_horizon",
        *,
        on_gap: OnGap | None = None,
    ) -> Stream:
        """Read the newest stream of a class' table, with objects as images. Takes the arguments of a ``Stream``."""
        table, owner = self.table_name(model), model.__name__
        if self.streams is None:
            use = 'use Engine(client, boto3.client("dynamodbstreams"))'
            raise InvalidStream(f"the engine has no client to read the stream of {owner}: {use}")
        arn = self.client.describe_table(TableName=table)["Table"].get("LatestStreamArn")
        if arn is None:
            raise InvalidStream(f"table {table} of {owner} has no stream: enable one, with the view type that you want")
        stream = _ModelStream(self.streams, arn, position, model=model, on_gap=on_gap)
        stream.engine = self
        return stream

    @in_use
    def _call(self, function: Callable[..., R], *arguments: Any, **options: Any) -> R:
        return function(*arguments, **options)


class _ModelStream(Stream):
    engine: Engine

    def __next__(self) -> Record | None:
        return self.engine._call(super().__next__)


def _condition(
    declared: Declaration, known: Known, condition: Condition | None, atomic: bool, placeholders: Placeholders
) -> dict[str, Any]:
    parts = []
    if condition is not None:
        if not isinstance(condition, Condition):
            raise InvalidCondition(f"{condition!r} is not a condition: compare a column of {declared.model.__name__}")
        attributes = {each.attribute for each in declared.columns.values()}
        for column in condition.columns():
            if column.path[0] not in attributes:
                raise InvalidCondition(f"{column!r} cannot be tested: {declared.model.__name__} does not have it")
        parts.append(condition.render(placeholders))
    if atomic:
        # An item always has its key.
        seen = {declared.key[0].attribute: None} if known.seen is None else known.seen
        for name, wire in sorted(seen.items()):
            path = placeholders.path(name)
            test = f"attribute_not_exists({path})" if wire is None else f"{path} = {placeholders.value(wire)}"
            parts.append(f"({test})")
    return {"ConditionExpression": " AND ".join(parts)} if parts else {}


def _update(wires: Mapping[str, Wire | None], placeholders: Placeholders) -> str:
    sets = [f"{placeholders.path(n)} = {placeholders.value(w)}" for n, w in sorted(wires.items()) if w is not None]
    removes = [placeholders.path(name) for name, wire in sorted(wires.items()) if wire is None]
    return " ".join(f"{clause} {', '.join(each)}" for clause, each in (("SET", sets), ("REMOVE", removes)) if each)
