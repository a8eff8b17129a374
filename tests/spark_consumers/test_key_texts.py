"""An application's cache keys and the invalidated ones are the same texts, for values of every column type (I6).

The application renders keys with ``relay.cache.key_text`` from what its driver or boto3 returns; consumers render them
from Avro.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from boto3.dynamodb.types import Binary, TypeDeserializer

from relay.avro.columns import shortest
from relay.avro.framing import SINGLE_OBJECT_HEADER, fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.cache.keys import CacheRules, invalidations, key_text
from relay.change import Change, Images, Operation
from relay.config import CacheConfig
from relay.dynamodb.columns import TypedRows
from relay.dynamodb.values import image_json, key_value
from relay.kafka.topic_writer import TopicWriter
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken
from spark_consumers.records import DecodeStatus
from spark_consumers.value_reader import ValueReader
from tests.avro.known import Known
from tests.benchmarks.changes import finished

TOKEN = EventToken(1000, "s/l/0", "DynamoDB/1")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Make = Callable[[random.Random], tuple[Any, Any]]
"""Makes a value as the relay has it, and as the application has it."""


def same(make: Callable[[random.Random], Any]) -> Make:
    def both(chance: random.Random) -> tuple[Any, Any]:
        value = make(chance)
        return value, value

    return both


def text(chance: random.Random) -> str:
    return "".join(chance.choices("aZ09 é表\U0001f600{}:\"'\\\x00\n.", k=chance.randint(0, 9)))


def decimal(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    def make(chance: random.Random) -> Decimal:
        digits = chance.choice([0, 1, 10**scale, 12 * 10**scale, chance.randrange(10 ** chance.randint(1, precision))])
        return Decimal((chance.randint(0, 1), tuple(map(int, str(digits))), -scale))

    return make


def single(chance: random.Random) -> float:
    number = struct.unpack("<f", struct.pack("<I", chance.getrandbits(32)))[0]
    return shortest(struct.pack("<f", number)) if math.isfinite(number) else 3.99


def double(chance: random.Random) -> float:
    number: float = struct.unpack("<d", struct.pack("<Q", chance.getrandbits(64)))[0]
    return number if math.isfinite(number) else chance.choice([0.1, -0.0, 1e23, 2e-3, 1e16, 123456789.0])


def day(chance: random.Random) -> tuple[str, date]:
    found = date(1, 1, 1) + timedelta(days=chance.randrange(3_600_000))
    return found.isoformat(), found


def instant(chance: random.Random) -> tuple[int, datetime | str]:
    """A TIMESTAMP: microseconds, and a time in any time zone; the zero one, as the text that drivers return."""
    microseconds = chance.choice([0, 1, 1_700_000_000_500_000, chance.randrange(2**31 * 10**6)])
    if not microseconds:
        return 0, chance.choice(["0000-00-00 00:00:00", "0000-00-00 00:00:00.000", "0000-00-00 00:00:00.000000"])
    zone = timezone(timedelta(minutes=chance.randint(-720, 720)))
    return microseconds, (EPOCH + timedelta(microseconds=microseconds)).astimezone(zone)


SQL: Mapping[str, tuple[str, Make]] = {
    "tiny": ("int", same(lambda chance: chance.randint(-128, 127))),
    "big": ("long", same(lambda chance: chance.randint(-(2**63), 2**63 - 1))),
    "unsigned": ("decimal(20,0)", same(lambda chance: chance.getrandbits(64))),
    "cents": ("decimal(12,2)", same(decimal(12, 2))),
    "exact": ("decimal(38,10)", same(decimal(38, 10))),
    "finest": ("decimal(65,30)", same(decimal(65, 30))),
    "single": ("float", same(single)),
    "double": ("double", same(double)),
    "name": ("string", same(text)),
    "day": ("string", day),
    "clock": ("string", same(lambda chance: f"2024-01-01 00:00:{chance.randint(10, 59)}.{chance.randint(0, 9)}00")),
    "stamp": ("timestamp", instant),
    "raw": ("bytes", same(lambda chance: chance.randbytes(chance.choice([0, 1, 16, 100, 300])))),
}
"""By name, the column type and values of each that an SQL table may have, but for sets, which no key holds."""


def number(chance: random.Random) -> str:
    return chance.choice(
        ["0", "-0", "1.50", "1E+23", "100", "-0.001", f"{double(chance)}", str(chance.getrandbits(90))]
    )


def attribute(chance: random.Random) -> dict[str, Any]:
    kind = chance.choice(["S", "N", "B", "BOOL"])
    values: dict[str, Callable[[random.Random], Any]] = {
        "S": text,
        "N": number,
        "B": lambda chance: chance.randbytes(chance.choice([0, 1, 100])),
        "BOOL": lambda chance: chance.random() < 0.5,
    }
    return {kind: values[kind](chance)}


DECLARED = {
    "s": "string",
    "b": "bytes",
    "yes": "boolean",
    "i": "int",
    "l": "long",
    "d": "double",
    "n": "decimal(38,10)",
    "t": "timestamp",
    "any": "json",
}


def of_resource(value: Any) -> Any:
    """Return a DynamoDB value as boto3's resources return it."""
    if "N" in value:
        return Decimal(value["N"])  # the deserializer refuses more digits than DynamoDB has
    found = TypeDeserializer().deserialize(value)
    assert isinstance(found, (str, Binary, bool))
    return found


class Case:
    """Changes of one table, and by their id the rows as the application has them."""

    def __init__(self, table: TableSchema, names: Sequence[str]) -> None:
        self.table = table
        self.names = ["id", *names]
        self.changes: list[Change] = []
        self.rows: dict[str, list[Mapping[str, Any]]] = {}
        cache = CacheConfig(
            url="redis://h/0", namespace="n", keys={table.table: [f"{name}={{{name}}}" for name in self.names]}
        )
        self.cache = cache

    def add(self, key: Mapping[str, Any], image: Any, *rows: Mapping[str, Any]) -> None:
        change = Change(
            str(len(self.changes)),
            Operation.INSERT,
            self.table.source,
            self.table.table,
            key,
            None,
            image,
            Images.NEW,
            TOKEN,
            1,
        )
        self.changes.append(change)
        self.rows[f"id={key['id']}"] = [*rows]

    @property
    def values(self) -> list[bytes]:
        return [message[0] for message in finished(TopicWriter(self.table, "t", 1, "hash", _Headers()), self.changes)]

    def check(self, keys: Sequence[Sequence[str]]) -> None:
        """Check the keys that the changes invalidate, in any order of the changes."""
        assert len(keys) == len(self.rows)
        for of_change in keys:
            for row in self.rows[of_change[0]]:
                wanted = [key_text(f"{name}={{{name}}}", row) for name in self.names if row.get(name) is not None]
                assert list(of_change) == wanted


class _Headers:
    """A registry that returns headers without publishing the schemas."""

    def register(self, topic: str, schema: Any) -> bytes:
        return single_object_header(fingerprint(schema))


def sql_case(chance: random.Random, count: int) -> Case:
    keys = [KeyColumn("id", "string"), *(KeyColumn(f"key_{name}", kind) for name, (kind, _) in SQL.items())]
    columns = [Column(key.name, key.type) for key in keys] + [Column(name, kind) for name, (kind, _) in SQL.items()]
    case = Case(TableSchema("sql", "goods", tuple(keys), 1, tuple(columns)), [column.name for column in columns[1:]])
    for n in range(count):
        relayed, had = {"id": str(n)}, {"id": str(n)}
        for name, (_, make) in SQL.items():
            for column in (f"key_{name}", name):
                if column == name and chance.random() < 0.1:
                    relayed[column] = had[column] = None  # type: ignore[assignment]
                else:
                    relayed[column], had[column] = make(chance)
        case.add({key.name: relayed[key.name] for key in keys}, relayed, had)
    return case


def dynamodb_case(chance: random.Random, count: int, declared: Mapping[str, str]) -> Case:
    keys = (KeyColumn("id", "S"), KeyColumn("range", chance.choice("SNB")))
    rows = TypedRows({"id": "string", **declared}) if declared else None
    table = TableSchema("ddb", "items", keys, 1, rows.columns if rows else None)
    case = Case(table, ["range", *DECLARED, "undeclared"])
    for n in range(count):
        item = {name: attribute(chance) for name in (*DECLARED, "undeclared") if chance.random() < 0.9}
        ranges = {"S": text(chance) or "s", "N": number(chance), "B": chance.randbytes(9)}
        item |= {"id": {"S": str(n)}, "range": {keys[1].type: ranges[keys[1].type]}}
        item = {name: item[name] for name in sorted(item)}
        key = {each.name: key_value(item[each.name]) for each in keys}
        resource = {name: of_resource(value) for name, value in item.items()}
        case.add(key, rows.row(item) if rows else image_json(item), item, resource)
    return case


def cases(count: int) -> list[Case]:
    chance = random.Random(7)
    return [
        sql_case(chance, count),
        *(dynamodb_case(chance, count, declared) for _ in range(3) for declared in ({}, DECLARED)),
    ]


def test_a_damaged_value_is_a_change_or_damaged_and_ends_no_consumer() -> None:
    """I12, for each byte of values of all column types: one record's damage would be that of all behind it."""
    for case in cases(2):
        schema = change_schema(case.table)
        schemas = Known({single_object_header(fingerprint(schema)): schema})
        rules = CacheRules(case.cache, ())
        reader = ValueReader(schemas, rules, registry=False, others={})
        for value in case.values:
            damaged = [
                value[:at] + bytes([value[at] ^ flip]) + value[at + 1 :]
                for at in range(SINGLE_OBJECT_HEADER, len(value))
                for flip in (0x01, 0x40, 0xFF)
            ]
            changes, others = reader.read([("t", 0, number, each) for number, each in enumerate(damaged)], ())
            assert len(changes) + len(others) == len(damaged)
            assert {record.status for record in others} == {DecodeStatus.DAMAGED}
            invalidations(changes, rules)


def test_keys_are_the_same_texts() -> None:
    for case in cases(300):
        _check_texts(case)


def _check_texts(case: Case) -> None:
    schema = change_schema(case.table)
    rules = CacheRules(case.cache, ())
    reader = ValueReader(Known({single_object_header(fingerprint(schema)): schema}), rules, registry=False, others={})
    found = []
    for number, value in enumerate(case.values):
        changes, others = reader.read([("t", 0, number, value)], ())
        assert others == []
        found.append(invalidations(changes, rules))
    assert not any(one.bumps for one in found)
    case.check([[key for key, _ in one.pairs] for one in found])
