"""The part of a record that invalidating a cache reads."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from relay.avro.framing import fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.cache import LoadedValue, Outcome, RedisStore, TokenCache, entry_key, generation_key
from relay.cache.keys import CacheRules, invalidations
from relay.config import CacheConfig, Config
from relay.lineage import Gap
from relay.table import Column, KeyColumn, TableSchema
from spark_consumers.dead_letters import DeadLetterTopic
from spark_consumers.decode import Decoder
from spark_consumers.invalidate import CacheConsumer
from spark_consumers.records import Layout
from spark_consumers.reduced_changes import document_reader
from tests.spark_consumers.topic import NoSchemas

KEYS = ["order:{order_id}", "customer:{customer_id}", "day:{day}"]


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


@pytest.mark.parametrize("old", ["orders", "orders1", "o", "legacy", "ddb"])
def test_a_column_that_is_no_longer_in_the_key_is_read_from_the_images(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: whichever layout of a table comes last, for example after its source was renamed."""
    config = config_of("redis://127.0.0.1:6379/0", "shop", source="orders2")
    before = TableSchema(old, "orders", (KeyColumn("customer_id", "S"), KeyColumn("order_id", "S")), 1)
    now = TableSchema("orders2", "orders", (KeyColumn("order_id", "S"),), 1)
    schemas = {single_object_header(fingerprint(s)): s for s in (change_schema(before), change_schema(now))}
    requested: dict[str, Sequence[str]] = {}

    def reduced_changes(self: Decoder, records: Any, columns: Mapping[str, Sequence[str]]) -> None:
        requested.update(columns)

    monkeypatch.setattr(Decoder, "reduced_changes", reduced_changes)
    assert config.cache is not None
    CacheConsumer(config, config.cache).stream(None, Decoder(schemas, registry=False, gaps="shop.gaps"))  # type: ignore[arg-type]
    assert requested == {"orders": ["customer_id", "day"]}


ROW = [("id", "decimal(10,2)"), ("rate", "double"), ("ratio", "float"), ("price", "decimal(20,10)"), ("tags", "set")]


@pytest.mark.parametrize(
    ("column", "printed", "expected"),
    [
        ("rate", "5.0", "5"),
        ("rate", "1.0E10", "10000000000"),
        ("ratio", "1.5E-5", "0.000015"),
        ("price", "12.5000000000", "12.5"),
        ("price", "0E-10", "0"),
        ("id", "12.50", "12.5"),
        ("tags", '["a"]', None),
    ],
)
def test_a_number_of_an_sql_row_has_one_text_in_a_cache_key_and_a_set_has_none(
    column: str, printed: str, expected: str | None
) -> None:
    """I6: the text is a contract with the application, not what the JVM prints."""
    table = TableSchema("legacy", "goods", (KeyColumn("id", "decimal(10,2)"),), 1, tuple(Column(*each) for each in ROW))
    layout = Layout.of(change_schema(table))
    image = {column: printed} if column != "id" else {}
    key = [printed if column == "id" else "1.00"]
    change = {"i": 0, "op": "INSERT", "key": key, "new": orjson.dumps(image).decode()}
    cache = CacheConfig(url="redis://h/0", namespace="shop", keys={"goods": [f"x:{{{column}}}"]})
    rules = CacheRules(cache, ())
    found = invalidations([document_reader(layout, rules)(change)], rules)
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
    layout = Layout.of(change_schema(TableSchema("legacy", "goods", (KeyColumn("id", "string"),), 1, row)))
    cache = CacheConfig(url="redis://h/0", namespace="shop", keys={"goods": ["good:{id}", "of:{customer}"]})
    rules = CacheRules(cache, ())
    change = {"i": 0, "op": "INSERT", "key": ["1"], "new": "{}"}
    found = invalidations([document_reader(layout, rules)(change)], rules)
    assert len(found.bumps) == bumps
    assert [key for key, _ in found.pairs] == ["good:1"]


def test_the_consumer_of_the_cache_reads_the_gaps_beside_the_changes() -> None:
    """I9: in one stream, so that a restart misses none."""
    config = config_of("redis://127.0.0.1:6379/0", "shop")
    assert config.cache is not None
    assert CacheConsumer(config, config.cache).topics == ["shop.orders", "shop.gaps"]


class Batch:
    """What Spark gives to a consumer: the rows of a batch, each one document of the decoder."""

    def __init__(self, *documents: Mapping[str, Any]) -> None:
        self._documents = documents

    def collect(self) -> list[tuple[bytes]]:
        return [(orjson.dumps(document),) for document in self._documents]


def gap_record(value: bytes) -> Mapping[str, Any]:
    fields = {"status": "gap", "topic": "shop.gaps", "partition": 0, "offset": 0}
    return {"x": fields | {"value": b64encode(value).decode()}}


def gap_of(source: str) -> bytes:
    return Gap(source, "stream", "shard", "trimmed", None, None, 1000.0).to_json()


@pytest.mark.services
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (gap_of("orders"), Outcome.FILLED),
        (gap_of("orders of another cache"), Outcome.HIT),
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
    with RedisStore(redis_server.url) as store, DeadLetterTopic(config, "cache", NoSchemas()) as dead_letters:
        cache = TokenCache(store, unique)
        cache.get_or_load("k", lambda key, compare: LoadedValue(b"before", {}, fresher=True))
        counts = CacheConsumer(config, config.cache).apply(Batch(gap_record(value)), 0, dead_letters, {}, {})  # type: ignore[arg-type]
        found = cache.get_or_load("k", lambda key, compare: LoadedValue(b"after", {}, fresher=True))
    assert found.outcome is expected
    assert counts["bumps"] == (expected is Outcome.FILLED)


@pytest.mark.services
def test_a_large_batch_is_applied_in_parts(redis_server: Any, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I11: of a backlog, only a part is in memory."""
    config = config_of(redis_server.url, unique)
    assert config.cache is not None
    schema = change_schema(TableSchema("orders", "orders", (KeyColumn("order_id", "S"),), 1))
    monkeypatch.setattr(Decoder, "reduced_changes", lambda self, records, columns: None)
    consumer = CacheConsumer(config, config.cache)
    decoder = Decoder({single_object_header(fingerprint(schema)): schema}, registry=False, gaps="shop.gaps")
    consumer.stream(None, decoder)  # type: ignore[arg-type]
    image = orjson.dumps({"customer_id": '{"S":"c"}', "day": '{"S":"d"}'}).decode()
    with RedisStore(redis_server.url) as store, DeadLetterTopic(config, "cache", NoSchemas()) as dead_letters:

        def is_invalidated(order: int) -> bool:
            found, _ = store.read([entry_key(unique, f"order:{order}")], generation_key(unique))
            return found[0] is not None

        class Backlog(Batch):
            def collect(self) -> Any:
                for number in range(20_000):
                    assert number != 19_999 or is_invalidated(number - 10_000)
                    change = {"i": 0, "op": "INSERT", "key": [str(number)], "new": image}
                    yield (orjson.dumps({"c": change}),)

        counts = consumer.apply(Backlog(), 0, dead_letters, {}, {"t": {"0": 9000}})  # type: ignore[arg-type]
        assert is_invalidated(19_999)
    assert counts["rows"] == 20_000
