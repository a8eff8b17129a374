"""Whose credentials a config uses in AWS: the keys, what they need beside them, and what they exclude."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.aws import AwsIdentity
from relay.config import MySQLConfig
from tests.config.configs import change, only, read, refused

ROLE = "arn:aws:iam::123456789012:role/relay"
SOURCE = "- {name: legacy, type: mysql, database: d, tables: [a], shards: {'-': ['db:1']}, "


def mysql(keys: str) -> str:
    return change("sources:\n", f"sources:\n      {SOURCE}{keys}}}\n")


def test_a_dynamodb_source_has_the_keys_of_a_role_beside_its_region(file: Path) -> None:
    keys = f"profile: shop\n        role_arn: {ROLE}\n        external_id: e-42\n        role_session_name: relay@shop"
    source = only(read(file, change("region: us-east-1", f"region: us-east-1\n        {keys}")))
    assert source.identity(source.region_name) == AwsIdentity("us-east-1", "shop", ROLE, "e-42", "relay@shop")


def test_iam_of_a_mysql_source_and_of_kafka_have_them_too(file: Path) -> None:
    source = read(file, mysql(f"user: u, tls: {{}}, iam: {{region: eu-west-1, role_arn: '{ROLE}'}}")).sources[0]
    assert isinstance(source, MySQLConfig)
    assert source.iam is not None
    assert source.iam.identity(source.iam.region) == AwsIdentity("eu-west-1", None, ROLE)
    kafka = read(file, change("producer: {}", "iam: {}")).kafka
    assert kafka.iam is not None
    assert kafka.iam.identity(kafka.iam.region) == AwsIdentity()


def test_every_client_of_kafka_gets_tokens_over_tls(file: Path) -> None:
    kafka = read(file, change("producer: {}", "producer: {ssl.ca.location: /ca}, iam: {region: eu-west-1}")).kafka
    client = kafka.client()
    assert callable(client.pop("oauth_cb"))
    assert client == {
        "bootstrap.servers": "127.0.0.1:9092",
        "ssl.ca.location": "/ca",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (mysql("user: u, tls: {}, password: p, iam: {}"), "conflicts with `iam`"),
        (mysql("tls: {}, iam: {}"), "needs the `user`"),
        (mysql("user: u, iam: {}"), "needs `tls`, such as {ca: bundle.pem}"),
        (mysql("user: u, tls: {}, iam: {external_id: shop}"), "`sources[0].iam.external_id`: only applies to a role"),
        (change("region: us-east-1", "external_id: shop"), "only applies to a role: set `role_arn`"),
        (change("region: us-east-1", "role_session_name: shop"), "only applies to a role: set `role_arn`"),
        (change("producer: {}", "producer: {sasl.username: u}, iam: {}"), "conflicts with `kafka.iam`"),
        (change("producer: {}", "producer: {security.protocol: ssl}, iam: {}"), "must be sasl_ssl"),
    ],
)
def test_what_does_not_go_together_is_refused(file: Path, text: str, said: str) -> None:
    (problem,) = refused(file, text)
    assert said in problem
