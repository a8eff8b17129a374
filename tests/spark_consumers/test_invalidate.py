"""The part of a record that invalidating a cache reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, TypeVar

import orjson
import pytest

from relay.avro.encode import ChangeEncoder
from relay.avro.framing import fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.cache import LoadedValue, Outcome, RedisStore, TokenCache, entry_key, generation_key
from relay.cache.keys import CacheRules, Invalidations, invalidations
from relay.change import Change, Images, Operation
from relay.config import CacheConfig, Config
from relay.records import Gap
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken
from spark_consumers import dead_letters
from spark_consumers.cache_batches import CHUNK, chunks
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord
from spark_consumers.decode import Decoder
from spark_consumers.invalidate import CacheConsumer, LargeValueError, PackedRecords
from spark_consumers.records import DecodeStatus
from spark_consumers.value_reader import KafkaRecord, ValueReader
from tests.avro.known import Known
from tests.spark_consumers.topic import NoSchemas

T = TypeVar("T")

KEYS = ["order:{order_id}", "customer:{customer_id}", "day:{day}"]


BY_ORDER = change_schema(TableSchema("orders", "orders", (KeyColumn("order_id", "S"),), 1))
IMAGE = '{"customer_id":{"S":"c"},"day":{"S":"d"}}'


def config_of(url: str, namespace: str, source: str = "orders") -> Config:
    return Config.model_validate(
        {
            "name": "shop",
            "kafka": {"bootstrap_servers": "127.0.0.1:9"},
            "sources": [{"name": source, "type": "dynamodb", "table": "orders", "region": "us-east-1"}],
            "cache": {"url": url, "namespace": namespace, "keys": {"orders": KEYS}},
        },
        by_alias=True,
        by_name=False,
    )


def value_of(schema: dict[str, Any], key: dict[str, Any], new: Any) -> bytes:
    """Return the value of an INSERT."""
    source, table = schema["fields"][4]["type"][1]["namespace"].split(".")[1:]
    change = Change(
        event_id="e",
        operation=Operation.INSERT,
        source=source,
        table=table,
        key=key,
        old=None,
        new=new,
        images=Images.NEW_AND_OLD,
        token=EventToken(1000, "s/l/0", "DynamoDB/1"),
        committed_at=1_700_000_000_000_000,
    )
    return ChangeEncoder(schema, header_of(schema)).encode(change)


def header_of(schema: dict[str, Any]) -> bytes:
    return single_object_header(fingerprint(schema))


def found_in(cache: CacheConfig, *written: tuple[dict[str, Any], bytes]) -> Invalidations:
    """Return what values invalidate, each given with its schema."""
    rules = CacheRules(cache, ())
    schemas = Known({header_of(schema): schema for schema, _ in written})
    reader = ValueReader(schemas, rules, registry=False, others={})
    changes, others = reader.read([("t", 0, number, value) for number, (_, value) in enumerate(written)], ())
    assert others == []
    return invalidations(changes, rules)


@pytest.mark.parametrize("old", ["orders", "orders1", "o", "legacy", "ddb"])
def test_a_column_that_is_no_longer_in_the_key_is_read_from_the_images(old: str) -> None:
    """I6: whichever layout of a table comes last, for example after its source was renamed."""
    cache = config_of("redis://127.0.0.1:6379/0", "shop", source="orders2").cache
    assert cache is not None
    before = change_schema(TableSchema(old, "orders", (KeyColumn("customer_id", "S"), KeyColumn("order_id", "S")), 1))
    now = change_schema(TableSchema("orders2", "orders", (KeyColumn("order_id", "S"),), 1))
    image = '{"customer_id":{"S":"c"},"order_id":{"S":"1"},"day":{"S":"d"}}'
    first = before, value_of(before, {"customer_id": "c", "order_id": "1"}, image)
    second = now, value_of(now, {"order_id": "1"}, image)
    keys = ["order:1", "customer:c", "day:d"]
    assert [key for key, _ in found_in(cache, first, second).pairs] == keys + keys


ROW = [("id", "decimal(10,2)"), ("rate", "double"), ("ratio", "float"), ("price", "decimal(20,10)"), ("tags", "set")]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("rate", 5.0, "5"),
        ("rate", 1e10, "10000000000"),
        ("ratio", 1.5e-5, "0.000015"),
        ("price", Decimal("12.5000000000"), "12.5"),
        ("price", Decimal("0E-10"), "0"),
        ("id", Decimal("12.50"), "12.5"),
        ("tags", ["a"], None),
    ],
)
def test_a_number_of_an_sql_row_has_one_text_in_a_cache_key_and_a_set_has_none(
    column: str, value: Any, expected: str | None
) -> None:
    """I6: the text is a contract with the application, not what a database prints."""
    table = TableSchema("legacy", "goods", (KeyColumn("id", "decimal(10,2)"),), 1, tuple(Column(*each) for each in ROW))
    row = {name: None for name, _ in ROW} | {"id": Decimal("1.00"), column: value}
    schema = change_schema(table)
    cache = CacheConfig(url="redis://h/0", namespace="shop", keys={"goods": [f"x:{{{column}}}"]})
    found = found_in(cache, (schema, value_of(schema, {"id": row["id"]}, row)))
    assert [key for key, _ in found.pairs] == ([f"x:{expected}"] if expected is not None else [])
    assert bool(found.bumps) == (expected is None)


@pytest.mark.parametrize(
    ("columns", "bumps"), [(["id", "customer"], 0), (["id", "client"], 1), (["id", "customer", "rest"], 0), (["id"], 1)]
)
def test_rows_of_a_layout_without_a_column_of_a_template_invalidate_the_namespace(
    columns: Sequence[str], bumps: int
) -> None:
    """I6: a column that was renamed or dropped. Items of DynamoDB may have any attribute."""
    row = tuple(Column(name, "rest" if name == "rest" else "string") for name in columns)
    schema = change_schema(TableSchema("legacy", "goods", (KeyColumn("id", "string"),), 1, row))
    cache = CacheConfig(url="redis://h/0", namespace="shop", keys={"goods": ["good:{id}", "of:{customer}"]})
    found = found_in(cache, (schema, value_of(schema, {"id": "1"}, dict.fromkeys(columns))))
    assert len(found.bumps) == bumps
    assert [key for key, _ in found.pairs] == ["good:1"]


def test_attributes_that_are_not_declared_are_in_cache_keys() -> None:
    """I6."""
    row = (Column("id", "string"), Column("rest", "rest"))
    schema = change_schema(TableSchema("shop", "goods", (KeyColumn("id", "S"),), 1, row))
    cache = CacheConfig(url="redis://h/0", namespace="shop", keys={"goods": ["of:{customer}"]})
    value = value_of(schema, {"id": "1"}, {"id": "1", "rest": '{"customer":{"S":"ada"},"more":{"N":"1"}}'})
    assert [key for key, _ in found_in(cache, (schema, value)).pairs] == ["of:ada"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, DecodeStatus.TOMBSTONE),
        (b"", DecodeStatus.FRAMING),
        (b"\0\0\0\0\1rest", DecodeStatus.FRAMING),
        (b"\xc3\x01" + b"givenup!" + b"rest", DecodeStatus.FOREIGN),
        (b"\xc3\x01" + b"unknown!" + b"rest", DecodeStatus.SCHEMA),
    ],
)
def test_a_value_without_a_change_says_what_it_is(value: bytes | None, expected: DecodeStatus) -> None:
    cache = CacheConfig(url="redis://h/0", namespace="shop", keys={"t": ["t:{id}"]})
    reader = ValueReader(Known({}), CacheRules(cache, ()), registry=False, others={})
    changes, (other,) = reader.read([("t", 3, 7, value)], [b"\xc3\x01givenup!"])
    assert changes == []
    # Of a schema that may come, only the header: there may be a backlog.
    kept = b"\xc3\x01unknown!" if expected is DecodeStatus.SCHEMA else value or b""
    assert other == NonChangeRecord(expected, "t", 3, 7, kept)


def test_the_consumer_of_the_cache_reads_the_gaps_beside_the_changes() -> None:
    """I9: in one stream, so that a restart misses none."""
    config = config_of("redis://127.0.0.1:6379/0", "shop")
    assert config.cache is not None
    assert CacheConsumer(config, config.cache).topics == ["shop.orders", "shop.gaps"]


class Records(PackedRecords):
    """Stands in for the records of a batch in Spark."""

    is_on_cluster = False

    def __init__(self, *records: KafkaRecord) -> None:
        self._records = records

    def together(self, most: int) -> Iterator[KafkaRecord]:
        yield from self._records

    def by_partition(self, most: int) -> Iterator[KafkaRecord]:
        return self.together(most)

    def on_workers(self, work: Callable[[Iterable[KafkaRecord]], Iterable[T]]) -> list[T]:
        return list(work(self._records))


def gap_of(source: str, table: str | None = None) -> bytes:
    return Gap(source, "stream", "shard", "trimmed", None, None, 1000.0, table).to_json()


def consumer_of(config: Config, *schemas: dict[str, Any]) -> CacheConsumer:
    """Return the consumer of a query that knows ``schemas``."""
    assert config.cache is not None
    consumer = CacheConsumer(config, config.cache)
    known = {header_of(schema): schema for schema in schemas}
    consumer.stream(None, Decoder(known, registry=False, gaps="shop.gaps"))  # type: ignore[arg-type]
    return consumer


@pytest.mark.services
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (gap_of("orders"), Outcome.FILLED),
        (gap_of("orders of another cache"), Outcome.HIT),
        (gap_of("orders", table="lines"), Outcome.HIT),  # the record of the statement says which tables it changes
        (b"{}", Outcome.FILLED),
        (b"not JSON", Outcome.FILLED),
    ],
)
def test_a_gap_of_a_source_of_the_cache_or_of_nobody_knows_which_invalidates_the_namespace(
    value: bytes, expected: Outcome, redis_server: Any, unique: str
) -> None:
    """I9: the invalidations of the changes that were lost never come."""
    config = config_of(redis_server.url, unique)
    assert config.cache is not None
    dead_letters = DeadLetterTopic(config, "cache", NoSchemas())
    with RedisStore(redis_server.url) as store:
        cache = TokenCache(store, unique)
        cache.get_or_load("k", lambda key, compare: LoadedValue(b"before", {}, fresher=True))
        consumer = consumer_of(config)
        counts = consumer.apply_records(Records(("shop.gaps", 0, 0, value)), 1, dead_letters)
        found = cache.get_or_load("k", lambda key, compare: LoadedValue(b"after", {}, fresher=True))
    assert found.outcome is expected
    assert counts["bumps"] == (expected is Outcome.FILLED)


@pytest.mark.services
def test_a_dead_letter_that_cannot_be_written_is_counted_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, redis_server: Any, unique: str
) -> None:
    """I6, I12: the new generation has made up for the record, and the invalidations behind it must not wait."""
    monkeypatch.setattr(dead_letters, "_SEND_TIMEOUT", 0.3)
    config = config_of(redis_server.url, unique)  # of no broker
    topic = DeadLetterTopic(config, "cache", NoSchemas())
    counts = consumer_of(config).apply_records(Records(("shop.orders", 0, 0, b"somebody's")), 1, topic)
    assert (counts["bumps"], counts["dead_letters"], counts["lost_dead_letters"]) == (1, 0, 1)


def of_sql(url: str, namespace: str) -> Config:
    server: dict[str, Any] = {"shards": {"-": ["db:3306"]}, "database": "shop", "user": "u", "password": "p"}
    raw = config_of(url, namespace).model_dump(by_alias=True, exclude_unset=True)
    source = {"name": "legacy", "type": "mysql", "tables": ["orders", "lines"], **server}
    return Config.model_validate(raw | {"sources": [source]}, by_alias=True, by_name=False)


@pytest.mark.services
@pytest.mark.parametrize("on_workers", [False, True])
@pytest.mark.parametrize(("table", "expected"), [("orders", Outcome.FILLED), ("lines", Outcome.HIT)])
def test_a_statement_about_rows_of_a_cached_table_invalidates_the_namespace(
    table: str, expected: Outcome, on_workers: bool, redis_server: Any, unique: str
) -> None:
    """I6: no change on the topic of the table tells that its rows are others."""
    config = of_sql(redis_server.url, unique)
    assert config.cache is not None
    about = [{"table": table, "renamed_to": None, "before": None, "after": None}]
    value = orjson.dumps({"kind": "ALTER", "statement": f"ALTER TABLE {table} DROP a", "tables": about})

    class Given(Records):
        def together(self, most: int) -> Iterator[KafkaRecord]:
            if on_workers:
                raise LargeValueError
            return super().together(most)

    dead_letters = DeadLetterTopic(config, "cache", NoSchemas())
    with RedisStore(redis_server.url) as store:
        cache = TokenCache(store, unique)
        cache.get_or_load("k", lambda key, compare: LoadedValue(b"before", {}, fresher=True))
        consumer = consumer_of(config)
        assert consumer.topics == ["shop.orders", "shop.gaps", "shop.ddl"]
        counts = consumer.apply_records(Given(("shop.ddl", 0, 0, value)), 1, dead_letters)
        found = cache.get_or_load("k", lambda key, compare: LoadedValue(b"after", {}, fresher=True))
    assert (found.outcome, counts["bumps"]) == (expected, expected is Outcome.FILLED)


@pytest.mark.services
def test_a_statement_that_is_to_be_read_still_counts_when_no_source_of_sql_is_left(
    redis_server: Any, unique: str
) -> None:
    """I6: the checkpoint has its topic. Each statement became a dead letter."""
    config = config_of(redis_server.url, unique)
    about = [{"table": "orders", "renamed_to": None, "before": None, "after": None}]
    value = orjson.dumps({"kind": "ALTER", "statement": "ALTER TABLE orders DROP a", "tables": about})
    dead_letters = DeadLetterTopic(config, "cache", NoSchemas())
    consumer = consumer_of(config)
    assert consumer.topics == ["shop.orders", "shop.gaps"]
    counts = consumer.apply_records(Records(("shop.ddl", 0, 0, value)), 1, dead_letters)
    assert (counts["bumps"], counts["dead_letters"]) == (1, 0)


@pytest.mark.services
def test_the_changes_of_a_table_called_ddl_are_taken_for_changes(redis_server: Any, unique: str) -> None:
    """Without sources of SQL there are no statements, and each batch invalidated the namespace."""
    source = {"name": "orders", "type": "dynamodb", "tables": ["orders", "ddl"], "region": "us-east-1"}
    cache = {"url": redis_server.url, "namespace": unique, "keys": {"ddl": ["order:{order_id}"]}}
    raw = config_of(redis_server.url, unique).model_dump(by_alias=True, exclude_unset=True)
    config = Config.model_validate(raw | {"sources": [source], "cache": cache}, by_alias=True, by_name=False)
    schema = change_schema(TableSchema("orders.ddl", "ddl", (KeyColumn("order_id", "S"),), 1))
    record = ("shop.ddl", 0, 0, value_of(schema, {"order_id": "1"}, IMAGE))
    dead_letters = DeadLetterTopic(config, "cache", NoSchemas())
    counts = consumer_of(config, schema).apply_records(Records(record), 1, dead_letters)
    assert (counts["applied"], counts["bumps"], counts["dead_letters"]) == (1, 0, 0)


@pytest.mark.services
def test_a_large_batch_is_applied_in_parts(redis_server: Any, unique: str) -> None:
    """I11: of a backlog, only a part is in memory."""
    config = config_of(redis_server.url, unique)
    assert config.cache is not None
    consumer = consumer_of(config, BY_ORDER)
    dead_letters = DeadLetterTopic(config, "cache", NoSchemas())
    with RedisStore(redis_server.url) as store:

        def is_invalidated(order: int) -> bool:
            found, _ = store.read([entry_key(unique, f"order:{order}")], generation_key(unique))
            return found[0] is not None

        class Backlog(Records):
            def together(self, most: int) -> Iterator[KafkaRecord]:
                for number in range(20_000):
                    assert number != 19_999 or is_invalidated(number - 10_000)
                    yield "shop.orders", 0, number, value_of(BY_ORDER, {"order_id": str(number)}, IMAGE)

        counts = consumer.apply_records(Backlog(), 9000, dead_letters)
        assert is_invalidated(19_999)
    assert counts["rows"] == 20_000


@pytest.mark.services
def test_a_batch_with_a_large_value_is_applied_by_the_workers(redis_server: Any, unique: str) -> None:
    """I11: the driver would have to hold all of them."""
    config = config_of(redis_server.url, unique)
    assert config.cache is not None
    consumer = consumer_of(config, BY_ORDER)
    values = [value_of(BY_ORDER, {"order_id": order}, IMAGE) for order in ("small", "large")]

    records: list[KafkaRecord] = [("shop.orders", 0, number, value) for number, value in enumerate(values)]

    class Mixed(Records):
        is_on_workers = False

        def together(self, most: int) -> Iterator[KafkaRecord]:
            yield records[0]
            raise LargeValueError

        def on_workers(self, work: Callable[[Iterable[KafkaRecord]], Iterable[T]]) -> list[T]:
            self.is_on_workers = True
            return super().on_workers(work)

    mixed = Mixed(*records)
    dead_letters = DeadLetterTopic(config, "cache", NoSchemas())
    counts = consumer.apply_records(mixed, 2, dead_letters)
    assert mixed.is_on_workers
    assert (counts["rows"], counts["applied"]) == (2, 4)  # two orders, a customer and a day


@pytest.mark.parametrize(("size", "at_most"), [(0, CHUNK), (100, CHUNK), (1 << 20, 17), (64 << 20, 1)])
def test_no_more_is_taken_of_a_partition_at_once_than_may_be_in_memory(size: int, at_most: int) -> None:
    """I11: a partition of a batch is read by one worker of Spark, and may have 50,000 records of any size."""
    value = bytes(size) if size else None
    taken = 0

    def records() -> Iterator[KafkaRecord]:
        nonlocal taken
        for offset in range(2 * CHUNK):
            taken += 1
            yield "shop.orders", 0, offset, value

    found = chunks(records())
    first, second = next(found), next(found)
    assert (len(first), len(second), taken) == (at_most, at_most, 2 * at_most)
    assert [offset for _, _, offset, _ in first + second] == list(range(taken))


def test_the_last_records_of_a_partition_are_taken_too() -> None:
    records: list[KafkaRecord] = [("shop.orders", 0, offset, b"v") for offset in range(CHUNK + 3)]
    assert list(map(len, chunks(records))) == [CHUNK, 3]
    assert list(chunks([])) == []
