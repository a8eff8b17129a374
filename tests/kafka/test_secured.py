"""A broker with TLS and passwords: every client connects, errors are clear, and no output shows the password."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
import redis

from relay.cache import RedisStore, entry_key, generation_key
from relay.config import load
from relay.demo.dynamodb_orders import create_table
from relay.process.managed import free_port
from tests.certificates import Authority
from tests.command_line import Relay, RelayHere, relay_here_with, relay_with
from tests.faults.harness import Relay as Process
from tests.log_lines import log_lines
from tests.observe.requests import get
from tests.services.brokers import SecuredBroker
from tests.waiting import wait_until

pytestmark = pytest.mark.services

PASSWORD = 'hunter2-"quoted"-;'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(frozen=True)
class Secured:
    """A broker, and the client settings to connect to it."""

    bootstrap_servers: str
    producer: Mapping[str, str]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    quoted = PASSWORD.replace('"', '\\\\"')  # once for the login module, once for the file
    settings = {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{PLAIN} required username="relay" password="{quoted}" user_relay="{quoted}";'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
    }
    producer = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "relay",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(authority.ca),
    }
    with SecuredBroker(options=settings, client=producer) as broker:
        yield Secured(broker.bootstrap_servers, producer)


@pytest.fixture
def config(secured: Secured, dynamodb: Any, redis_server: Any, unique: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "name": unique,
        "kafka": {"bootstrap_servers": secured.bootstrap_servers, "partitions": 2, "producer": dict(secured.producer)},
        "sources": [
            {
                "name": "orders",
                "type": "dynamodb",
                "table": unique,
                "region": "us-east-1",
                "endpoint_url": dynamodb.endpoint_url,
            }
        ],
        "cache": {"url": redis_server.url, "namespace": unique, "keys": {unique: ["order:{customer}"]}},
    }


@pytest.fixture
def relay(config: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> RelayHere:
    """Run a command, and check that its output does not contain the password."""
    return relay_here_with(config, tmp_path, capfd, "hunter2")


@pytest.fixture
def started(config: dict[str, Any], tmp_path: Path) -> Relay:
    """Run a command in a process of its own, as Spark needs, and check the same."""
    return relay_with(config, tmp_path, "hunter2")


def test_relay_check_tail_and_a_consumer_work_over_tls_with_a_password(
    started: Relay,
    relay: RelayHere,
    config: dict[str, Any],
    dynamodb: Any,
    redis_server: Any,
    unique: str,
    tmp_path: Path,
) -> None:
    client = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    create_table(client, unique)
    client.put_item(TableName=unique, Item={"customer": {"S": "ada"}, "order_id": {"N": "7"}})
    client.close()
    ran = relay("run", "CONFIG", "--until-caught-up")
    assert ran.exit_code == 0, ran.stderr
    checked = relay("check", "CONFIG")
    assert checked.exit_code == 0, checked.stdout
    shown = relay("tail", "CONFIG", "--from-beginning", "--exit-at-end", "--json")
    assert [json.loads(line)["key"] for line in shown.stdout.splitlines()] == ["ada"]
    config["log"] = {"path": str(tmp_path / "log")}
    config["spark"] = {"conf": {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"{tmp_path}/events"}}
    (tmp_path / "events").mkdir()
    options = ("CONFIG", "--until-caught-up")
    on_spark = started("consume", "cache", "log", *options, "--checkpoint", str(tmp_path / "point"))
    assert on_spark.returncode == 0, on_spark.stderr
    consume = ("consume", "cache", *options)
    in_python = relay(*consume, "--engine", "python", "--from", "committed")
    assert in_python.exit_code == 0, in_python.stderr
    with RedisStore(redis_server.url) as store:
        ((entry,), _) = store.read([entry_key(unique, "order:ada")], generation_key(unique))
    assert entry is not None
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "relay.yaml"]
    assert {"events", "log", "point"} <= {file.relative_to(tmp_path).parts[0] for file in written}
    assert not [file for file in written if b"hunter2" in file.read_bytes()]
    loaded = load(tmp_path / "relay.yaml")
    assert "hunter2" not in repr(loaded) + repr(loaded.kafka) + str(loaded)


def pages(port: int) -> Iterator[tuple[str, bytes]]:
    """Yield what Spark's server shows, from its first page on, and what it answers to programs."""
    first = f"/api/v1/applications/{json.loads(get(port, '/api/v1/applications')[2])[0]['id']}"
    kinds = ("environment", "jobs", "stages", "sql?details=true&planDescription=true", "allexecutors")
    wanted = ["/jobs/", *(f"{first}/{kind}" for kind in kinds)]
    for path in wanted:
        status, headers, body = get(port, path)
        if status == 200:
            yield path, body
            if "html" in headers.get("Content-Type", ""):
                links = (unescape(link) for link in re.findall(r'href="(/[^"#]*)"', body.decode()))
                wanted += [
                    link for link in dict.fromkeys(links) if link not in wanted and not link.startswith("/static")
                ]


def test_no_password_is_on_spark_s_pages_or_in_what_consumers_write_and_say(
    relay: RelayHere,
    config: dict[str, Any],
    dynamodb: Any,
    redis_server: Any,
    postgres: Any,
    unique: str,
    tmp_path: Path,
) -> None:
    """Passwords of Kafka, Redis, PostgreSQL and a file system: in plans, event logs, checkpoints, logs and errors."""
    place, port = urlsplit(postgres.url), free_port()
    with closing(redis.Redis.from_url(redis_server.url)) as admin:
        admin.acl_setuser(unique, enabled=True, passwords=["+hunter2-redis"], keys=["*"], categories=["+@all"])
    postgres.execute(f"CREATE ROLE {unique} LOGIN PASSWORD 'hunter2/postgres'")
    postgres.execute(f"CREATE DATABASE {unique} OWNER {unique}")
    config["cache"]["url"] = redis_server.url.replace("redis://", f"redis://{unique}:hunter2-redis@")
    config["copy"] = {"url": f"postgresql://{unique}:hunter2%2Fpostgres@{place.hostname}:{place.port}/{unique}"}
    config["spark"] = {
        "conf": {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"{tmp_path}/events",
            "spark.hadoop.fs.s3a.secret.key": "hunter2-s3",
        }
    }
    (tmp_path / "events").mkdir()
    client = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    create_table(client, unique)

    def write(order: int) -> None:
        client.put_item(TableName=unique, Item={"customer": {"S": "ada"}, "order_id": {"N": str(order)}})
        assert relay("run", "CONFIG", "--until-caught-up").exit_code == 0

    write(1)
    command = ["consume", "cache", "copy", str(tmp_path / "relay.yaml"), "--checkpoint", str(tmp_path / "point")]
    consumers = Process([sys.executable, "-m", "relay.cli", *command], tmp_path / "consumers.log")

    def said(event: str) -> set[str]:
        return {line["consumer"] for line in log_lines(tmp_path / "consumers.log", event)}

    wait_until(lambda: said("batch") == {"cache", "copy"} or None, 240)
    shown = dict(pages(port))
    assert sum(path.startswith("/SQL/execution") for path in shown) > 1
    assert sum(path.startswith("/api") for path in shown) == 5
    assert not [path for path, body in shown.items() if b"hunter2" in body]
    with closing(redis.Redis.from_url(redis_server.url)) as admin:
        admin.acl_deluser(unique)
        admin.client_kill_filter(_type="normal", skipme=True)
    postgres.execute(f"ALTER ROLE {unique} PASSWORD 'changed'")
    ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{unique}'"
    postgres.execute(ended)
    write(2)
    wait_until(lambda: said("retry") | said("failed") == {"cache", "copy"} or None, 240)
    consumers.terminate()
    client.close()
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "relay.yaml"]
    assert {"events", "consumers.log", "point"} <= {file.relative_to(tmp_path).parts[0] for file in written}
    assert not [file for file in written if b"hunter2" in file.read_bytes()]


WRONG = "wrong-hunter2"
REFUSED = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(
    "command",
    ["run CONFIG --until-caught-up", "check CONFIG", "consume cache CONFIG --until-caught-up --engine python"],
)
def test_a_wrong_password_is_reported_but_not_shown(relay: RelayHere, config: dict[str, Any], command: str) -> None:
    config["kafka"]["producer"]["sasl.password"] = WRONG
    answer = relay(*command.split())
    assert answer.exit_code == 3
    assert REFUSED in answer.output


@pytest.mark.faults("another engine: test_a_wrong_password_is_reported_but_not_shown has the others")
def test_a_wrong_password_is_reported_on_spark_but_not_shown(started: Relay, config: dict[str, Any]) -> None:
    config["kafka"]["producer"]["sasl.password"] = WRONG
    answer = started("consume", "cache", "CONFIG", "--until-caught-up")
    assert answer.returncode == 3
    assert REFUSED in answer.stdout + answer.stderr


@pytest.mark.parametrize(
    ("producer", "said"),
    [({}, "speaks TLS: set `security.protocol: ssl`"), ({"security.protocol": "SSL"}, "certificate verify failed")],
    ids=["unencrypted", "untrusted"],
)
def test_a_client_without_tls_or_without_the_right_ca_gets_a_clear_error(
    relay: RelayHere, config: dict[str, Any], producer: dict[str, Any], said: str
) -> None:
    config["kafka"]["producer"] = producer
    answer = relay("run", "CONFIG", "--until-caught-up")
    assert answer.exit_code == 3
    assert f"no Kafka broker answers at {config['kafka']['bootstrap_servers']}" in answer.stderr
    assert said in answer.stderr
