"""The partitions and settings that the config names for a table's topic: a topic is created with them, and compared."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from relay.config import Config
from relay.errors import Unavailable
from relay.kafka import topics
from relay.kafka.permissions import forbidden_topics
from relay.operations import check
from tests.listening import NOBODY
from tests.waiting import wait_until

pytestmark = pytest.mark.services

NOWHERE = {"endpoint_url": f"http://{NOBODY}", "region": "us-east-1"}


def config(kafka: Any, name: str, settings: dict[str, dict[str, Any]], *, key: str = "hash") -> Config:
    tables = ["orders", "lines"]
    return Config.model_validate(
        {
            "name": name,
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 3},
            "topic_settings": settings,
            "sources": [{"name": "s", "type": "dynamodb", "tables": tables, "key": key, **NOWHERE}],
        }
    )


def anywhere(kafka: Any, name: str, settings: dict[str, dict[str, Any]], *, key: str = "hash") -> Config:
    """A config whose source finds its tables."""
    source = {"name": "s", "type": "mysql", "shards": {"-": ["h:1"]}, "database": "d", "key": key}
    servers = {"bootstrap_servers": kafka.bootstrap_servers}
    return Config.model_validate({"name": name, "kafka": servers, "topic_settings": settings, "sources": [source]})


def settings_of(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return {name: entry.value for name, entry in admin.describe_configs([resource])[resource].result(120).items()}


def advice(admin: AdminClient, relayed: Config, table: str = "orders") -> str:
    (found,) = [each for each in topics.survey(admin, relayed, [table]) if each.topic.name == relayed.topic(table)]
    return found.advice


def alter(admin: AdminClient, command: str) -> None:
    """Do what a command of ``kafka-configs`` does."""
    words = command.split()
    resource = ConfigResource(ResourceType.TOPIC, words[words.index("--entity-name") + 1])
    for setting in words[words.index("--add-config") + 1].split(","):
        name, _, value = setting.partition("=")
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(120)


def test_each_topic_is_created_with_the_partitions_and_settings_of_its_table(kafka: Any, unique: str) -> None:
    wanted = {"partitions": 5, "replication.factor": 1, "retention.ms": 86400000, "max.message.bytes": 2000000}
    relayed = config(kafka, unique, {"orders": wanted, "default": {"min.insync.replicas": 1, "retention.ms": -1}})
    admin = topics.connect(relayed)
    topics.create_missing(admin, relayed, ["orders", "lines"])
    there = admin.list_topics(timeout=60).topics
    assert [len(there[relayed.topic(table)].partitions) for table in ("orders", "lines")] == [5, 3]
    found = [settings_of(admin, relayed.topic(table)) for table in ("orders", "lines")]
    assert [(each["retention.ms"], each["max.message.bytes"]) for each in found] == [
        ("86400000", "2000000"),
        ("-1", str(topics.LARGEST_MESSAGE)),
    ]
    assert [advice(admin, relayed, table) for table in ("orders", "lines")] == ["", ""]
    assert settings_of(admin, f"{unique}.gaps")["retention.bytes"] == "-1"


def test_what_an_existing_topic_lacks_is_named_with_the_command_that_gives_it(
    kafka: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    relayed = config(kafka, unique, {"orders": {"retention.ms": 86400000}})
    admin = topics.connect(relayed)
    topics.create_missing(admin, relayed, ["orders"])
    policy = {"replication.factor": 2, "retention.ms": 5000, "segment.ms": 60000}
    other = config(kafka, unique, {"orders": policy})
    topics.create_missing(admin, other, ["orders"])
    said = (
        "it has retention.ms=86400000, segment.ms=604800000, but `topic_settings` says retention.ms=5000, "
        f"segment.ms=60000: run `kafka-configs --bootstrap-server {kafka.bootstrap_servers} --alter --entity-type "
        f"topics --entity-name {unique}.orders --add-config retention.ms=5000,segment.ms=60000`"
    )
    replicas = (
        "it has replication.factor=1, but `topic_settings` says 2: move its replicas with `kafka-reassign-partitions`"
    )
    assert advice(admin, other) == f"{said}; {replicas}"
    assert said in caplog.text
    assert settings_of(admin, f"{unique}.orders")["retention.ms"] == "86400000"  # nothing was altered
    alter(admin, said.partition("`kafka-configs")[2].rstrip("`"))
    wait_until(lambda: advice(admin, other) == replicas, 60)


def test_check_says_what_will_be_created_and_what_an_existing_topic_lacks(kafka: Any, unique: str) -> None:
    settings = {"orders": {"partitions": 5, "replication.factor": 1, "retention.ms": 5000}}
    relayed = config(kafka, unique, settings)
    found = {each.check: (each.detail, each.exit_code) for each in check.run(relayed)}
    wanted = "will be created with 5 partitions, replication.factor=1, retention.ms=5000"
    assert found[f"topic {unique}.orders"] == (wanted, 0)
    admin = topics.connect(relayed)
    topics.create_missing(admin, config(kafka, unique, {"orders": {"partitions": 5}}), ["orders"])
    found = {each.check: (each.detail, each.exit_code) for each in check.run(relayed)}
    detail, code = found[f"topic {unique}.orders"]
    assert (detail.partition(": run")[0], code) == (
        "5 partitions; it has retention.ms=604800000, but `topic_settings` says retention.ms=5000",
        0,
    )


def test_another_number_of_partitions_names_the_key_of_its_table(kafka: Any, unique: str) -> None:
    """I2"""
    relayed = config(kafka, unique, {"ord*": {"partitions": 2}})
    admin = topics.connect(relayed)
    topics.create_missing(admin, relayed, ["orders"])
    with pytest.raises(
        Unavailable, match=r"has 2 partitions but needs 4: .*always had 2, set `topic_settings\.orders\.partitions: 2`"
    ):
        topics.create_missing(admin, config(kafka, unique, {"orders": {"partitions": 4}}), ["orders"])


def test_a_compacted_topic_leaves_its_consumers_a_week(kafka: Any, unique: str) -> None:
    settings = {"orders": {"cleanup.policy": "delete,compact"}}
    relayed = config(kafka, unique, settings, key="item")
    admin = topics.connect(relayed)
    topics.create_missing(admin, relayed, ["orders", "lines"])
    found = settings_of(admin, f"{unique}.orders")
    assert (set(found["cleanup.policy"].split(",")), found["min.compaction.lag.ms"]) == (
        {"compact", "delete"},
        "604800000",
    )
    assert settings_of(admin, f"{unique}.lines")["cleanup.policy"] == "delete"
    assert advice(admin, relayed) == ""


def test_the_topic_of_a_table_that_appears_is_not_created_compacted_if_that_would_lose_changes(
    kafka: Any, unique: str
) -> None:
    """I1: which tables there are is not known when the config is read."""
    settings = {"or*": {"cleanup.policy": "compact"}}
    by_hash = anywhere(kafka, unique, settings)
    admin = topics.connect(by_hash)
    with pytest.raises(Unavailable, match=r"orders' would have cleanup\.policy=compact but needs delete: Kafka would"):
        topics.create_missing(admin, by_hash, ["orders"])
    assert f"{unique}.orders" not in admin.list_topics(timeout=60).topics
    topics.create_missing(admin, anywhere(kafka, unique, settings, key="item"), ["orders"])
    assert settings_of(admin, f"{unique}.orders")["cleanup.policy"] == "compact"


def test_a_setting_that_only_the_brokers_refuse_is_found_before_the_topic_is_needed(kafka: Any, unique: str) -> None:
    relayed = config(kafka, unique, {"orders": {"replication.factor": 3}, "lines": {"segment.bytes": 3}})
    admin = topics.connect(relayed)
    found = forbidden_topics(admin, topics.survey(admin, relayed, ["orders", "lines"]))
    assert "cannot be created: Unable to replicate the partition 3 time(s)" in found[f"{unique}.orders"]
    assert "cannot be created: Invalid value 3 for configuration segment.bytes" in found[f"{unique}.lines"]
    with pytest.raises(Unavailable, match="cannot create topic"):
        topics.create_missing(admin, relayed, ["orders", "lines"])
