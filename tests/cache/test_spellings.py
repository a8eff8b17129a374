"""One row or item that is found by several spellings of its key: none of them is ever answered from before a change."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import boto3
import pymysql
import pytest
from hypothesis import strategies as st

from relay.avro.framing import fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.cache import Codec, DynamoDBLoader, Invalidator, MemoryStore, PrimaryLoader, TokenCache, cached, key_text
from relay.cache.keys import CacheRules, invalidations
from relay.config import CacheConfig
from relay.dynamodb.values import canonical_number
from relay.kafka.topic_writer import TopicWriter
from relay.types.sql import TYPES, Form, defined
from spark_consumers.value_reader import ValueReader
from tests.avro.known import Known
from tests.benchmarks.changes import finished
from tests.cache.sources import create_orders
from tests.examples import draw
from tests.mysql.column_types import matrix_of
from tests.mysql.shards import begin, open_at, read_to_head, source_of

pytestmark = pytest.mark.services

VALUE: Codec[Any] = Codec(lambda row: str(row["v"]).encode(), int)
REFUSED = {"float", "set", "uuid", "inet4", "inet6"}  # by `relay check`, as columns of a cache key
UNNAMED = {"geometry", "vector", "json"}  # nobody finds rows by their texts
ANNOTATIONS = {"int": int, "long": int, "decimal": Decimal, "double": float, "bytes": bytes}


def spellings(text: str) -> list[str]:
    """Return texts by which somebody may look for the value with this text in a key, itself among them."""
    made = [text, f"0{text}", f"{text}0", f"{text}.0", f"{text}e0", f"+{text}", f" {text}", f"{text} "]
    made += [text.swapcase(), text.replace(" ", "T"), text.rstrip("0"), text.rstrip("="), text[2:], "1"]
    made += [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC")]
    return [*dict.fromkeys(made)]


class Tables:
    """A table for each type that a column of a cache key may have, with one row, and what a relay publishes of them."""

    def __init__(self, stack: ExitStack, server: Any, database: str) -> None:
        self.server, self.database = server, database
        server.execute(f"CREATE DATABASE {database}")
        stack.callback(server.execute, f"DROP DATABASE {database}")
        self.connection = stack.enter_context(closing(self.connect()))
        self.caches = [TokenCache(MemoryStore(), "shop") for _ in range(3)]  # one for each way to read
        fit = [
            (definition, literal)
            for definition, literal, *_ in matrix_of(server)
            if " as (" not in definition and defined(definition).type.name not in REFUSED | UNNAMED
        ]
        self.all = [Table(stack, self, f"t{number}", *each) for number, each in enumerate(fit)]
        self.kinds = {defined(definition).type.name for definition, _ in fit}
        cache = CacheConfig(
            url="redis://h/0", namespace="shop", keys={table.name: [table.template] for table in self.all}
        )
        self.rules = CacheRules(cache, ())
        source = source_of(database, server)
        stack.callback(source.close)
        self.reader = stack.enter_context(closing(open_at(source, begin(source)["-"])))

    def connect(self) -> Any:
        connection = self.server.connect(database=self.database)
        with connection.cursor() as cursor:
            cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        return connection

    def execute(self, statement: str, *values: Any) -> Sequence[Any]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            found: Sequence[Any] = cursor.fetchall()
        return found

    def relay(self) -> None:
        """Invalidate what the changes since the last call invalidate, by way of their bytes on a topic."""
        changes, pages = read_to_head(self.reader)
        for schema in {table.table: table for page in pages for table in page.tables}.values():
            of_table = [change for change in changes if change.table == schema.table]
            messages = finished(TopicWriter(schema, "t", 1, "hash", Headers()), of_table)
            written = change_schema(schema)
            known = Known({single_object_header(fingerprint(written)): written})
            reader = ValueReader(known, self.rules, registry=False, others={})
            reduced, others = reader.read([("t", 0, 0, message[0]) for message in messages], ())
            assert others == []
            found = invalidations(reduced, self.rules)
            assert not found.bumps
            for cache in self.caches:
                Invalidator(cache.store, "shop").apply(found.pairs)

    def check(self) -> None:
        """Check that whatever is asked gets the answer that it gets without the cache."""
        wrong = [each for table in self.all for each in table.differing()]
        assert not wrong, wrong[:9]


class Headers:
    """A registry that returns headers without publishing the schemas."""

    def register(self, topic: str, schema: Any) -> bytes:
        return single_object_header(fingerprint(schema))


class Table:
    """One table, and the ways in which an application reads it."""

    def __init__(self, stack: ExitStack, tables: Tables, name: str, definition: str, literal: str) -> None:
        self.tables, self.name, self.definition, self.literal = tables, name, definition, literal
        self.template = f"{name}:{{k}}"
        self.type = defined(definition).type
        tables.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, k {definition}, v INT)")
        self.loader = stack.enter_context(closing(PrimaryLoader(tables.connect, self.read, key=self.template)))
        self.spellings = ["1"]
        self.cache, by_text, by_type = tables.caches
        self.functions: list[Any] = [cached(by_text, key=self.template, codec=VALUE)(self.by_text)]
        kind = date if self.type.name == "date" else ANNOTATIONS.get(str(defined(definition).carried).split("(")[0])
        if kind is not None:
            typed = lambda k: self.found(k)  # noqa: E731
            typed.__annotations__["k"] = kind
            self.functions.append(cached(by_type, key=self.template, codec=VALUE)(typed))

    def insert(self) -> None:
        self.tables.execute(f"INSERT INTO {self.name} (id, k, v) VALUES (1, {self.literal}, 1)")
        (row,) = self.rows("id = 1")
        self.spellings = spellings(key_text("{k}", row))
        if isinstance(row["k"], str):
            self.spellings += spellings(row["k"])

    def respell(self) -> None:
        """Change the key to a text that the collation of the column may take for the same."""
        if self.type.form is Form.TEXT:
            self.tables.execute(f"UPDATE {self.name} SET k = %s", self.spellings[0].swapcase())

    def rows(self, where: str, *values: Any) -> list[dict[str, Any]]:
        shown = "CAST(k AS CHAR)" if self.type.form is Form.TIME and self.type.name != "date" else "k"
        found = self.tables.execute(f"SELECT {shown}, v FROM {self.name} WHERE {where}", *values)
        # A TIMESTAMP as Python has it; the zero one stays text.
        times = [k.replace(tzinfo=UTC) if isinstance(k, datetime) else k for k, _ in found]
        return [{"k": k, "v": v} for k, (_, v) in zip(times, found, strict=True)]

    def found(self, k: Any) -> dict[str, Any] | None:
        where = "k = %s"
        if isinstance(k, str) and self.type.form in (Form.BYTES, Form.PADDED):
            where = "k = FROM_BASE64(%s)"
        elif isinstance(k, str) and self.type.form is Form.BIT:
            where = "k = CONV(HEX(FROM_BASE64(%s)), 16, 10)"
        elif self.type.name == "year":
            where = "k = %s + 0"  # as a text, 0 is the year 2000
        try:
            rows = self.rows(where, k)
        except pymysql.MySQLError:
            return None  # it is not a value of the type
        return rows[0] if rows else None

    def by_text(self, k: str) -> dict[str, Any]:
        """Return the row that the collation finds. None would be cached: for that it would have to compare exactly."""
        row = self.found(k)
        if row is None:
            raise LookupError
        return row

    def read(self, cursor: Any, keys: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], bytes]]:
        for key in keys:
            row = self.found(key.removeprefix(f"{self.name}:"))
            if row is not None:
                yield row, str(row["v"]).encode()

    def differing(self) -> Iterator[tuple[Any, ...]]:
        keys = {f"{self.name}:{spelling}": spelling for spelling in self.spellings}
        true = self.loader.load_many(dict.fromkeys(keys))
        for key, got in self.cache.get_many(keys, self.loader.load_many).items():
            if got.value != true[key].value:
                yield self.definition, "loader", keys[key], got, true[key].value
        for function in self.functions:
            for spelling in self.spellings:
                argument = function._key.call(spelling).values["k"]  # as it is read
                got, wanted = answer(function, spelling), answer(function.__wrapped__, argument)
                if got != wanted:
                    yield self.definition, type(argument), spelling, got, wanted


def answer(function: Callable[..., Any], argument: Any) -> Any:
    try:
        found = function(argument)
    except LookupError:
        return LookupError
    return found["v"] if isinstance(found, dict) else found


OTHER_SERVER = pytest.mark.faults(
    "the other server: what reads and invalidates keys does not know which, and this is tried on MariaDB"
)


@pytest.mark.parametrize("kind", ["mariadb", pytest.param("mysql", marks=OTHER_SERVER)])
def test_no_spelling_of_a_key_of_any_type_is_answered_from_before_a_change(
    kind: str, unique: str, request: pytest.FixtureRequest
) -> None:
    """I6: before there is a row, and after each change of it, for all that compares as equal to its key."""
    with ExitStack() as stack:
        tables = Tables(stack, request.getfixturevalue(kind), unique)
        assert {each.name for each in TYPES.values()} - REFUSED - UNNAMED - tables.kinds <= {"nchar"}
        for table in tables.all:
            table.insert()
        for step in ("DELETE FROM {}", None, "UPDATE {} SET v = 2", "respell", "DELETE FROM {}"):
            for table in tables.all:
                if step is None:
                    table.insert()
                elif step == "respell":
                    table.respell()
                else:
                    tables.execute(step.format(table.name))
            tables.relay()
            tables.check()
            tables.check()  # also of what is cached now


MORE = pytest.mark.faults("more of what is drawn at random: the same test with three numbers")


@pytest.mark.parametrize("has_template", [True, False])
@pytest.mark.parametrize("numbers", [3, pytest.param(20, marks=MORE)])
def test_no_spelling_of_an_items_number_is_answered_from_before_a_change(
    dynamodb: Any, orders: str, has_template: bool, numbers: int
) -> None:
    """I6: DynamoDB takes all texts of a number for one."""
    drawn = st.decimals(-(10**9), 10**9, allow_nan=False, places=3) | st.integers(-(10**37), 10**37).map(Decimal)

    def changed(number: Decimal) -> None:
        check_spellings_of(number, dynamodb, orders, has_template)

    draw(numbers, drawn, play=changed)


def check_spellings_of(number: Decimal, dynamodb: Any, orders: str, has_template: bool) -> None:
    """Check that all texts of a number are answered with its item of now, after each change of it."""
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynamodb.endpoint_url)
    template = "order:{customer}:{number}"
    canonical = canonical_number(str(number))
    cache = TokenCache(MemoryStore(), "shop")

    def primary_key(key: str) -> Mapping[str, Any]:
        _, customer, text = key.split(":")
        # With the template also where the text that is asked for cannot be seen any more.
        return {"customer": {"S": customer}, "number": {"N": canonical_number(text) if has_template else text}}

    loader = DynamoDBLoader(client, orders, primary_key, key=template if has_template else None)

    @cached(cache, key=template)
    def order(customer: str, number: Decimal) -> dict[str, Any] | None:
        key = {"customer": {"S": customer}, "number": {"N": str(number)}}
        return client.get_item(TableName=orders, Key=key, ConsistentRead=True).get("Item")

    legal = []
    for text in spellings(canonical):
        with suppress(ValueError):
            if canonical_number(text) == canonical:
                legal.append(text)
    assert len(legal) >= 3

    def check(total: int | None) -> None:
        keys = [f"order:ann:{text}" for text in legal]
        for _ in range(2):
            values = [each.value for each in cache.get_many(keys, loader.load_many).values()]
            values += [cache.get_or_load(key, loader.load).value for key in keys]
            assert {value and b'"total":{"N":"%d"}' % (total or 0) in value for value in values} == {total and True}
            items = [order("ann", text) for text in legal]  # type: ignore[arg-type]
            assert {item and item["total"]["N"] for item in items} == {total and str(total)}

    def change(write: Callable[..., Any], **arguments: Any) -> None:
        write(TableName=orders, **arguments)
        item = {"customer": "ann", "number": {"N": canonical}}
        Invalidator(cache.store, "shop").apply([(key_text(template, item), None)])

    key = primary_key(f"order:ann:{canonical}")
    change(client.delete_item, Key=key)
    check(None)
    for total in (1, 2):
        change(client.put_item, Item={**key, "total": {"N": str(total)}})
        check(total)
    change(client.delete_item, Key=key)
    check(None)


@pytest.fixture
def orders(dynamodb: Any, unique: str) -> Iterator[str]:
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynamodb.endpoint_url)
    create_orders(client, unique)
    yield unique
    client.delete_table(TableName=unique)
