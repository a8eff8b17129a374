"""With exactly what deploy/ grants, the relay and its commands work: on a real broker and real databases."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.client import BaseClient
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner, Result

from relay import changes
from relay.cache import DynamoDBLoader, RedisStore, TokenCache
from relay.cli import app
from relay.config import load
from relay.demo.dynamodb_orders import create_table
from relay.dynamodb.models import Attribute, Model, hash_key, range_key
from relay.engine.repeated_aborts import RepeatedAborts
from relay.errors import Unavailable
from relay.kafka.settings import KafkaSettings
from relay.observe.health import Liveness
from relay.services.kafka import KafkaBroker
from relay.services.mariadb import MariaDB
from spark_consumers.sinks.postgres import PostgresDatabase, problems
from tests.deploy import DEPLOY
from tests.dynamodb.endpoint import TABLE, ScriptedStream
from tests.faults.scripted_relay import write_config
from tests.observe.observed_relay import ObservedRelay
from tests.operating import Operated
from tests.services.brokers import SecuredBroker
from tests.waiting import wait_until

pytestmark = pytest.mark.services


class Declared(Model, table="orders", stream="NEW_AND_OLD_IMAGES"):
    customer: Attribute[str] = hash_key()
    order_id: Attribute[int] = range_key()


PASSWORD = "a-password"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def relay(*arguments: str, code: int = 0) -> Result:
    """Run a command in this process, and check its exit code."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def statements(name: str, **replaced: str) -> list[str]:
    """Return the statements of a file in deploy/sql, with its names and its password replaced."""
    text = re.sub(r"^--.*\n", "", (DEPLOY / "sql" / name).read_text(), flags=re.MULTILINE)
    for old, new in {"CHANGE-ME": PASSWORD, **replaced}.items():
        assert old in text
        text = text.replace(old, new)
    return [each.strip() for each in text.split(";") if each.strip()]


# ---------------------------------------------------------------------- databases


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_the_grants_suffice_to_check_to_read_a_binlog_and_to_snapshot(
    kafka: Any, server: str, unique: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue(server)
    database.execute(f"CREATE DATABASE {unique}")
    database.execute(f"CREATE TABLE {unique}.item (id INT PRIMARY KEY, v INT)")
    database.execute(f"INSERT {unique}.item VALUES (1, 0)")
    for statement in statements(f"{server}.sql", legacy=unique, **{"'relay'": f"'{unique}'"}):
        database.execute(statement)
    config = tmp_path / "relay.yaml"
    account = {"user": unique, "password": PASSWORD}
    source = {"name": "shop", "type": "mysql", "database": unique, "shards": {"-": [database.address]}, **account}
    written = {"name": unique, "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2}}
    config.write_text(yaml.safe_dump({**written, "sources": [{**source, "start": "-1s", "snapshot": "initial"}]}))
    relay("check", str(config))
    time.sleep(2.5)  # so that the row was committed before the start, in the whole seconds of a binlog
    relay("run", str(config), "--until-caught-up")
    database.execute(f"INSERT {unique}.item VALUES (2, 0)")
    relay("run", str(config), "--until-caught-up")
    shown = relay("tail", str(config), "--from-beginning", "--exit-at-end", "--json").stdout.splitlines()
    keys = {(value["operation"], value["key"]["id"]) for line in shown if (value := json.loads(line)["value"])["key"]}
    assert keys == {("READ", 1), ("INSERT", 2)}


def test_check_names_each_server_whose_binlog_a_user_may_not_read(kafka: Any, unique: str, tmp_path: Path) -> None:
    """It looked at the first server only, and not at its binlog; the relay notices when it needs them."""
    with MariaDB() as server, MariaDB() as replica:
        replica.replicate_from(server)
        server.execute(f"CREATE DATABASE {unique}")
        server.execute(f"CREATE TABLE {unique}.item (id INT PRIMARY KEY)")
        for statement in statements("mariadb.sql", legacy=unique, **{"'relay'": f"'{unique}'"}):
            server.execute(statement)
        replica.wait_for(server.gtid)
        config = tmp_path / "relay.yaml"
        source = {"name": "shop", "type": "mysql", "database": unique, "user": unique, "password": PASSWORD}
        source["shards"] = {"-": [server.address, replica.address]}  # type: ignore[assignment]
        kafka_section = {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2}
        config.write_text(yaml.safe_dump({"name": unique, "kafka": kafka_section, "sources": [source]}))
        relay("check", str(config))
        replica.execute(f"REVOKE REPLICATION SLAVE ON *.* FROM '{unique}'@'%'")
        said = relay("check", str(config), code=3).output
        assert f"server {replica.address}: " in said
        assert "REPLICATION SLAVE" in said
        assert f"server {server.address}: " not in said


def test_the_role_of_a_copy_in_postgresql_lacks_nothing(postgres: Any, database_url: str, unique: str) -> None:
    for statement in statements("postgres.sql", shop=unique, relay=f"{unique}_relay"):
        postgres.execute(statement)
    host = database_url.rpartition("@")[2]
    database = PostgresDatabase(f"postgresql://{unique}_relay:{PASSWORD}@{host}")
    with closing(database):
        assert problems(database, ["orders"]) == []
        with database.transaction() as connection:
            connection.execute(b"CREATE SCHEMA orders")


# ---------------------------------------------------------------------- DynamoDB


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The operations that any client of AWS in this process calls."""
    found: set[str] = set()
    call = BaseClient._make_api_call  # type: ignore[attr-defined]

    def record(client: Any, operation: str, arguments: Any) -> Any:
        found.add(f"dynamodb:{operation}")
        return call(client, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    return found


def test_the_policy_allows_every_call_of_real_runs(
    kafka: Any, dynamodb: Any, redis_server: Any, unique: str, tmp_path: Path, recorded: set[str]
) -> None:
    policy = json.loads((DEPLOY / "aws" / "relay-policy.json").read_text())
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    item = {"customer": {"S": "ada"}, "order_id": {"N": "7"}}
    with closing(boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")) as client:
        create_table(client, unique)
        client.put_item(TableName=unique, Item=item)
        with closing(RedisStore(redis_server.url)) as store:  # as the application does, for `relay verify`
            TokenCache(store, unique).get_or_load("order:ada:7", DynamoDBLoader(client, unique, lambda _: item).load)
    config = tmp_path / "relay.yaml"
    source = {"name": "s", "type": "dynamodb", "region": "us-east-1", "endpoint_url": dynamodb.endpoint_url}
    source |= {"table": unique, "snapshot": "initial", "model": f"{__name__}:{Declared.__name__}"}
    cache = {"url": redis_server.url, "namespace": unique, "keys": {unique: ["order:{customer}:{order_id}"]}}
    written = {"name": unique, "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2}}
    config.write_text(yaml.safe_dump({**written, "sources": [source], "cache": cache}))
    recorded.clear()
    relay("check", str(config))
    relay("run", str(config), "--until-caught-up")
    relay("verify", str(config), "--within", "0.1")
    # DynamoDB Local has no tags.
    assert recorded == allowed - {"dynamodb:ListTables", "dynamodb:ListTagsOfResource"}


# ---------------------------------------------------------------------- Kafka


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaBroker]:
    """A broker that allows the user ``admin`` everything, and others what its ACLs say."""
    settings = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{PLAIN} required username="admin" password="{PASSWORD}" user_admin="{PASSWORD}" user_relay="{PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    with SecuredBroker(options=settings, client=login("admin")) as broker:
        yield broker


def login(user: str) -> dict[str, str]:
    plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return {**plain, "sasl.username": user, "sasl.password": PASSWORD}


def test_the_acls_suffice_for_the_relay_its_commands_and_a_consumer(
    guarded: KafkaBroker, redis_server: Any, stream: ScriptedStream, unique: str, tmp_path: Path
) -> None:
    stream.shard("root")
    stream.put("root", "k", 1)
    operated = Operated(tmp_path, stream, guarded.bootstrap_servers, unique)
    config = yaml.safe_load(operated.path.read_text())
    config["kafka"]["producer"] |= login("relay")
    config["cache"] = {"url": redis_server.url, "namespace": unique, "keys": {TABLE: ["item:{id}"]}}
    operated.path.write_text(yaml.safe_dump(config))
    assert "Allow this user Create," in operated.run(code=3).stderr

    admin = tmp_path / "admin.properties"
    admin.write_text("".join(f"{key}={value}\n" for key, value in login("admin").items()))
    program = tmp_path / "kafka-acls.sh"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.deploy.acl_program "$@"\n')
    program.chmod(0o755)
    principal = [guarded.bootstrap_servers, unique, "User:relay", "--command-config", str(admin)]
    script = [str(DEPLOY / "kafka" / "acls.sh"), *principal]
    subprocess.run(script, check=True, env={**os.environ, "KAFKA_ACLS": str(program)}, timeout=600)

    for command in (
        ("check", "CONFIG"),
        ("run", "CONFIG", "--until-caught-up"),
        ("status", "CONFIG", "--json"),
        ("tail", "CONFIG", "--from-beginning", "--exit-at-end", "--json"),
        ("gaps", "list", "CONFIG"),
        ("dead-letters", "list", "CONFIG"),
        ("consume", "cache", "CONFIG", "--engine", "python", "--until-caught-up"),
        ("reset", "CONFIG", "s", "--to", "trim_horizon"),
        ("run", "CONFIG", "--until-caught-up"),
    ):
        operated.command(*command)
    assert operated.versions("k") == [1, 1]


def log_in(operated: Operated, user: str) -> None:
    config = yaml.safe_load(operated.path.read_text())
    config["kafka"]["producer"] |= login(user)
    operated.path.write_text(yaml.safe_dump(config))


def allow(broker: KafkaBroker, prefix: str, *operations: AclOperation, kind: ResourceType = ResourceType.TOPIC) -> None:
    place = (kind, prefix, ResourcePatternType.PREFIXED, "User:relay", "*")
    administrator = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **login("admin")})
    bindings = [AclBinding(*place, operation, AclPermissionType.ALLOW) for operation in operations]
    for made in administrator.create_acls(bindings).values():
        made.result(120)


def test_check_says_what_a_user_may_not_do_in_kafka(
    guarded: KafkaBroker, stream: ScriptedStream, unique: str, tmp_path: Path
) -> None:
    """It said that all was well, and the relay then ended at the first topic, or at its group."""
    stream.shard("root")
    stream.put("root", "k", 1)
    operated = Operated(tmp_path, stream, guarded.bootstrap_servers, unique)

    def problems() -> dict[str, str]:
        found = json.loads(operated.command("check", "CONFIG", "--json", code=3).stdout)
        return {each["check"].removeprefix("topic "): each["detail"] for each in found if not each["ok"]}

    log_in(operated, "relay")
    found = problems()
    assert found.pop(f"group {unique}.relay") == "this user may not join it: allow Read on it"
    assert f"{unique}.checkpoints" in found
    assert set(found.values()) == {
        "it is missing, or this user may not see it, and may not create it: allow Create and Describe on it"
    }
    log_in(operated, "admin")
    operated.run()
    log_in(operated, "relay")
    allow(guarded, f"{unique}.", AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ)
    allow(guarded, f"{unique}.", AclOperation.READ, kind=ResourceType.GROUP)
    found = problems()
    assert f"{unique}.checkpoints" in found
    assert set(found.values()) == {"this user may not use it: allow Write on it"}
    allow(guarded, f"{unique}.", AclOperation.WRITE)
    operated.command("check", "CONFIG")
    # Brokers do not say who may use a transactional id, so the relay has to.
    said = operated.run(code=3).stderr
    assert f"this user may not use the transactional id {unique}-" in said
    assert "allow Describe and Write on it" in said


def test_a_relay_that_may_not_use_its_group_names_it_and_what_to_allow(
    guarded: KafkaBroker, stream: ScriptedStream, unique: str, tmp_path: Path
) -> None:
    """It said that a topic could not be read; commands ended with a KeyError, as an error of a group has no topic."""
    stream.shard("root")
    operated = Operated(tmp_path, stream, guarded.bootstrap_servers, unique)
    log_in(operated, "relay")
    topic = (AclOperation.CREATE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    allow(guarded, f"{unique}.", *topic, AclOperation.READ, AclOperation.WRITE)
    allow(guarded, f"{unique}-", AclOperation.DESCRIBE, AclOperation.WRITE, kind=ResourceType.TRANSACTIONAL_ID)
    said = "this user may not use the consumer group {}: allow Read on it, and on the other groups"
    assert re.search(said.format(rf"{unique}\.[a-z.]+"), operated.run(code=3).stderr)
    for reader in ("schemas.reader", "checkpoints.view"):
        allow(guarded, f"{unique}.{reader}", AclOperation.READ, kind=ResourceType.GROUP)
    assert said.format(f"{unique}.relay") in operated.run(code=3).stderr
    assert said.format(f"{unique}.tail") in operated.command("tail", "CONFIG", code=3).stderr
    with pytest.raises(Unavailable, match=said.format(f"{unique}.changes")):
        next(changes(operated.path, [TABLE], start="earliest"), None)
    allow(guarded, f"{unique}.", AclOperation.READ, kind=ResourceType.GROUP)
    operated.run()


def test_a_topic_that_a_user_may_no_longer_see_is_not_said_to_be_deleted(
    guarded: KafkaBroker, stream: ScriptedStream, unique: str, tmp_path: Path
) -> None:
    """I10: in a list of all topics it is missing as a deleted one is."""
    config = load(write_config(tmp_path, stream, guarded.bootstrap_servers, unique))
    settings = KafkaSettings.from_config(config)
    administrator = AdminClient({**settings.client, **login("admin")})
    for created in administrator.create_topics([NewTopic(unique, 1)]).values():
        created.result(120)
    limited = replace(settings, client={**settings.client, **login("relay")})
    repeated = RepeatedAborts(limited, lambda: [unique], Liveness(), sleep=lambda _: None)
    for _ in range(10):
        repeated.aborted("by the test")
    with pytest.raises(Unavailable, match=f"does not let this user see topic '{unique}'.*allow Describe"):
        repeated.aborted("by the test")


def test_a_relay_that_may_no_longer_write_to_a_topic_is_red_says_so_in_one_line_and_goes_on_once_it_may(
    guarded: KafkaBroker, stream: ScriptedStream, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10, I1, I3: it aborted for ever, and only librdkafka said something."""
    monkeypatch.setenv("RELAY_STALLED_AFTER", "5")
    stream.shard("root")
    stream.put("root", "k", 1)
    operated = Operated(tmp_path, stream, guarded.bootstrap_servers, unique)
    log_in(operated, "admin")
    operated.run()
    log_in(operated, "relay")
    everything = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ, AclOperation.WRITE)
    allow(guarded, f"{unique}.", *everything)
    allow(guarded, f"{unique}.", AclOperation.READ, kind=ResourceType.GROUP)
    allow(guarded, f"{unique}-", AclOperation.DESCRIBE, AclOperation.WRITE, kind=ResourceType.TRANSACTIONAL_ID)
    topic = load(operated.path).topic(TABLE)
    place = (topic, ResourcePatternType.LITERAL, "User:relay", "*", AclOperation.WRITE, AclPermissionType.DENY)
    administrator = AdminClient({"bootstrap.servers": guarded.bootstrap_servers, **login("admin")})
    observed = ObservedRelay(operated.path)
    observed.until("/readyz", 200)
    for made in administrator.create_acls([AclBinding(ResourceType.TOPIC, *place)]).values():
        made.result(120)
    stream.put("root", "k", 2, old=1)

    def said() -> str | None:
        # It may also be the shard that has stood still for long enough.
        stalls = observed.until("/healthz", 503)["stalls"]
        errors = [each["error"] for each in stalls if each["what"] == "no transaction has been committed"]
        return next((error for error in errors if "may not write" in error), None)

    assert re.match(
        rf"\d+ attempts failed; the last was aborted: this user may not write to {topic}: allow Write on it \(",
        wait_until(said, 60) or "",
    )
    wait_until(lambda: observed.relay.has_logged("no transaction has been committed: 10 attempts failed"), 60)
    for removed in administrator.delete_acls([AclBindingFilter(ResourceType.TOPIC, *place)]).values():
        removed.result(120)
    observed.until("/healthz", 200)
    log_in(operated, "admin")
    wait_until(lambda: operated.versions() == [1, 2], 60)
    observed.stop()
