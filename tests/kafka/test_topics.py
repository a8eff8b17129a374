"""The topics that the relay requires: created when missing, refused when they would break an invariant."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from relay.config import Config
from relay.errors import ConfigError, NoAnswer, Unavailable
from relay.kafka import compaction, topics
from relay.kafka.partition_offsets import offset_bounds
from tests.kafka.configs import config
from tests.listening import NOBODY
from tests.waiting import wait_until


def test_an_unreachable_broker_is_reported_with_the_reason_in_bounded_time() -> None:
    address = NOBODY
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=rf"no Kafka broker answers at {address}: .*Connection refused"):
        topics.connect(config("shop", address), timeout=3.0)
    assert time.monotonic() - begun < 60


def test_a_broker_that_hangs_is_not_said_to_close_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        address = f"127.0.0.1:{hangs.getsockname()[1]}"
        relayed = config("shop", address, producer={"api.version.request.timeout.ms": 1500, "socket.timeout.ms": 1500})
        with pytest.raises(Unavailable, match=rf"at {address}: .* does not answer: it hangs, or"):
            topics.connect(relayed, timeout=12.0)


def test_a_host_name_that_does_not_resolve_is_reported() -> None:
    with pytest.raises(Unavailable, match=r"nowhere\.invalid"):
        topics.connect(config("shop", "nowhere.invalid:9092"), timeout=2.0)


@pytest.mark.parametrize(
    ("producer", "said"),
    [
        ({"linger.mss": 5}, 'kafka.producer: No such configuration property: "linger.mss"'),
        ({"compression.type": "zip"}, "kafka.producer: Invalid value .*compression"),
    ],
)
def test_a_setting_that_librdkafka_does_not_accept_is_a_config_error(producer: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        topics.connect(config("shop", "127.0.0.1:1", producer=producer))


def test_a_broker_that_went_away_since_it_was_connected_to_may_answer_later() -> None:
    """I10: a new table gets its topic then, instead of the relay ending."""
    relayed = config("shop", NOBODY, producer={"socket.timeout.ms": 1500})
    gone = AdminClient(relayed.client("admin"), logger=topics.SILENT_LOG)
    with pytest.raises(NoAnswer, match=r"cannot look up the offsets of shop\.orders\[0\]"):
        offset_bounds(gone, [("shop.orders", 0)], timeout=0.1)


@pytest.mark.processes
def test_librdkafka_writes_nothing_to_stderr_about_an_unreachable_broker() -> None:
    """In a process of its own: clients of other tests may still be looking for brokers that have ended."""
    script = (
        "from relay.errors import Unavailable\n"
        "from relay.kafka import topics\n"
        "from tests.kafka.configs import config\n"
        f"try: topics.connect(config('shop', '{NOBODY}'), timeout=0.5)\n"
        "except Unavailable: print('unavailable')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True)
    assert (done.stdout, done.stderr) == ("unavailable\n", "")


@pytest.mark.parametrize(
    ("replicas", "in_sync", "brokers", "said"),
    [
        (1, 1, 1, ""),
        (3, 2, 3, ""),
        (1, 1, 3, "1 replica on 3 brokers: losing one broker would lose changes"),
        (3, 1, 3, "min.insync.replicas=1: losing one broker could lose changes that only it has confirmed"),
    ],
)
def test_the_hint_says_what_losing_one_broker_would_cost(replicas: int, in_sync: int, brokers: int, said: str) -> None:
    hint = topics.replication_hint(replicas, in_sync, brokers)
    assert hint.startswith(said)
    assert bool(hint) == bool(said)


def test_the_topics_keep_what_the_relay_cannot_do_without() -> None:
    """I1, I2, I4: as many partitions as keys and checkpoints are spread over, and dead letters for ever."""
    wanted = {topic.name: topic for topic in topics.required(config("shop", "127.0.0.1:9"), ["orders"])}
    assert wanted["shop.orders"].partitions == config("shop", "127.0.0.1:9").kafka.partitions != 1
    assert wanted["shop.checkpoints"].partitions == topics.CHECKPOINT_PARTITIONS
    assert wanted["shop.dead_letters"].settings["retention.ms"] == "-1"
    assert wanted["shop.gaps"].settings["retention.ms"] == "-1"


def test_statements_have_one_topic_with_one_partition_that_keeps_them() -> None:
    """I2: the statements of a shard are in order."""
    source = {"name": "shop", "type": "mysql", "shards": {"-": ["h:1"]}, "database": "d", "user": "u", "password": "p"}
    kafka = {"bootstrap_servers": "127.0.0.1:9"}
    relayed = Config.model_validate({"name": "shop", "kafka": kafka, "sources": [source]})
    (ddl,) = [topic for topic in topics.required(relayed, ["orders"]) if topic.name == "shop.ddl"]
    assert (ddl.partitions, ddl.compacted, bool(ddl.uncompactable)) == (1, False, True)
    assert ddl.settings["retention.ms"] == "-1"
    assert "shop.ddl" not in {topic.name for topic in topics.required(config("shop", "127.0.0.1:9"), ["orders"])}


@pytest.mark.services
class TestOnABroker:
    @pytest.fixture
    def relayed(self, kafka: Any, unique: str) -> Config:
        return config(unique, kafka.bootstrap_servers)

    @pytest.fixture
    def admin(self, relayed: Config) -> AdminClient:
        return topics.connect(relayed)

    def create(self, admin: AdminClient, name: str, partitions: int, **settings: str) -> None:
        wanted = {key.replace("_", "."): value for key, value in settings.items()}
        admin.create_topics([NewTopic(name, partitions, config=wanted)])[name].result(120)
        wait_until(lambda: name in admin.list_topics(timeout=60).topics)

    def settings(self, admin: AdminClient, name: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        return {key: entry.value for key, entry in admin.describe_configs([resource])[resource].result(120).items()}

    def test_missing_topics_are_created_with_the_required_settings(self, relayed: Config, admin: AdminClient) -> None:
        assert not any(found.exists for found in topics.survey(admin, relayed, ["orders"]))
        topics.create_missing(admin, relayed, ["orders"])
        there = admin.list_topics(timeout=60).topics
        counts = {name: len(there[name].partitions) for name in there if name.startswith(f"{relayed.name}.")}
        assert counts == {
            f"{relayed.name}.orders": 3,
            f"{relayed.name}.checkpoints": 64,
            f"{relayed.name}.schemas": 1,
            f"{relayed.name}.gaps": 1,
            f"{relayed.name}.watermarks": 1,
            f"{relayed.name}.dead_letters": 1,
        }
        assert self.settings(admin, f"{relayed.name}.checkpoints")["cleanup.policy"] == "compact"
        for name in ("checkpoints", "watermarks"):
            found = self.settings(admin, f"{relayed.name}.{name}")
            assert {setting: found[setting] for setting in compaction.PROMPT} == compaction.PROMPT
        assert not any(each.advice for each in topics.survey(admin, relayed, ["orders"]))
        assert self.settings(admin, f"{relayed.name}.schemas")["cleanup.policy"] == "compact"
        assert self.settings(admin, f"{relayed.name}.gaps")["retention.ms"] == "-1"
        orders = self.settings(admin, f"{relayed.name}.orders")
        assert orders["cleanup.policy"] == "delete"
        assert orders["max.message.bytes"] == str(topics.LARGEST_MESSAGE)

    def test_a_client_that_asked_for_a_topic_too_early_finds_it_once_it_exists(
        self, relayed: Config, admin: AdminClient
    ) -> None:
        """By itself, a librdkafka client that has once asked for a missing topic never learns its leader."""
        asked = f"{relayed.name}.asked"
        with pytest.raises(Unavailable):
            offset_bounds(admin, [(asked, 0)], timeout=0.1)
        self.create(admin, asked, 1)
        assert offset_bounds(admin, [(asked, 0)]) == {(asked, 0): (0, 0)}

    def test_existing_topics_are_not_altered(self, relayed: Config, admin: AdminClient) -> None:
        self.create(admin, f"{relayed.name}.orders", 3, retention_ms="1234567")
        topics.create_missing(admin, relayed, ["orders"])
        topics.create_missing(admin, relayed, ["orders"])
        assert self.settings(admin, f"{relayed.name}.orders")["retention.ms"] == "1234567"

    def test_a_topic_that_kafka_compacts_late_is_used_with_a_warning_that_has_the_remedy(
        self, relayed: Config, admin: AdminClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A topic that somebody has created."""
        self.create(admin, f"{relayed.name}.checkpoints", 64, cleanup_policy="compact", segment_bytes="104857600")
        topics.create_missing(admin, relayed, ["orders"])
        command = (
            f"run `kafka-configs --bootstrap-server {relayed.kafka.bootstrap_servers} --alter --entity-type topics "
            f"--entity-name {relayed.name}.checkpoints --add-config segment.bytes=1048576,max.compaction.lag.ms=600000,"
            "delete.retention.ms=3600000`"
        )
        assert command in caplog.text
        self.alter(admin, command)
        wait_until(lambda: not any(each.advice for each in topics.survey(admin, relayed, ["orders"])), 30)

    def test_a_topic_of_changes_that_is_compacted_before_slow_consumers_come_has_a_warning(
        self, kafka: Any, unique: str, admin: AdminClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        """I1: such as a DELETE of which only the null behind it is left, which tells a consumer nothing."""
        relayed = config(unique, kafka.bootstrap_servers, key="item")
        self.create(admin, f"{unique}.orders", 3, cleanup_policy="compact")
        topics.create_missing(admin, relayed, ["orders"])
        assert "has min.compaction.lag.ms=0: a consumer that is further behind misses changes" in caplog.text
        self.alter(admin, caplog.text[caplog.text.index("`kafka-configs") :].partition("`\n")[0])
        # A broker learns of its new settings a moment later.
        wait_until(lambda: not any(each.advice for each in topics.survey(admin, relayed, ["orders"])), 30)

    def alter(self, admin: AdminClient, command: str) -> None:
        """Do what the command of ``kafka-configs`` does."""
        words = command.strip("`").split()
        resource = ConfigResource(ResourceType.TOPIC, words[words.index("--entity-name") + 1])
        for setting in words[words.index("--add-config") + 1].split(","):
            name, _, value = setting.partition("=")
            resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
        admin.incremental_alter_configs([resource])[resource].result(120)

    def test_a_checkpoints_topic_that_soon_forgets_deletions_is_refused(
        self, relayed: Config, admin: AdminClient
    ) -> None:
        """I4: a worker would resume from a checkpoint that was deleted."""
        self.create(admin, f"{relayed.name}.checkpoints", 64, cleanup_policy="compact", delete_retention_ms="60000")
        with pytest.raises(Unavailable, match=r"has delete\.retention\.ms=60000 but needs 3600000: .*=3600000`$"):
            topics.create_missing(admin, relayed, ["orders"])

    def test_another_number_of_partitions_is_refused_with_the_reason_and_the_remedy(
        self, relayed: Config, admin: AdminClient
    ) -> None:
        """I2."""
        self.create(admin, f"{relayed.name}.orders", 2)
        with pytest.raises(
            Unavailable, match=r"\.orders' has 2 partitions but needs 3: the changes of a key stay"
        ) as refused:
            topics.create_missing(admin, relayed, ["orders"])
        assert "if it has always had 2, set `kafka.partitions: 2`; to spread its changes" in str(refused.value)
        assert "run `relay repartition CONFIG TABLE --partitions 3`" in str(refused.value)
        # It is refused before any topic is created.
        assert f"{relayed.name}.checkpoints" not in admin.list_topics(timeout=60).topics

    def test_a_topic_that_was_repartitioned_before_it_was_shared_needs_its_number_in_the_config(
        self, kafka: Any, unique: str, admin: AdminClient
    ) -> None:
        """I9: only the source that had the topic for itself knows what was requested."""
        self.create(admin, f"{unique}.all", 4)
        for tables in (["orders"], ["orders", "lines"]):
            relayed = Config.model_validate(
                {
                    "name": unique,
                    "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 3},
                    "topics": "{name}.all",
                    "sources": [{"name": table, "type": "dynamodb", "table": table} for table in tables],
                }
            )
            found = topics.survey(admin, relayed, tables, lambda: {f"{unique}.all": 4})
            (problem,) = (each.problem for each in found if each.topic.name == f"{unique}.all")
            assert ("has 4 partitions but needs 3" in problem) == (len(tables) > 1)

    def test_another_number_of_checkpoint_partitions_is_refused(self, relayed: Config, admin: AdminClient) -> None:
        """I4."""
        self.create(admin, f"{relayed.name}.checkpoints", 1, cleanup_policy="compact")
        with pytest.raises(Unavailable, match=r"\.checkpoints' has 1 partition but needs 64"):
            topics.create_missing(admin, relayed, ["orders"])

    def test_a_topic_with_too_few_replicas_to_be_written_to_is_refused(
        self, relayed: Config, admin: AdminClient
    ) -> None:
        """I1."""
        self.create(admin, f"{relayed.name}.orders", 3, min_insync_replicas="2")
        with pytest.raises(
            Unavailable, match=r"nothing can be written .* min\.insync\.replicas=2 but a replication factor of 1"
        ):
            topics.create_missing(admin, relayed, ["orders"])

    @pytest.mark.parametrize("policy", ["delete", "compact,delete"])
    def test_topics_of_checkpoints_and_schemas_with_a_deleting_policy_are_refused(
        self, relayed: Config, admin: AdminClient, policy: str
    ) -> None:
        """I1."""
        self.create(admin, f"{relayed.name}.checkpoints", 64, cleanup_policy=policy)
        self.create(admin, f"{relayed.name}.schemas", 1, cleanup_policy=policy)
        with pytest.raises(Unavailable) as caught:
            topics.create_missing(admin, relayed, ["orders"])
        assert [line.split(" ")[1] for line in str(caught.value).splitlines()] == [
            f"'{relayed.name}.checkpoints'",
            f"'{relayed.name}.schemas'",
        ]
        assert f"has cleanup.policy={policy} but needs compact" in str(caught.value)

    def test_a_compacted_topic_of_changes_is_refused_unless_keyed_by_item(self, kafka: Any, unique: str) -> None:
        """I1: with the hash key as the record's key, compaction would drop changes of other items."""
        by_hash = config(unique, kafka.bootstrap_servers)
        admin = topics.connect(by_hash)
        self.create(admin, f"{unique}.orders", 3, cleanup_policy="compact")
        with pytest.raises(Unavailable, match=r"has cleanup\.policy=compact but needs delete"):
            topics.create_missing(admin, by_hash, ["orders"])
        topics.create_missing(admin, config(unique, kafka.bootstrap_servers, key="item"), ["orders"])
        sources = [source.model_copy(update={"envelope": "debezium"}) for source in by_hash.sources]
        of_debezium = by_hash.model_copy(update={"sources": sources})
        with pytest.raises(Unavailable, match=r"needs delete: Kafka would refuse the record of a TRUNCATE"):
            topics.create_missing(admin, of_debezium, ["orders"])
