"""What invalidating a cache asks of the records of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from relay.avro.framing import fingerprint, single_object_header
from relay.avro.rows import KeyColumn, TableSchema, change_schema
from relay.config import Config
from spark_consumers.decode import Decoder
from spark_consumers.invalidate import CacheConsumer

KEYS = ["order:{order_id}", "customer:{customer_id}", "day:{day}"]


@pytest.mark.parametrize("old", ["orders", "orders1", "o", "legacy", "ddb"])
def test_a_column_that_was_of_the_key_is_asked_of_the_images_where_it_is_no_longer(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: whichever of the layouts of a table is met last, as after its source was given another name."""
    config = Config.model_validate(
        {
            "name": "shop",
            "kafka": {"bootstrap_servers": "127.0.0.1:9"},
            "sources": [{"name": "orders2", "type": "dynamodb", "table": "orders", "region": "us-east-1"}],
            "cache": {"url": "redis://127.0.0.1:6379/0", "namespace": "shop", "keys": {"orders": KEYS}},
        },
        by_alias=True,
        by_name=False,
    )
    before = TableSchema(old, "orders", (KeyColumn("customer_id", "S"), KeyColumn("order_id", "S")), 1)
    now = TableSchema("orders2", "orders", (KeyColumn("order_id", "S"),), 1)
    schemas = {single_object_header(fingerprint(s)): s for s in (change_schema(before), change_schema(now))}
    asked: dict[str, Sequence[str]] = {}

    def touched(self: Decoder, records: Any, columns: Mapping[str, Sequence[str]]) -> None:
        asked.update(columns)

    monkeypatch.setattr(Decoder, "touched", touched)
    assert config.cache is not None
    CacheConsumer(config, config.cache).stream(None, Decoder(schemas, registry=False, gaps="shop.gaps"))  # type: ignore[arg-type]
    assert asked == {"orders": ["customer_id", "day"]}
