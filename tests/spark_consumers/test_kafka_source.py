"""librdkafka's settings are translated exactly for Kafka's Java client, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.config import Config
from relay.config.aws import IamConfig
from relay.errors import ConfigError
from spark_consumers.kafka_source import java_settings, read

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def translated(**producer: Any) -> dict[str, str]:
    given = {key.replace("__", "."): value for key, value in producer.items()}
    config = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "b:1", "producer": given},
        "sources": [{"name": "orders", "type": "dynamodb", "table": "orders"}],
    }
    found = java_settings(Config.model_validate(config).kafka.client())
    assert found.pop("bootstrap.servers") == "b:1"
    return found


def test_settings_that_only_concern_the_producer_are_left_out() -> None:
    assert translated(linger__ms=5, compression__type="lz4") == {}


@pytest.mark.parametrize("name", ["sasl__mechanism", "sasl__mechanisms"])
@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", PLAIN), ("scram-sha-512", SCRAM)])
def test_a_user_and_password_become_a_login_module(name: str, mechanism: str, module: str) -> None:
    found = translated(
        security__protocol="sasl_ssl", sasl__username="me", sasl__password='a"b\\c;', **{name: mechanism}
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism.upper(),
        "sasl.jaas.config": f'{module} required username="me" password="a\\"b\\\\c;";',
    }


IAM = "software.amazon.msk.auth.iam"
ROLE = "arn:aws:iam::123456789012:role/relay"


@pytest.mark.parametrize(
    ("iam", "options"),
    [
        (IamConfig(region="eu-west-1"), ""),
        (IamConfig(profile="shop"), ' awsProfileName="shop" awsAddDefaultProviders="false"'),
        (
            IamConfig(region="eu-west-1", role_arn=ROLE, external_id='a"b'),
            f' awsRoleArn="{ROLE}" awsRoleExternalId="a\\"b" awsRoleSessionName="relay" awsStsRegion="eu-west-1" '
            'awsAddDefaultProviders="false"',
        ),
        (
            IamConfig(role_arn=ROLE, role_session_name="shop"),
            f' awsRoleArn="{ROLE}" awsRoleSessionName="shop" awsAddDefaultProviders="false"',
        ),
    ],
)
def test_tokens_of_aws_become_the_login_module_of_aws(iam: IamConfig, options: str) -> None:
    assert java_settings({"bootstrap.servers": "b:1"}, iam) == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": f"{IAM}.IAMLoginModule required{options};",
        "sasl.client.callback.handler.class": f"{IAM}.IAMClientCallbackHandler",
    }


def test_a_role_with_the_credentials_of_a_profile_is_refused_for_spark() -> None:
    """AWS's module would take the credentials of the profile, and not assume the role."""
    with pytest.raises(ConfigError, match="`role_arn` with the credentials of `profile`"):
        java_settings({"bootstrap.servers": "b:1"}, IamConfig(profile="shop", role_arn=ROLE))


def test_pem_files_become_stores(tmp_path: Path) -> None:
    files = {}
    for name in ("ca", "certificate", "key"):
        files[name] = tmp_path / f"{name}.pem"
        kind = "PRIVATE KEY" if name == "key" else "CERTIFICATE"
        files[name].write_bytes(f"# {name} é\n-----BEGIN {kind}-----\n".encode("latin-1"))
    found = translated(
        security__protocol="SSL",
        ssl__ca__location=str(files["ca"]),
        ssl__certificate__location=str(files["certificate"]),
        ssl__key__location=str(files["key"]),
        ssl__key__password="hunter2",
    )
    assert "BEGIN CERTIFICATE" in found.pop("ssl.truststore.certificates")
    assert "BEGIN CERTIFICATE" in found.pop("ssl.keystore.certificate.chain")
    assert "BEGIN PRIVATE KEY" in found.pop("ssl.keystore.key")
    assert found == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "hunter2",
    }


def test_a_keystore_is_passed_on() -> None:
    assert translated(ssl__keystore__location="/k.p12", ssl__keystore__password="hunter2") == {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/k.p12",
        "ssl.keystore.password": "hunter2",
    }


@pytest.mark.parametrize(("given", "java"), [("none", ""), ("https", "https")])
def test_the_check_of_the_brokers_name_can_be_turned_off(given: str, java: str) -> None:
    found = translated(ssl__endpoint__identification__algorithm=given, enable__ssl__certificate__verification=True)
    assert found == {"ssl.endpoint.identification.algorithm": java}


@pytest.mark.parametrize(
    ("producer", "message"),
    [
        ({"sasl__mechanism": "GSSAPI"}, "sasl.mechanism: the Spark consumers support PLAIN, .*, not GSSAPI"),
        ({"sasl__password": "hunter2"}, "sasl.password: the Spark consumers do not support this setting"),
        ({"enable__ssl__certificate__verification": False}, "enable.ssl.certificate.verification: the Spark"),
        ({"ssl__cipher__suites": "DEFAULT"}, "ssl.cipher.suites: the Spark consumers do not support"),
        ({"ssl__ca__location": "/no/such/file"}, "ssl.ca.location: cannot read the file: .*No such file"),
        ({"ssl__key__pem": "-----BEGIN RSA PRIVATE KEY-----"}, "ssl.key: .*PKCS#8 key: .*openssl pkcs8 -topk8"),
    ],
)
def test_an_unsupported_setting_is_refused_by_name_without_its_value(producer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^kafka\.producer: {message}") as refused:
        translated(**producer)
    assert "hunter2" not in str(refused.value)


class Session:
    """Keeps the options of the stream that is asked of Spark."""

    def __init__(self) -> None:
        self.options_given: dict[str, str] = {}

    @property
    def readStream(self) -> Session:
        return self

    def format(self, name: str) -> Session:
        assert name == "kafka"
        return self

    def options(self, **options: str) -> Session:
        self.options_given = options
        return self

    def load(self) -> Session:
        return self

    def select(self, *columns: str) -> Session:
        return self


def test_a_stream_has_committed_records_only_and_stops_where_some_were_lost() -> None:
    """I3, I9, I11"""
    config = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "b:1"},
        "sources": [{"name": "orders", "type": "dynamodb", "table": "orders"}],
    }
    session: Any = Session()
    read(session, Config.model_validate(config), "log", ["shop.orders", "shop.gaps"], "earliest", 5000)
    given = session.options_given
    assert given["subscribe"] == "shop.orders,shop.gaps"
    assert given["kafka.isolation.level"] == "read_committed"
    assert given["failOnDataLoss"] == "true"
    assert given["maxOffsetsPerTrigger"] == "5000"
