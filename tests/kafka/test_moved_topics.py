"""A table that was relayed goes to another topic only once that is confirmed: its readers would miss its changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from relay.config import load
from relay.kafka.checkpoints import committed_records, partition_of
from relay.records import UnplannedTable
from relay.services.mariadb import MariaDB
from tests.command_line import errors
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.scripted_relay import start_relay
from tests.mysql.relayed import Relayed
from tests.stream.lost_relay import LostRelay
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def relay(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> LostRelay:
    stream.shard("root")
    return LostRelay(tmp_path, stream, kafka.bootstrap_servers, unique)


def route(path: Path, **topics: str) -> None:
    content = yaml.safe_load(path.read_text())
    content["topics"] = topics
    path.write_text(yaml.safe_dump(content))


def test_a_moved_table_is_refused_until_the_move_is_confirmed_and_so_is_the_way_back(relay: LostRelay) -> None:
    """I2"""
    relay.put(1)
    relay.run()
    old = f"{relay.name}.{TABLE}"
    route(relay.path, **{TABLE: "sales.{table}." + relay.name})
    new = f"sales.{TABLE}.{relay.name}"
    relay.put(2)
    refused = f"the changes of table {TABLE} went to topic {old}, but the config says {new}: whoever reads {old} would"
    how = f"confirm it with `relay reset {relay.path} --moved {TABLE}`"
    said = errors(relay.run(code=2))[-1]
    assert refused in said
    assert how in said
    checked = [each for each in json.loads(relay.command("check", "CONFIG", "--json", code=2).stdout) if not each["ok"]]
    assert [each["check"] for each in checked] == [f"table {TABLE}"]
    assert refused in checked[0]["detail"]
    assert relay.versions() == []
    said = relay.command("reset", "CONFIG", "--moved", "other*", code=2).output
    assert "--moved: no table other* was relayed" in said
    relay.command("reset", "CONFIG", "s", "--moved", TABLE, code=2)

    for found in (f"table {TABLE}: the next run publishes its changes to topic {new}, {old} before", "nothing to move"):
        assert found in relay.command("reset", "CONFIG", "--moved", f"{TABLE[:2]}*").output
    relay.run()
    relay.run()
    assert relay.versions() == [2]
    relay.command("check", "CONFIG")
    route(relay.path, default="{name}.{table}")
    assert f"went to topic {new}, but the config says {old}" in errors(relay.run(code=2))[-1]
    assert relay.versions() == [1]


def test_a_reset_does_not_forget_the_topic(relay: LostRelay) -> None:
    """I2: its former topic still has what was published before the reset."""
    relay.put(1)
    relay.run()
    relay.command("reset", "CONFIG", "s", "--to", "trim_horizon")
    route(relay.path, **{TABLE: "sales." + relay.name})
    assert "went to topic" in errors(relay.run(code=2))[-1]


def test_workers_with_the_old_and_the_new_route_never_publish_at_the_same_time(relay: LostRelay) -> None:
    """I2: a rolling update of a route."""
    relay.create()
    relay.put(1)
    new = relay.path.parent / "new.yaml"
    new.write_text(relay.path.read_text())
    route(new, **{TABLE: "sales." + relay.name})
    old = start_relay(relay.path)
    try:
        wait_until(lambda: relay.versions() == [1] or None, 60)
        refused = start_relay(new)
        assert refused.wait(60) == 2, refused.log()
        assert "went to topic" in refused.log()
        assert "stop them first" in relay.command("reset", str(new), "--moved", TABLE, code=1).output
        relay.put(2)
        wait_until(lambda: relay.versions() == [1, 2] or None, 60)
        assert old.terminate() == 0
        relay.command("reset", str(new), "--moved", TABLE)
        moved = start_relay(new)
        try:
            moved.wait_for("took over 64 partitions")
            late = start_relay(relay.path)
            assert late.wait(60) == 2, late.log()
            relay.put(3)
            former, relay.path = relay.path, new
            wait_until(lambda: relay.versions() == [3] or None, 60)
            relay.path = former
            assert relay.versions() == [1, 2]
            assert moved.terminate() == 0
        finally:
            moved.kill()
    finally:
        old.kill()


def test_tables_that_match_a_pattern_keep_their_topics_and_those_left_out_are_not_moves(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path
) -> None:
    """I2"""
    mariadb.execute(f"CREATE DATABASE {unique}")

    def create(table: str) -> None:
        mariadb.execute(f"CREATE TABLE {unique}.{table} (id INT PRIMARY KEY)")

    for table in ("audit_a", "audit_b", "plain"):
        create(table)
    relay = Relayed(tmp_path, unique, kafka.bootstrap_servers, f'{{"-": ["{mariadb.address}"]}}')

    def insert(table: str, row: int) -> None:
        mariadb.execute(f"INSERT {unique}.{table} VALUES ({row})")

    def configure(tables: list[str] | None, **topics: str) -> None:
        content = yaml.safe_load(relay.path.read_text())
        content["sources"][0].pop("tables", None)
        content["sources"][0] |= {"tables": tables} if tables else {}
        relay.path.write_text(yaml.safe_dump(content))
        route(relay.path, **topics)

    audit, other = {"audit_*": unique + ".audit.{table}"}, {"audit_*": unique + ".other.{table}"}
    configure(None, **audit)
    relay.run()
    create("audit_later")
    for table in ("audit_a", "audit_later", "plain"):
        insert(table, 1)
    relay.run()
    # Dropped and created again, they keep their topics.
    mariadb.execute(f"DROP TABLE {unique}.audit_later")
    relay.run()
    configure(["audit_a", "plain"], default="{name}.{table}", audit_a=unique + ".audit.{table}")
    insert("audit_a", 2)
    relay.run()
    configure(None, **other)
    said = errors(relay.run(code=2))[-1]
    assert f"the changes of table audit_a went to topic {unique}.audit.audit_a," in said
    assert "audit_later" not in said
    create("audit_later")
    configure(["audit_later", "plain"], **other)
    assert f"went to topic {unique}.audit.audit_later" in errors(relay.run(code=2))[-1]
    configure(None, **other)
    relay.command("reset", str(relay.path), "--moved", "audit_*")
    for table in ("audit_a", "audit_b", "audit_later", "plain"):
        insert(table, 3)
    relay.run()
    for table in ("audit_a", "audit_b", "audit_later"):
        assert [change["key"] for change in relay.changes(table)] == [{"id": 3}]
    assert [change["key"]["id"] for change in relay.changes("plain")] == [1, 3]


def test_a_table_that_appears_again_under_another_route_waits(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path
) -> None:
    """I2, I12: it was not there when the relay started."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    for table in ("gone", "stays"):
        mariadb.execute(f"CREATE TABLE {unique}.{table} (id INT PRIMARY KEY)")
    relay = Relayed(tmp_path, unique, kafka.bootstrap_servers, f'{{"-": ["{mariadb.address}"]}}')
    relay.run()
    mariadb.execute(f"DROP TABLE {unique}.gone")
    relay.run()
    route(relay.path, **{"go*": unique + ".elsewhere.{table}"})
    relay.run()
    running = start_relay(relay.path)
    try:
        running.wait_for("took over 64 partitions")
        mariadb.execute(f"CREATE TABLE {unique}.gone (id INT PRIMARY KEY)")
        mariadb.execute(f"INSERT {unique}.gone VALUES (1)")
        running.wait_for(f"the changes of table gone went to topic {unique}.gone")
        running.stop()  # a killed one counts as a worker until its session has timed out
    finally:
        running.kill()
    assert "--moved gone" in errors(relay.run(code=2))[-1]
    mariadb.execute(f"DROP TABLE {unique}.gone")
    relay.command("reset", str(relay.path), "--moved", "gone")  # also of a table that is not there
    relay.run()
    assert [change["key"] for change in relay.changes("gone") if change["operation"] == "INSERT"] == [{"id": 1}]


def test_a_reset_does_not_forget_a_table_that_only_a_checkpoint_announces(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path
) -> None:
    """I2: its changes were published, so neither its key nor its topic may change unnoticed."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.plain (id INT PRIMARY KEY)")
    relay = Relayed(tmp_path, unique, kafka.bootstrap_servers, f'{{"-": ["{mariadb.address}"]}}')
    relay.run()
    config = load(relay.path)
    before = committed_records(config).newest("shop")
    assert before is not None
    ((shard, checkpoint),) = before.checkpoints.items()
    told = replace(checkpoint, unplanned={"later": UnplannedTable((("id", "int"),), 1, f"{unique}.elsewhere")})
    producer, key = Producer(config.kafka.client()), before.stream.shard_key(shard)
    producer.produce(config.internal("checkpoints"), told.to_json(), key, partition_of(key))
    assert producer.flush(30) == 0
    relay.command("reset", str(relay.path), "shop", "--to", "current")
    after = committed_records(config).newest("shop")
    assert after is not None
    assert after.plan is not None
    assert after.plan.keys.keys() == {"plain", "later"}
    assert after.plan.topics == {"later": f"{unique}.elsewhere"}
