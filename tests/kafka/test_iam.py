"""A broker that takes tokens of AWS only: every client logs in with them, in time, and no output shows them."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from relay.aws import tokens
from relay.config import KafkaConfig, load
from relay.demo.dynamodb_orders import create_table
from relay.kafka.changes import changes
from tests.aws_server import REGION, AwsServer, Keys
from tests.certificates import Authority
from tests.command_line import Relay, RelayHere, relay_here_with, relay_with
from tests.kafka.msk import MskBroker
from tests.services.brokers import SecuredBroker
from tests.waiting import wait_until

pytestmark = pytest.mark.services

OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(scope="module")
def msk(tmp_path_factory: pytest.TempPathFactory, aws: AwsServer) -> Iterator[MskBroker]:
    with MskBroker(tmp_path_factory.mktemp("authority"), aws.secret_of) as broker:
        yield broker


@pytest.fixture
def config(
    msk: MskBroker, aws: AwsServer, aws_user: Keys, dynamodb: Any, redis_server: Any, unique: str
) -> dict[str, Any]:
    table = {"name": "orders", "type": "dynamodb", "table": unique, "region": "us-east-1"}
    return {
        "name": unique,
        "kafka": {
            "bootstrap_servers": msk.bootstrap_servers,
            "partitions": 2,
            "producer": {"ssl.ca.location": msk.ca},
            "iam": {"region": REGION, "role_arn": aws.role(unique)},
        },
        "sources": [{**table, "endpoint_url": dynamodb.endpoint_url}],
        "cache": {"url": redis_server.url, "namespace": unique, "keys": {unique: ["order:{customer}"]}},
    }


TOKENS = ("X-Amz", "aHR0cHM6Ly9rYWZrYS")
"""What no output contains: a token as it is, and in Base64."""


@pytest.fixture
def relay(config: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> RelayHere:
    return relay_here_with(config, tmp_path, capfd, *TOKENS)


@pytest.fixture
def started(config: dict[str, Any], tmp_path: Path) -> Relay:
    """Run a command in a process of its own."""
    return relay_with(config, tmp_path, *TOKENS)


def test_the_relay_its_commands_and_a_consumer_log_in_as_the_role(
    started: Relay, relay: RelayHere, msk: MskBroker, aws_user: Keys, dynamodb: Any, unique: str, tmp_path: Path
) -> None:
    with closing(boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")) as client:
        create_table(client, unique)
        client.put_item(TableName=unique, Item={"customer": {"S": "ada"}, "order_id": {"N": "7"}})
    msk.door.signers.clear()
    ran = started("run", "CONFIG", "--until-caught-up")
    assert ran.returncode == 0, ran.stderr
    for command in (
        ("check", "CONFIG"),
        ("status", "CONFIG", "--json"),
        ("gaps", "list", "CONFIG"),
        ("dead-letters", "list", "CONFIG"),
        ("consume", "cache", "CONFIG", "--until-caught-up", "--engine", "python"),
        ("reset", "CONFIG", "orders", "--to", "trim_horizon"),
    ):
        done = relay(*command)
        assert done.exit_code == 0, (command, done.output, done.exception)
    shown = relay("tail", "CONFIG", "--from-beginning", "--exit-at-end", "--json")
    assert [json.loads(line)["key"] for line in shown.stdout.splitlines()] == ["ada"]
    received = changes(load(tmp_path / "relay.yaml"), [f"{unique}.{unique}"], group=f"{unique}.program")
    assert next(iter(received)).key == {"customer": "ada", "order_id": "7"}
    assert msk.door.refusals == []
    clients = {name for name, _ in msk.door.signers}
    assert {f"{unique}-{role}" for role in ("admin", "relay", "schemas", "tail")} <= clients
    assert aws_user.access_key not in {signer for _, signer in msk.door.signers}


@pytest.mark.faults(
    "the log in of another client: test_the_relay_its_commands_and_a_consumer_log_in_as_the_role lets the others in, "
    "test_kafka_source.py has the settings of Spark's"
)
def test_a_spark_consumer_logs_in_with_the_module_of_aws(
    started: Relay,
    config: dict[str, Any],
    msk: MskBroker,
    aws: AwsServer,
    dynamodb: Any,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, REGION)  # no broker of a test has a region in its name
    # With a region in the config, AWS's module asks the STS of AWS, not the one of the environment.
    config["kafka"]["iam"] = {"role_arn": aws.role(f"{unique}-java", external_id="e-42"), "external_id": "e-42"}
    config["log"] = {"path": f"file://{tmp_path}/log"}
    config["spark"] = {"conf": {"spark.jars.packages": "software.amazon.msk:aws-msk-iam-auth:2.3.5"}}
    with closing(boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")) as client:
        create_table(client, unique)
        client.put_item(TableName=unique, Item={"customer": {"S": "ada"}, "order_id": {"N": "7"}})
    assert started("run", "CONFIG", "--until-caught-up").returncode == 0
    msk.door.signers.clear()
    ran = started("consume", "log", "CONFIG", "--until-caught-up", "--checkpoint", str(tmp_path / "point"))
    assert ran.returncode == 0, ran.stderr
    (batch,) = (json.loads(line) for line in ran.stderr.splitlines() if '"event": "batch"' in line)
    assert batch["rows"] == 1
    assert msk.door.refusals == []
    assert [name for name, _ in msk.door.signers if "-executor-" in name]


def test_tokens_of_another_identity_are_refused_in_plain_words(
    relay: RelayHere, config: dict[str, Any], msk: MskBroker
) -> None:
    config["kafka"]["iam"] = {"region": REGION}  # the user, whom this broker does not know
    answer = relay("check", "CONFIG")
    assert answer.exit_code == 3
    assert "Access denied" in answer.stdout
    msk.door.refusals.clear()


COMMANDS = [
    ("check", "CONFIG"),
    ("run", "CONFIG", "--until-caught-up"),
    ("status", "CONFIG"),
    ("tail", "CONFIG", "--exit-at-end"),
    ("gaps", "list", "CONFIG"),
    ("dead-letters", "list", "CONFIG"),
    ("snapshot", "CONFIG", "orders"),
    ("reset", "CONFIG", "orders", "--to", "latest"),
    ("consume", "cache", "CONFIG", "--until-caught-up", "--engine", "python"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command[0]))
def test_a_refused_role_is_named_and_exits_3(
    relay: RelayHere, config: dict[str, Any], aws: AwsServer, unique: str, command: tuple[str, ...]
) -> None:
    role = aws.role(f"{unique}-other", external_id="shop-42")
    config["kafka"]["iam"] |= {"role_arn": role, "external_id": "shop-43"}
    answer = relay(*command)
    assert answer.exit_code == 3
    assert f"AWS does not let the relay assume the role {role}: AccessDenied" in answer.output
    assert isinstance(answer.exception, SystemExit)


def test_clients_that_wait_renew_their_tokens_before_they_expire(
    config: dict[str, Any], msk: MskBroker, monkeypatch: pytest.MonkeyPatch, unique: str, tmp_path: Path
) -> None:
    """A worker without changes calls nothing but its consumers; an administrator's client may be idle for hours."""
    monkeypatch.setattr(tokens, "LIFETIME", 10)
    monkeypatch.setattr(msk.door, "session", 4.0)  # clients have to log in again on the connections that they have
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(config))
    client = load(path).kafka.client()
    names = [f"{unique}-{kind}" for kind in ("admin", "producer", "consumer")]
    admin = AdminClient({**client, "client.id": names[0]})
    producer = Producer({**client, "client.id": names[1]})

    def logins() -> dict[str, int]:
        return {name: sum(who == name for who, _ in msk.door.signers) for name in names}

    with closing(Consumer({**client, "client.id": names[2], "group.id": unique})) as consumer:
        for _ in range(2):
            assert admin.list_topics(timeout=60).brokers
            assert producer.list_topics(timeout=60).brokers
            consumer.committed([TopicPartition(unique, 0)], timeout=60)
            before = logins()
            assert all(before[name] > 0 for name in names), before
            time.sleep(13)  # nobody polls
            wait_until(lambda before=before: all(logins()[name] > before[name] for name in names))  # type: ignore[misc]
    assert msk.door.refusals == []


def test_a_broker_of_apache_kafka_takes_tokens_of_the_same_callback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It knows no tokens of AWS, but it has its own idea of OAUTHBEARER, and of sessions that end."""
    authority = Authority(tmp_path)
    expiries: list[float] = []

    def unsecured(credentials: Any, region: str) -> tuple[str, float]:
        now = time.time()
        expiries.append(now + 8)
        parts = ({"alg": "none"}, {"sub": "relay", "iat": now, "exp": expiries[-1]})
        coded = (urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return ".".join([*coded, ""]), expiries[-1]

    monkeypatch.setattr(tokens, "broker_token", unsecured)
    settings = {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "listener.name.client.oauthbearer.sasl.jaas.config": (
            f'{OAUTHBEARER} required unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.client.oauthbearer.connections.max.reauth.ms": "4000",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
    }
    kafka = {"producer": {"ssl.ca.location": str(authority.ca)}, "iam": {"region": REGION}}
    client = KafkaConfig.model_validate({**kafka, "bootstrap_servers": "unused:1"}).client()
    del client["bootstrap.servers"]
    with SecuredBroker(options=settings, client=client) as broker:
        client["bootstrap.servers"] = broker.bootstrap_servers
        admin, producer = AdminClient(client), Producer(client)
        for future in admin.create_topics([NewTopic("t", 1, 1)]).values():
            future.result(120)
        for value in (b"1", b"2"):
            producer.produce("t", value)
            assert producer.flush(120) == 0
            made = len(expiries)
            time.sleep(12)
        wait_until(lambda: len(expiries) > made)
        with closing(Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})) as consumer:
            consumer.subscribe(["t"])
            found = [message.value() for message in consumer.consume(2, 120)]
        assert found == [b"1", b"2"]
        assert admin.list_topics(timeout=60).brokers
