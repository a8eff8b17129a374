"""``envelope: debezium``: what it needs, what it excludes, and that our own readers refuse its topics."""

from __future__ import annotations

from typing import Any

import pytest

from relay.config import Config
from relay.config.topic_names import topics_of_changes
from relay.errors import ConfigError
from spark_consumers.cache_batches import CacheWork

ORDERS = {"name": "orders", "type": "dynamodb", "table": "orders"}
LEGACY = {
    "name": "legacy",
    "type": "mysql",
    "database": "d",
    "shards": {"-": ["h:1"]},
    "user": "u",
    "password": "p",
    "tables": ["items"],
}
KEYSPACE = {"name": "k", "type": "vitess", "vtgate": "h:1", "keyspace": "k", "tables": ["items"]}
REGISTRY = {"url": "http://registry:8080/apis/ccompat/v7"}


def config(*sources: dict[str, Any], **keys: Any) -> Config:
    kafka = {"bootstrap_servers": "b:1"}
    common = {"name": "shop", "kafka": kafka, "schema_registry": REGISTRY, "sources": list(sources)}
    return Config.model_validate({**common, **keys})


def test_a_source_has_the_envelope_of_the_relay_unless_it_has_its_own() -> None:
    found = config(ORDERS, {**LEGACY, "envelope": "change"}, envelope="debezium")
    assert [source.is_debezium for source in found.sources] == [True, False]
    assert not any(source.is_debezium for source in config(ORDERS, LEGACY).sources)


def test_another_envelope_is_published_otherwise() -> None:
    """A worker with another config does not publish beside it."""
    assert config(ORDERS).hashes() != config(ORDERS, envelope="debezium").hashes()
    assert config({**ORDERS, "envelope": "debezium"}).hashes() == config(ORDERS, envelope="debezium").hashes()


@pytest.mark.parametrize(
    ("keys", "source", "why"),
    [
        ({"schema_registry": None}, ORDERS, "needs `schema_registry`"),
        ({}, {**ORDERS, "key": "item"}, "the complete primary key is always the key"),
        ({}, {**ORDERS, "key": "item", "tombstones": True}, "a null follows each deletion"),
        ({}, {**ORDERS, "columns": {"a-b": "int", "a_b": "int"}}, "the columns a-b, a_b have the same name"),
        ({}, {**ORDERS, "snapshot": "initial"}, "may come after a newer change of it"),
        ({}, {**LEGACY, "snapshot": "initial"}, "`initial` does not fit"),
        ({}, {**LEGACY, "on_gap": "resnapshot"}, "`resnapshot` does not fit"),
        ({}, {**LEGACY, "on_alter": "resnapshot"}, "`resnapshot` does not fit"),
        ({}, {**KEYSPACE, "start": "copy"}, "`copy` does not fit"),
        ({"cache": {"url": "redis://r", "namespace": "n", "keys": {"orders": ["o:{id}"]}}}, ORDERS, "cannot be read"),
        ({"log": {"path": "file:///l"}}, ORDERS, "move that source to another config"),
        ({"copy": {"url": "delta:///c"}}, ORDERS, "move that source to another config"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], source: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        config(source, **{"envelope": "debezium", **keys})


def test_a_cache_of_tables_found_later_is_refused() -> None:
    """I6: no change would invalidate it."""
    cache = {"url": "redis://r", "namespace": "n", "keys": {"items": ["i:{id}"]}}
    unnamed = config(ORDERS, {**LEGACY, "envelope": "debezium", "tables": None}, cache=cache)
    with pytest.raises(ConfigError, match="cannot be read: source legacy has `envelope: debezium`"):
        unnamed.with_tables(lambda source: ["items"])
    assert unnamed.cache is not None
    with pytest.raises(ConfigError, match="source legacy has `envelope: debezium`"):
        CacheWork.of(unnamed, unnamed.cache)


def test_our_own_readers_refuse_its_topics_and_read_the_others() -> None:
    found = config(ORDERS, {**LEGACY, "envelope": "debezium"})
    assert topics_of_changes(found, ["orders"]) == ["shop.orders"]
    for names in ([], ["items"], ["shop.items"]):
        with pytest.raises(ConfigError, match=r"topic shop\.items: source legacy has `envelope: debezium`"):
            topics_of_changes(found, names)
    unnamed = config(ORDERS, {**LEGACY, "envelope": "debezium", "tables": None})
    assert topics_of_changes(unnamed, ["orders"]) == ["shop.orders"]
    with pytest.raises(ConfigError, match="source legacy"):
        topics_of_changes(unnamed, ["items"])
