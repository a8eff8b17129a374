"""Several tables on one topic: a relay with a registry and without, and readers of one of the tables."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.schema_registry import SchemaRegistryClient

import relay as library
from relay.change import REDRIVEN
from relay.config import load
from relay.services.mariadb import MariaDB
from tests.command_line import relay as command
from tests.faults.scripted_relay import start_relay
from tests.kafka.limited_topics import limit
from tests.mysql.relayed import Relayed
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def topic(tmp_path: Path, unique: str, kafka: Any) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, "redis://127.0.0.1:1/0", shared=True)


def publish(topic: Topic) -> None:
    """Publish changes of two tables with the same keys."""
    changes = [change(f"c{number}", number + 1) for number in range(4)]
    for each in changes[::2]:
        each.source = each.table = "lines"
    topic.publish(changes)


def read(config: Path, *names: str, **options: Any) -> list[tuple[str, str]]:
    with library.changes(config, names, until_caught_up=True, **options) as changes:
        found = sorted((each.table, each.key["customer"]) for each in changes if each.key)
        if "group" in options:
            changes.commit()
        return found


def test_a_reader_that_names_a_table_gets_only_its_changes(topic: Topic) -> None:
    publish(topic)
    lines, orders = [("lines", "c0"), ("lines", "c2")], [("orders", "c1"), ("orders", "c3")]
    assert read(topic.path, "lines") == lines
    assert read(topic.path, "lines", "orders") == read(topic.path, topic.name, "lines") == [*lines, *orders]
    for names, found in (["orders"], ["orders"]), ([topic.name], ["lines", "orders"]):
        tail = command("tail", topic.path, *names, "--from-beginning", "--exit-at-end", "--json")
        shown = [json.loads(line)["value"]["table"] for line in tail.stdout.splitlines()]
        assert sorted(shown) == sorted(found * 2)


def test_a_group_that_gets_another_table_of_the_topic_gets_its_earlier_changes(topic: Topic) -> None:
    """I1: the group's offsets are after them."""
    publish(topic)
    assert len(read(topic.path, "lines", group=topic.name)) == 2
    assert read(topic.path, "lines", group=topic.name) == []
    assert len(read(topic.path, "lines", "orders", group=topic.name)) == 4
    assert len(read(topic.path, topic.name, group=topic.name)) == 4


@pytest.fixture(params=["registry", "schemas topic"])
def relay(request: pytest.FixtureRequest, tmp_path: Path, kafka: Any, mariadb: MariaDB, unique: str) -> Relayed:
    """A relay of the tables audit_a and audit_b, whose rows may have equal keys, and plain."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    for table in ("audit_a", "audit_b", "plain"):
        mariadb.execute(f"CREATE TABLE {unique}.{table} (id INT PRIMARY KEY, v TEXT)")
    relay = Relayed(tmp_path, unique, kafka.bootstrap_servers, f'{{"-": ["{mariadb.address}"]}}')
    content = yaml.safe_load(relay.path.read_text())
    content["topics"] = {"audit_*": f"{unique}.audit"}
    content["topic_settings"] = {"audit_*": {"max.message.bytes": 20_000}}
    if request.param == "registry":
        content["schema_registry"] = {"url": request.getfixturevalue("schema_registry").url}
    relay.path.write_text(yaml.safe_dump(content))
    return relay


def test_all_tables_that_match_a_pattern_go_to_one_topic_in_order(
    relay: Relayed, mariadb: MariaDB, unique: str
) -> None:
    """I2, I8: also one that appears later, one whose columns change, and one that is truncated."""

    def execute(*statements: str) -> None:
        for each in statements:
            mariadb.execute(each.format(db=unique))

    relay.run()
    running = start_relay(relay.path)
    try:
        running.wait_for("took over 64 partitions")
        execute(
            "INSERT {db}.audit_a VALUES (1, 'a')",
            "INSERT {db}.audit_b VALUES (1, 'b')",
            "CREATE TABLE {db}.audit_later (id INT PRIMARY KEY, other DATE)",
            "INSERT {db}.audit_later VALUES (1, '2026-01-01')",
            "ALTER TABLE {db}.audit_a ADD COLUMN more INT",
            "UPDATE {db}.audit_a SET more = 5",
            "INSERT {db}.audit_b VALUES (2, REPEAT('b', 30000))",
            "TRUNCATE {db}.audit_b",
            "INSERT {db}.plain VALUES (1, 'p')",
            "INSERT {db}.audit_b VALUES (3, 'last')",
        )
        wait_until(lambda: any((each["new"] or {}).get("v") == "last" for each in relay.changes("audit_b")) or None, 60)
        assert running.terminate() == 0
    finally:
        running.kill()
    relay.run()
    found = relay.changes("audit_later")
    assert found == relay.changes("audit_a")
    told = [(each["table"], each["operation"], each["key"] and each["key"]["id"]) for each in found]
    by_table = {table: [(what, key) for name, what, key in told if name == table] for table in {t for t, *_ in told}}
    assert sorted(by_table.pop("audit_b"), key=str) == sorted(
        [("INSERT", 1), ("INSERT", 2), ("INSERT", 3), ("TRUNCATE", None), ("TRUNCATE", None)], key=str
    )
    assert by_table == {"audit_a": [("INSERT", 1), ("UPDATE", 1)], "audit_later": [("INSERT", 1)]}
    assert [each["new"]["v"] for each in relay.changes("plain")] == ["p"]
    with library.changes(relay.path, ["audit_a"], until_caught_up=True) as changes:
        assert [(each.table, each.operation.value) for each in changes] == [
            ("audit_a", "INSERT"),
            ("audit_a", "UPDATE"),
        ]
    relay.command("check", str(relay.path))
    said = relay.command("repartition", str(relay.path), "audit_a", "--partitions", "4", code=2).output
    assert f"topic {unique}.audit is shared by several tables" in said
    (letter,) = json.loads(relay.command("dead-letters", "list", str(relay.path), "--json").stdout)
    assert (letter["table"], letter["topic"], letter["key"]) == ("audit_b", f"{unique}.audit", {"id": 2})
    limit(load(relay.path).kafka.bootstrap_servers, f"{unique}.audit", 100_000)
    relay.command("dead-letters", "redrive", str(relay.path), "--all")
    (sent,) = (each for each in relay.changes("audit_b") if REDRIVEN in each["attributes"])
    assert (sent["table"], len(sent["new"]["v"])) == ("audit_b", 30_000)
    if "schema_registry" in relay.path.read_text():
        subjects = subjects_of(relay, unique)
        assert subjects == {
            f"{unique}.audit-relay.shop.audit_a": 2,
            f"{unique}.audit-relay.shop.audit_b": 1,
            f"{unique}.audit-relay.shop.audit_later": 1,
            f"{unique}.plain-value": 1,
        }


def subjects_of(relay: Relayed, prefix: str) -> dict[str, int]:
    """Return the number of versions of each subject."""
    url = yaml.safe_load(relay.path.read_text())["schema_registry"]["url"]
    with closing(SchemaRegistryClient({"url": url})) as client:
        return {each: len(client.get_versions(each)) for each in client.get_subjects() if each.startswith(prefix)}
