"""The topics the relay needs: created when missing, refused when they would break an invariant."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from relay.config import Config
from relay.errors import ConfigError, Unavailable
from relay.kafka import topics
from relay.process.managed import free_port


def config(name: str, bootstrap_servers: str, *, key: str = "hash", **kafka: Any) -> Config:
    return Config.model_validate(
        {
            "name": name,
            "kafka": {"bootstrap_servers": bootstrap_servers, "partitions": 3, **kafka},
            "sources": [{"name": "orders", "type": "dynamodb", "table": "orders", "key": key}],
        }
    )


def test_an_unreachable_broker_is_named_with_the_reason_in_bounded_time() -> None:
    address = f"127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=rf"no Kafka broker answers at {address}: .*Connection refused"):
        topics.connect(config("shop", address), timeout=1.0)
    assert time.monotonic() - begun < 5


def test_a_name_that_does_not_resolve_says_so() -> None:
    with pytest.raises(Unavailable, match=r"nowhere\.invalid"):
        topics.connect(config("shop", "nowhere.invalid:9092"), timeout=2.0)


@pytest.mark.parametrize(
    ("producer", "said"),
    [
        ({"linger.mss": 5}, 'kafka.producer: No such configuration property: "linger.mss"'),
        ({"compression.type": "zip"}, "kafka.producer: Invalid value .*compression"),
    ],
)
def test_a_setting_librdkafka_does_not_know_is_a_config_error(producer: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        topics.connect(config("shop", "127.0.0.1:1", producer=producer))


def test_nothing_is_written_to_stderr_about_a_broker_that_is_not_there() -> None:
    """In a process of its own: clients of other tests may still be looking for brokers that are gone."""
    script = (
        "from relay.errors import Unavailable\n"
        "from relay.kafka import topics\n"
        "from tests.kafka.test_topics import config\n"
        f"try: topics.connect(config('shop', '127.0.0.1:{free_port()}'), timeout=0.5)\n"
        "except Unavailable: print('unavailable')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("unavailable\n", "")


@pytest.mark.parametrize(
    ("replicas", "in_sync", "brokers", "said"),
    [
        (1, 1, 1, ""),
        (3, 2, 3, ""),
        (1, 1, 3, "one replica on 3 brokers: a broker that is lost takes changes with it"),
        (3, 1, 3, "min.insync.replicas=1: a change that one broker alone has confirmed is lost with it"),
    ],
)
def test_what_a_lost_broker_would_cost_is_said(replicas: int, in_sync: int, brokers: int, said: str) -> None:
    hint = topics.replication_hint(replicas, in_sync, brokers)
    assert hint.startswith(said)
    assert bool(hint) == bool(said)


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
        admin.create_topics([NewTopic(name, partitions, config=wanted)])[name].result(30)
        deadline = time.monotonic() + 30
        while name not in admin.list_topics(timeout=10).topics:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def settings(self, admin: AdminClient, name: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        return {key: entry.value for key, entry in admin.describe_configs([resource])[resource].result(30).items()}

    def test_missing_topics_are_created_as_they_have_to_be(self, relayed: Config, admin: AdminClient) -> None:
        assert not any(found.exists for found in topics.survey(admin, relayed, ["orders"]))
        topics.ensure(admin, relayed, ["orders"])
        there = admin.list_topics(timeout=10).topics
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
        assert self.settings(admin, f"{relayed.name}.schemas")["cleanup.policy"] == "compact"
        assert self.settings(admin, f"{relayed.name}.gaps")["retention.ms"] == "-1"
        orders = self.settings(admin, f"{relayed.name}.orders")
        assert orders["cleanup.policy"] == "delete"
        assert orders["max.message.bytes"] == str(topics.LARGEST_MESSAGE)

    def test_a_topic_asked_for_before_it_was_there_is_found_once_it_is(
        self, relayed: Config, admin: AdminClient
    ) -> None:
        """A client of librdkafka that once asked in vain for a leader would never find it by itself."""
        asked = f"{relayed.name}.asked"
        with pytest.raises(Unavailable):
            topics.bounds(admin, [(asked, 0)], timeout=0.1)
        self.create(admin, asked, 1)
        assert topics.bounds(admin, [(asked, 0)]) == {(asked, 0): (0, 0)}

    def test_topics_that_are_right_are_left_alone(self, relayed: Config, admin: AdminClient) -> None:
        self.create(admin, f"{relayed.name}.orders", 3, retention_ms="1234567")
        topics.ensure(admin, relayed, ["orders"])
        topics.ensure(admin, relayed, ["orders"])
        assert self.settings(admin, f"{relayed.name}.orders")["retention.ms"] == "1234567"

    def test_another_partition_count_is_refused_naming_both_and_why(self, relayed: Config, admin: AdminClient) -> None:
        """I2."""
        self.create(admin, f"{relayed.name}.orders", 2)
        with pytest.raises(
            Unavailable, match=r"\.orders' has 2 partitions and needs 3: the changes of a key stay"
        ) as no:
            topics.ensure(admin, relayed, ["orders"])
        assert "keep `kafka.partitions: 2`, or move to a new topic in order: stop the relay" in str(no.value)
        assert '`topics` template (such as "{name}.{table}.2")' in str(no.value)
        assert "relay/kafka/README.md, Another number of partitions" in str(no.value)
        # Refused before anything else is made.
        assert f"{relayed.name}.checkpoints" not in admin.list_topics(timeout=10).topics

    def test_another_number_of_checkpoint_partitions_is_refused(self, relayed: Config, admin: AdminClient) -> None:
        """I4."""
        self.create(admin, f"{relayed.name}.checkpoints", 1, cleanup_policy="compact")
        with pytest.raises(Unavailable, match=r"\.checkpoints' has 1 partition and needs 64"):
            topics.ensure(admin, relayed, ["orders"])

    def test_a_topic_that_too_few_brokers_could_confirm_is_refused(self, relayed: Config, admin: AdminClient) -> None:
        """I1."""
        self.create(admin, f"{relayed.name}.orders", 3, min_insync_replicas="2")
        with pytest.raises(Unavailable, match=r"min\.insync\.replicas=2 and a replication factor of 1: nothing can"):
            topics.ensure(admin, relayed, ["orders"])

    @pytest.mark.parametrize("policy", ["delete", "compact,delete"])
    def test_checkpoints_and_schemas_that_kafka_would_delete_are_refused(
        self, relayed: Config, admin: AdminClient, policy: str
    ) -> None:
        """I1."""
        self.create(admin, f"{relayed.name}.checkpoints", 64, cleanup_policy=policy)
        self.create(admin, f"{relayed.name}.schemas", 1, cleanup_policy=policy)
        with pytest.raises(Unavailable) as caught:
            topics.ensure(admin, relayed, ["orders"])
        assert [line.split(" ")[2] for line in str(caught.value).splitlines()] == [
            f"'{relayed.name}.checkpoints'",
            f"'{relayed.name}.schemas'",
        ]
        assert f"has cleanup.policy={policy} and needs compact" in str(caught.value)

    def test_compacted_changes_are_refused_unless_they_are_keyed_by_item(self, kafka: Any, unique: str) -> None:
        """I1: with the hash key as the record's key, compaction would drop changes of other items."""
        by_hash = config(unique, kafka.bootstrap_servers)
        admin = topics.connect(by_hash)
        self.create(admin, f"{unique}.orders", 3, cleanup_policy="compact")
        with pytest.raises(Unavailable, match=r"has cleanup\.policy=compact and needs delete"):
            topics.ensure(admin, by_hash, ["orders"])
        topics.ensure(admin, config(unique, kafka.bootstrap_servers, key="item"), ["orders"])
