"""``relay check``: it inspects everything in a config and reports what is missing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from typer.testing import CliRunner, Result

from relay.avro.schema import change_schema
from relay.avro.schema_registry import RegistrySchemas
from relay.cli import app
from relay.config import Config, DynamoDBConfig
from relay.dynamodb.kind import check_table
from relay.kafka import topics
from relay.mysql_dialect.catalog import carried_column
from relay.operations import check
from relay.source import CheckedTable
from relay.table import Column, KeyColumn, TableSchema
from tests.dynamodb.described import described
from tests.listening import NOBODY, give_up_on_brokers_at_once
from tests.waiting import wait_until


def config(**others: Any) -> dict[str, Any]:
    return {
        "name": "shop",
        "kafka": {"bootstrap_servers": NOBODY, "partitions": 2},
        "sources": [
            {
                "name": "orders",
                "type": "dynamodb",
                "table": "orders",
                "region": "us-east-1",
                "endpoint_url": f"http://{NOBODY}",
            }
        ],
        **others,
    }


def checked(view_type: str) -> CheckedTable:
    source = DynamoDBConfig(name="orders", type="dynamodb", table="orders")
    return check_table(source, described(view_type))


def with_keys(*templates: str) -> Config:
    cache = {"url": "redis://h", "namespace": "n", "keys": {"orders": list(templates)}}
    return Config.model_validate(config(cache=cache))


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    def run(content: dict[str, Any], *options: str) -> Result:
        file = tmp_path / "relay.yaml"
        file.write_text(yaml.safe_dump(content))
        return CliRunner().invoke(app, ["check", str(file), *options])

    return run


@pytest.mark.parametrize("view_type", ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"])
def test_a_cache_key_of_key_columns_is_valid_for_every_stream(view_type: str) -> None:
    (found,) = check.check_cache_keys(with_keys("order:{order_id}"), checked(view_type))
    assert (found.ok, found.detail) == (True, "every change of orders carries its columns")


@pytest.mark.parametrize(
    ("view_type", "ok"),
    [("KEYS_ONLY", False), ("NEW_IMAGE", False), ("OLD_IMAGE", False), ("NEW_AND_OLD_IMAGES", True)],
)
def test_a_cache_key_of_other_columns_needs_both_images(view_type: str, ok: bool) -> None:
    """I6: without the old image, the entry under the replaced value would remain."""
    fine, found = check.check_cache_keys(with_keys("{order_id}", "user:{user_id}"), checked(view_type))
    assert fine.ok
    assert found.ok is ok
    assert "`user_id`" in found.detail
    assert ok or "set the table's StreamViewType to NEW_AND_OLD_IMAGES" in found.detail


@pytest.mark.parametrize(
    ("template", "code", "said"),
    [
        ("{order_id}:{user_id}", 0, "items of orders without `user_id` invalidate nothing"),
        ("{ordr_id}", 2, "none of the items of orders that were looked at has `ordr_id`, .*; did you mean `order_id`?"),
        ("{user_key}", 0, "none of the items of orders that were looked at has `user_key`, and an item without it"),
    ],
)
def test_a_cache_key_of_a_column_that_is_like_one_of_the_items_is_refused(template: str, code: int, said: str) -> None:
    """I6: such a key would never be invalidated."""
    table = replace(checked("NEW_AND_OLD_IMAGES"), seen={"order_id", "user_id"})
    (found,) = check.check_cache_keys(with_keys(template), table)
    assert found.exit_code == code
    assert re.match(said, found.detail)


@pytest.mark.parametrize("seen", [(), {"order_id"}, {"order_id", "user_id"}])
def test_a_cache_key_that_not_every_change_carries_is_refused_whatever_items_have(seen: Collection[str]) -> None:
    """I6: an update would not say which entry held the value that it replaced."""
    table = replace(checked("NEW_IMAGE"), seen=seen)
    (found,) = check.check_cache_keys(with_keys("{order_id}:{user_id}"), table)
    assert found.exit_code == 3


@pytest.mark.parametrize("kind", ["uuid", "inet4", "inet6"])
def test_a_cache_key_of_bytes_that_drivers_return_as_text_is_refused(kind: str) -> None:
    """I6: the application would store under another key than the one that is invalidated."""
    columns = (carried_column("order_id", "binary(16)"), carried_column("user_id", kind))
    table = TableSchema("shop", "orders", (KeyColumn("order_id", "bytes"),), 1, columns)
    found = CheckedTable(table, columns=columns)
    fine, refused = check.check_cache_keys(with_keys("{order_id}", "user:{user_id}"), found)
    assert (fine.ok, refused.ok) == (True, False)
    assert "`user_id` is in keys as base64, but drivers return text" in refused.detail


def test_a_table_without_cache_keys_needs_nothing() -> None:
    assert check.check_cache_keys(Config.model_validate(config()), checked("KEYS_ONLY")) == []


def test_sources_whose_tables_are_not_known_hide_no_other_problem(run: Callable[..., Result]) -> None:
    nobody = {"type": "mysql", "database": "d", "user": "u", "password": "p", "shards": {"-": [NOBODY]}}
    content = config(
        sources=[{"name": name, **nobody} for name in ("one", "two")],
        cache={"url": f"redis://{NOBODY}/0", "namespace": "n", "keys": {"orders": ["{id}"]}},
        copy={"url": f"postgresql://u:p@{NOBODY}/db"},
    )
    result = run(content)
    assert result.exit_code == 3, result.output
    failed = [line.partition(":")[0] for line in result.stdout.splitlines() if line.startswith("✗")]
    assert {line.split(" ")[1] for line in failed} >= {"kafka", "source", "cache", "copy"}
    assert [line for line in failed if "source" in line] == ["✗ source one", "✗ source two"]


def test_all_problems_are_reported_at_once_in_bounded_time(run: Callable[..., Result], tmp_path: Path) -> None:
    registry, cache = NOBODY, "127.0.0.1:2"
    content = config(
        schema_registry={"url": f"http://me:hunter2@{registry}"},
        cache={"url": f"redis://:hunter2@{cache}/0", "namespace": "n", "keys": {"orders": ["{order_id}"]}},
        log={"path": "/proc/version/log"},
        copy={"url": f"delta://{tmp_path}/copy"},
    )
    begun = time.monotonic()
    result = run(content)
    assert time.monotonic() - begun < 60
    assert result.exit_code == 3
    said = result.stdout.splitlines()
    endpoint = content["sources"][0]["endpoint_url"]
    for start, end in [
        (f"✗ kafka {content['kafka']['bootstrap_servers']}: no Kafka broker answers at ", "Connection refused"),
        (f"✗ source orders: DynamoDB in region us-east-1 at {endpoint} cannot be reached", ""),
        (f"✗ schema registry http://***@{registry}: ", "Connection refused"),
        (f"✗ cache redis://***@{cache}/0: Redis at ", "Connection refused."),
        ("✗ log /proc/version/log: cannot write to /proc/version", ""),
        (f"✓ copy delta://{tmp_path}/copy: will be created", ""),
        ("✓ pyspark", ""),
    ]:
        (line,) = (line for line in said if line.startswith(start))
        assert end in line
    assert "hunter2" not in result.output


def test_the_json_output_is_a_list_of_findings(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    give_up_on_brokers_at_once(monkeypatch)
    legacy = {"name": "legacy", "type": "mysql", "database": "d", "shards": {"-": ["127.0.0.1:1"]}, "tables": ["t"]}
    wrong = {**legacy, "tls": {"ca": "/nowhere/ca.pem"}}
    result = run(config(kafka={"bootstrap_servers": "127.0.0.1:1"}, sources=[wrong]), "--json")
    kafka, source, _ = json.loads(result.stdout)
    assert (kafka["check"], kafka["ok"]) == ("kafka 127.0.0.1:1", False)
    assert source == {
        "check": "source legacy",
        "ok": False,
        "detail": "`tls`: cannot load /nowhere/ca.pem: No such file or directory",
    }
    # An invalid setting is a problem of the config, not of the services.
    assert result.exit_code == 2


def test_a_config_with_consumers_needs_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    quick = config(kafka={"bootstrap_servers": "127.0.0.1:1", "producer": {"linger.mss": 1}})
    log = {"path": f"file://{tmp_path}/log"}
    found = {finding.check: finding for finding in check.run(Config.model_validate(quick | {"log": log}))}
    assert (found["java"].ok, found["java"].exit_code) == (False, 3)
    assert "Java 17 or newer is needed" in found["java"].detail
    assert "java" not in {finding.check for finding in check.run(Config.model_validate(quick))}
    cache = {"url": "redis://127.0.0.1:1/0", "namespace": "shop", "keys": {"orders": ["{order_id}"]}}
    found = {finding.check: finding for finding in check.run(Config.model_validate(quick | {"cache": cache}))}
    assert found["java"].ok
    assert "or use `relay consume cache --engine python`" in found["java"].detail


@pytest.mark.services
class TestOnServices:
    def create(self, dynamodb: Any, table: str, view_type: str | None = "NEW_AND_OLD_IMAGES") -> None:
        client = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
        stream: dict[str, Any] = {"StreamEnabled": True, "StreamViewType": view_type}
        client.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "order_id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "order_id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            **({"StreamSpecification": stream} if view_type else {}),  # type: ignore[arg-type]
        )
        client.close()

    def content(self, kafka: Any, dynamodb: Any, name: str, **others: Any) -> dict[str, Any]:
        content = config(name=name, **others)
        content["kafka"]["bootstrap_servers"] = kafka.bootstrap_servers
        content["sources"][0] |= {"table": name, "endpoint_url": dynamodb.endpoint_url}
        return content

    def test_a_topic_that_makes_starts_slow_is_named_with_the_command_that_repairs_it(
        self, run: Callable[..., Result], kafka: Any, dynamodb: Any, unique: str
    ) -> None:
        self.create(dynamodb, unique)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        name = f"{unique}.checkpoints"
        admin.create_topics([NewTopic(name, 64, config={"cleanup.policy": "compact"})])[name].result(120)
        wait_until(lambda: name in admin.list_topics(timeout=60).topics or None, 60)
        result = run(self.content(kafka, dynamodb, unique))
        assert result.exit_code == 0, result.output
        (line,) = (line for line in result.stdout.splitlines() if f"topic {name}" in line)
        assert line.startswith(f"✓ topic {name}: 64 partitions; it has segment.bytes=1073741824, ")
        assert f"--alter --entity-type topics --entity-name {name} --add-config segment.bytes=1048576," in line

    def test_a_config_whose_services_are_all_reachable_passes(
        self,
        run: Callable[..., Result],
        kafka: Any,
        dynamodb: Any,
        redis_server: Any,
        schema_registry: Any,
        unique: str,
        tmp_path: Path,
    ) -> None:
        self.create(dynamodb, unique)
        content = self.content(
            kafka,
            dynamodb,
            unique,
            schema_registry={"url": schema_registry.url},
            cache={"url": redis_server.url, "namespace": "n", "keys": {unique: ["{order_id}", "{user_id}"]}},
            log={"path": f"file://{tmp_path}/log"},
        )
        result = run(content)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[:10] == [
            f"✓ kafka {kafka.bootstrap_servers}: reachable",
            f"✓ topic {unique}.{unique}: will be created with 2 partitions",
            f"✓ topic {unique}.checkpoints: will be created with 64 partitions",
            f"✓ topic {unique}.schemas: will be created with 1 partition",
            f"✓ topic {unique}.watermarks: will be created with 1 partition",
            f"✓ topic {unique}.gaps: will be created with 1 partition",
            f"✓ topic {unique}.dead_letters: will be created with 1 partition",
            f"✓ source orders: table {unique}, key order_id (S), stream of NEW_AND_OLD_IMAGES",
            "✓ cache key {order_id}: every change of " + unique + " carries its columns",
            "✓ cache key {user_id}: items of " + unique + " without `user_id` invalidate nothing",
        ]
        assert f"✓ schema registry {schema_registry.url}: reachable\n" in result.stdout
        assert f"✓ subject {unique}.{unique}-value: will be created with compatibility BACKWARD\n" in result.stdout
        assert f"✓ cache {redis_server.url}: reachable\n" in result.stdout
        # The check has created nothing.
        relayed = Config.model_validate(content)
        assert not any(found.exists for found in topics.survey(topics.connect(relayed), relayed, [unique]))

    def test_a_cache_key_of_a_column_that_an_sql_table_does_not_have_is_refused(
        self, run: Callable[..., Result], kafka: Any, vitess: Any, unique: str
    ) -> None:
        """I6: it would never be invalidated."""
        vitess.execute(f"CREATE TABLE {unique} (id BIGINT PRIMARY KEY, owner VARCHAR(10), t SET('a'), f FLOAT)")
        vitess.execute(f"ALTER VSCHEMA ON {unique} ADD VINDEX hash(id) USING hash")
        source = {"name": "c", "type": "vitess", "vtgate": vitess.vtgate, "keyspace": "commerce", "tables": [unique]}
        templates = ["{id}", "{owner}", "{id}:{ownr}", "{Z}", "{id}:{t}", "{f}"]
        cache = {"url": "redis://127.0.0.1:1", "namespace": "n", "keys": {unique: templates}}
        kafka_servers = {"bootstrap_servers": kafka.bootstrap_servers}
        found = run(config(name=unique, kafka=kafka_servers, sources=[source], cache=cache)).stdout.splitlines()
        assert [line for line in found if "cache key" in line] == [
            "✓ cache key {id}: every change of " + unique + " carries its columns",
            "✓ cache key {owner}: items of " + unique + " without `owner` invalidate nothing",
            "✗ cache key {id}:{ownr}: " + unique + " has no column `ownr`; did you mean `owner`?",
            "✗ cache key {Z}: " + unique + " has no column `Z`; its columns are id, owner, t, f",
            "✗ cache key {id}:{t}: `t` is a SET, so every change of " + unique + " would invalidate the whole "
            "namespace: use another column",
            "✗ cache key {f}: `f` is a FLOAT: databases print six of its digits, so applications would use another "
            "key: use another column",
        ]

    def test_a_schema_that_the_registry_would_refuse_is_reported(
        self, run: Callable[..., Result], kafka: Any, dynamodb: Any, schema_registry: Any, unique: str
    ) -> None:
        self.create(dynamodb, unique)
        content = self.content(kafka, dynamodb, unique, schema_registry={"url": schema_registry.url})
        topic = f"{unique}.{unique}"

        def schema(total: str) -> dict[str, Any]:
            columns = (Column("order_id", "string"), Column("total", total), Column("rest", "rest"))
            return change_schema(TableSchema("orders", unique, (KeyColumn("order_id", "S"),), 1, columns))

        with closing(RegistrySchemas(schema_registry.url)) as schemas:
            schemas.register(topic, schema("long"))
        content["sources"][0]["columns"] = {"order_id": "string", "total": "decimal(10,2)"}
        refused = run(content)
        assert refused.exit_code == 1
        assert f"✓ subject {topic}-value: 1 version, compatibility BACKWARD\n" in refused.stdout
        assert f"✗ schema of {topic}: the registry at {schema_registry.url} refuses the new schema" in refused.stdout
        assert "row total: long -> decimal(10,2)." in refused.stdout
        content["schema_registry"]["on_incompatible"] = "register"
        assert run(content).exit_code == 0
        content["sources"][0]["columns"]["total"] = "long"
        assert "schema of" not in run(content).stdout

    def test_a_table_that_does_not_match_its_columns_fails_the_check_and_the_start(
        self, run: Callable[..., Result], kafka: Any, dynamodb: Any, unique: str, tmp_path: Path
    ) -> None:
        self.create(dynamodb, unique, "KEYS_ONLY")
        content = self.content(kafka, dynamodb, unique)
        content["sources"][0]["columns"] = {"order_id": "long", "total": "decimal(38,10)"}
        result = run(content)
        assert result.exit_code == 3
        said = [line for line in result.stdout.splitlines() if line.startswith("✗")]
        assert said[0] == (
            "✗ columns of orders: `order_id` is declared as long, for attributes of type N, but as a key column of "
            f"table {unique} it has type S: declare it as string, for example"
        )
        assert said[1].startswith("✗ columns of orders: a KEYS_ONLY stream has no images")
        started = CliRunner().invoke(app, ["run", str(tmp_path / "relay.yaml"), "--until-caught-up"])
        assert started.exit_code == 3
        for line in said:
            assert "source orders: " + line.removeprefix("✗ columns of orders: ") in started.output

    def test_a_start_other_than_the_one_with_which_the_source_began_is_refused_as_the_relay_refuses_it(
        self, run: Callable[..., Result], kafka: Any, dynamodb: Any, unique: str, tmp_path: Path
    ) -> None:
        self.create(dynamodb, unique)
        content = self.content(kafka, dynamodb, unique)
        assert run(content).exit_code == 0
        relay = ["run", str(tmp_path / "relay.yaml"), "--until-caught-up"]
        assert CliRunner().invoke(app, relay).exit_code == 0
        assert run(content).exit_code == 0
        content["sources"][0]["start"] = "latest"
        result, started = run(content), CliRunner().invoke(app, relay)
        assert result.exit_code == started.exit_code == 2
        [said] = [line for line in result.stdout.splitlines() if line.startswith("✗")]
        assert said.startswith("✗ source orders: `start` is 'latest', but this source started at 'trim_horizon'")
        assert said.removeprefix("✗ ") in started.output

    def test_existing_topics_are_inspected(
        self, run: Callable[..., Result], kafka: Any, dynamodb: Any, unique: str
    ) -> None:
        self.create(dynamodb, unique)
        content = self.content(kafka, dynamodb, unique)
        relayed = Config.model_validate(content)
        topics.create_missing(topics.connect(relayed), relayed, [unique])
        result = run(content)
        assert result.exit_code == 0, result.output
        assert f"✓ topic {unique}.{unique}: 2 partitions\n" in result.stdout
        content["kafka"]["partitions"] = 3
        result = run(content)
        assert result.exit_code == 3
        assert f"✗ topic {unique}.{unique}: topic '{unique}.{unique}' has 2 partitions but needs 3" in result.stdout
        assert f"✓ topic {unique}.checkpoints: 64 partitions" in result.stdout

    @pytest.mark.parametrize(
        ("exists", "said"),
        [(False, "table '{}' does not exist in region us-east-1"), (True, "has no stream: enable it")],
    )
    def test_a_table_that_cannot_be_relayed_fails_the_check(
        self, run: Callable[..., Result], kafka: Any, dynamodb: Any, unique: str, exists: bool, said: str
    ) -> None:
        if exists:
            self.create(dynamodb, unique, view_type=None)
        result = run(self.content(kafka, dynamodb, unique))
        assert result.exit_code == 3
        (line,) = (line for line in result.stdout.splitlines() if line.startswith("✗"))
        assert line.startswith("✗ source orders: ")
        assert said.format(unique) in line
