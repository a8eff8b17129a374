"""The partitions and settings of each table's topic, as ``topic_settings`` of the config says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from relay.config import load
from relay.config.config import Config
from relay.errors import ConfigError

HEAD = 'name: shop\nkafka: {bootstrap_servers: "b:1"}\n'


def config(folder: Path, settings: str, tables: Sequence[str] = ("orders",), more: str = "", *sets: str) -> Config:
    file = folder / "relay.yaml"
    source = f"{{name: s, type: dynamodb, tables: [{', '.join(tables)}]{more}}}"
    file.write_text(f"{HEAD}topic_settings: {settings}\nsources: [{source}]\n", encoding="utf-8")
    return load(file, sets)


def said(found: Config, table: str) -> dict[str, str]:
    return {name: value for name, (_, value) in found.topic_settings_of(table).items()}


def test_each_setting_comes_from_the_table_or_from_the_first_pattern_that_has_it_or_from_the_default(
    tmp_path: Path,
) -> None:
    found = config(
        tmp_path,
        '{orders: {partitions: 24, preallocate: true}, "o*": {partitions: 12, retention.ms: 5}, "*s": {retention.ms: 7,'
        " min.cleanable.dirty.ratio: 0.25}, default: {partitions: 3, retention.ms: -1, replication.factor: 3}}",
        ["orders", "old", "lines", "item", "default"],
    )
    ratio = {"min.cleanable.dirty.ratio": "0.25", "replication.factor": "3"}
    assert said(found, "orders") == {"partitions": "24", "preallocate": "true", "retention.ms": "5", **ratio}
    assert said(found, "old") == {"partitions": "12", "retention.ms": "5", "replication.factor": "3"}
    assert said(found, "lines") == {"partitions": "3", "retention.ms": "7", **ratio}
    assert said(found, "appears later") == {"partitions": "3", "retention.ms": "-1", "replication.factor": "3"}
    assert said(found, "default") == said(found, "appears later")


def test_a_small_share_is_a_number_as_kafka_writes_it(tmp_path: Path) -> None:
    found = config(tmp_path, "{orders: {min.cleanable.dirty.ratio: 0.00001}}")
    assert said(found, "orders")["min.cleanable.dirty.ratio"] == "0.00001"


def test_a_table_without_a_number_of_partitions_of_its_own_has_that_of_all(tmp_path: Path) -> None:
    found = config(tmp_path, "{orders: {retention.ms: 5}, lines: {partitions: 2}}", ["orders", "lines", "items"])
    assert [found.partitions(table) for table in found.tables] == [6, 2, 6]


def test_settings_may_come_from_variables_and_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("N", "12")
    settings = '{orders: {partitions: "${N}"}}'
    found = config(tmp_path, settings, ["orders"], "", "topic_settings.orders={partitions: 8, retention.ms: 5}")
    assert said(found, "orders") == {"partitions": "8", "retention.ms": "5"}
    assert config(tmp_path, settings).partitions("orders") == 12


@pytest.mark.parametrize(
    ("settings", "more", "problem"),
    [
        ("{}", "", "3:17: `topic_settings`: must name at least one table, or be left out"),
        ("[orders]", "", "3:17: `topic_settings` must be a mapping of keys to values, not a list"),
        ("{orders: 12}", "", "3:26: `topic_settings.orders`: must be a mapping of settings to values, such as "
         "{partitions: 12, retention.ms: 86400000}"),
        ("{orders: {}}", "", "3:26: `topic_settings.orders`: must be a mapping of settings to values, such as "
         "{partitions: 12, retention.ms: 86400000}"),
        ("{ordrs: {partitions: 2}}", "",
         "3:25: `topic_settings.ordrs`: no source reads table 'ordrs'; did you mean `orders`?"),
        ("{orders: {retention.m: 2}}", "",
         "3:40: `topic_settings.orders.retention.m`: is not a setting of topics; did you mean `retention.ms`?"),
        ("{orders: {retention.ms: 7d}}", "",
         "3:41: `topic_settings.orders.retention.ms`: must be a whole number"),
        ("{orders: {partitions: 0}}", "",
         "3:39: `topic_settings.orders.partitions`: must be a whole number from 1 to 10000"),
        ("{orders: {partitions: 10001}}", "",
         "3:39: `topic_settings.orders.partitions`: must be a whole number from 1 to 10000"),
        ("{orders: {preallocate: 1}}", "", "3:40: `topic_settings.orders.preallocate`: must be true or false"),
        ("{orders: {retention.ms: [1]}}", "",
         "3:41: `topic_settings.orders.retention.ms`: must be text, a number, true or false"),
        ("{orders: {min.cleanable.dirty.ratio: 2}}", "",
         "3:54: `topic_settings.orders.min.cleanable.dirty.ratio`: must be a number from 0 to 1"),
        ("{orders: {compression.type: zip}}", "", "3:45: `topic_settings.orders.compression.type`: must be producer or "
         "uncompressed or gzip or snappy or lz4 or zstd"),
        ("{default: {unclean.leader.election.enable: true}}", "",
         "3:60: `topic_settings.default.unclean.leader.election.enable`: must be false, because Kafka could lose "
         "changes that it has confirmed"),
        ("{orders: {cleanup.policy: compact}}", "",
         "3:43: `topic_settings.orders.cleanup.policy`: must be delete for table 'orders', unless the source has `key: "
         "item`: Kafka would delete all but the last record of each key"),
        ('{"o*": {cleanup.policy: "compact,delete"}}', ", envelope: debezium",
         "3:41: `topic_settings.o*.cleanup.policy`: must be delete for table 'orders': Kafka would refuse the record "
         "of a TRUNCATE, which has no key in Debezium's envelope"),
        ("{orders: {min.insync.replicas: 3}, default: {replication.factor: 2}}", "",
         "3:48: `topic_settings.orders.min.insync.replicas`: is more than the `replication.factor` of 2 for table "
         "'orders': nothing could be written"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_its_place(tmp_path: Path, settings: str, more: str, problem: str) -> None:
    """I1: neither compaction nor a lack of replicas is asked for where it would lose changes."""
    with pytest.raises(ConfigError) as refused:
        config(tmp_path, settings, ["orders"], more)
    lines = str(refused.value).splitlines()
    assert f"{tmp_path / 'relay.yaml'}:{problem}" in lines
    assert len(lines) == 1 + bool(more)  # the other is that Debezium's envelope needs a registry


def test_topics_keyed_by_item_may_be_compacted_and_vendors_have_settings_of_their_own(tmp_path: Path) -> None:
    settings = "{orders: {cleanup.policy: compact, confluent.placement.constraints: x, redpanda.remote.write: true}}"
    found = said(config(tmp_path, settings, ["orders"], ", key: item"), "orders")
    assert (found["cleanup.policy"], found["redpanda.remote.write"]) == ("compact", "true")
