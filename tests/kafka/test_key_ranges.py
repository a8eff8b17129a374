"""Which changes are of a range of keyspace ids; ``tests/spark_consumers/test_key_ranges.py`` reads them from topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.config import Config, load
from relay.errors import ConfigError, RelayError
from relay.kafka.changes import changes as relay_changes
from relay.kafka.key_ranges import is_within, key_range
from relay.keyrange import KeyRange
from tests.command_line import relay

VITESS = {"name": "shop", "type": "vitess", "vtgate": "127.0.0.1:1", "keyspace": "shop", "tables": ["orders"]}
DYNAMODB = {"name": "carts", "type": "dynamodb", "table": "carts", "region": "us-east-1"}
ITEMS = {"name": "all", "type": "mysql", "shards": {"-": ["127.0.0.1:1"]}, "database": "d", "user": "u"}


def written(folder: Path, *sources: dict[str, Any], **sections: Any) -> Path:
    path = folder / "relay.yaml"
    content = {"name": "r", "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "sources": list(sources), **sections}
    path.write_text(yaml.safe_dump(content))
    return path


def config(folder: Path, *sources: dict[str, Any]) -> Config:
    return load(written(folder, *sources))


def test_a_keyspace_id_is_in_one_of_the_ranges_that_partition_the_key_space() -> None:
    ranges = [KeyRange.parse(text) for text in ("-40", "40-8080", "8080-")]
    for keyspace_id in (b"", b"\0", b"\x3f\xff", b"\x40", b"\x40\0", b"\x80\x80", b"\x80\x7f\xff", b"\xff" * 9):
        assert [is_within(each, keyspace_id, "s/k/-", "t") for each in ranges].count(True) == 1


@pytest.mark.parametrize(
    ("keyrange", "shard", "expected"),
    [
        *(("-80", "-80", True), ("-80", "40-80", True), ("-80", "80-", False), ("80-", "-40", False)),
        *(("-", None, True), ("-", "0", True), ("-80", None, None), ("-80", "0", None), ("-80", "40-c0", None)),
    ],
)
def test_a_change_without_a_keyspace_id_is_where_its_shard_is(
    keyrange: str, shard: str | None, expected: bool | None
) -> None:
    """I1: where a range has a part of the shard, nobody may pass the change over."""
    wanted, named = KeyRange.parse(keyrange), shard and f"shop/shop/{shard}"
    if expected is None:
        with pytest.raises(RelayError, match="a change of table orders has no keyspace id, because the relay cannot"):
            is_within(wanted, None, named, "orders")
    else:
        assert is_within(wanted, None, named, "orders") is expected


def test_only_tables_of_vitess_have_ranges(tmp_path: Path) -> None:
    mixed = config(tmp_path, VITESS, DYNAMODB)
    assert key_range(mixed, ["r.orders"], "40-80", asked_as="--keyrange") == KeyRange.parse("40-80")
    with pytest.raises(ConfigError, match="is of type dynamodb, whose changes have no keyspace ids: name"):
        key_range(mixed, ["r.orders", "r.carts"], "-80", asked_as="--keyrange")
    several = config(tmp_path, VITESS, ITEMS)
    assert key_range(several, ["r.orders"], "-80", asked_as="--keyrange") == KeyRange.parse("-80")
    with pytest.raises(ConfigError, match="is of type mysql"):
        key_range(several, ["r.orders", "r.another"], "-80", asked_as="--keyrange")
    with pytest.raises(ConfigError, match=r"^--keyrange: '8' is not a key range"):
        key_range(mixed, ["r.orders"], "8", asked_as="--keyrange")


def test_a_range_that_is_wrong_is_called_as_whoever_asks_calls_it(tmp_path: Path) -> None:
    path = written(tmp_path, VITESS)
    with pytest.raises(ConfigError, match=r"^keyrange: '8' is not a key range"):
        next(iter(relay_changes(path, ["orders"], keyrange="8")))
    assert "--keyrange: '8' is not a key range" in relay("tail", path, "--keyrange", "8").output


def test_a_cache_and_a_copy_are_never_of_a_range(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "cache": {"url": "redis://127.0.0.1:1/0", "namespace": "r", "keys": {"orders": ["o:{id}"]}},
        "log": {"path": f"file://{tmp_path}/log"},
        "copy": {"url": f"delta://{tmp_path}/copy"},
    }
    path = written(tmp_path, VITESS, **sections)
    for kinds, why in (
        (["cache"], "a cache would serve the other rows as they were"),
        (["log", "copy"], "a copy would lack the other rows of its tables"),
        (["cache", "--engine", "python"], "only the log can be limited to a key range"),
    ):
        said = relay("consume", *kinds, path, "--keyrange", "-80")
        assert (said.exit_code, why in " ".join(said.output.split())) == (2, True), said.output
    said = relay("tail", path, "--keyrange", "80-40")
    assert (said.exit_code, "key range 80-40 is empty" in said.output) == (2, True), said.output
