"""The tokens for RDS and MSK: signed by whom the config says, as AWS's own packages sign them."""

from __future__ import annotations

import base64
import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # type: ignore[import-untyped]
from botocore.credentials import CredentialProvider, Credentials

from relay.aws import AwsIdentity, Refused
from relay.aws.tokens import LIFETIME, DatabaseTokens, broker_token, broker_tokens
from relay.errors import ConfigError, Unavailable
from tests.aws_server import REGION, AwsServer, Keys
from tests.listening import NOBODY
from tests.signatures import signer_of

HOST = "orders.abc123.eu-west-1.rds.amazonaws.com"


def opened(token: str) -> str:
    """Return the request in an MSK token."""
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def signer_at_msk(token: str, secret_of: Any) -> str:
    return signer_of(opened(token), "kafka-cluster", REGION, secret_of, unsigned=("User-Agent",))


def test_a_token_for_rds_is_signed_for_one_server_and_one_user(aws_user: Keys) -> None:
    token = DatabaseTokens(AwsIdentity(REGION)).make(HOST, 3306, "relay")
    asked = urlsplit(f"https://{token}")
    assert (asked.netloc, dict(parse_qsl(asked.query))["DBUser"]) == (f"{HOST}:3306", "relay")
    assert dict(parse_qsl(asked.query))["X-Amz-Expires"] == str(LIFETIME)
    mine = (aws_user.secret_key, "")
    assert signer_of(f"https://{token}", "rds-db", REGION, lambda _: mine) == aws_user.access_key
    for other in (token.replace("DBUser=relay", "DBUser=admin"), token.replace(HOST, f"other.{HOST}")):
        assert other != token
        with pytest.raises(PermissionError, match="signature is wrong"):
            signer_of(f"https://{other}", "rds-db", REGION, lambda _: mine)


def test_tokens_are_signed_with_the_credentials_of_the_role(aws: AwsServer, aws_user: Keys, unique: str) -> None:
    identity = AwsIdentity(REGION, role_arn=aws.role(unique))
    token = DatabaseTokens(identity).make(HOST, 3306, "relay")
    assert signer_of(f"https://{token}", "rds-db", REGION, aws.secret_of) != aws_user.access_key
    for_brokers, _ = broker_tokens(identity).make()
    assert signer_at_msk(for_brokers, aws.secret_of) != aws_user.access_key


def test_a_token_for_msk_is_the_one_of_the_package_of_aws() -> None:
    credentials = Credentials("AKIA1", "secret", "session/token+=")

    class Provider(CredentialProvider):
        def load(self) -> Credentials:
            return credentials

    begun = int(time.time())
    theirs, mine = "", ""
    while theirs.partition("&X-Amz-Signature")[0] != mine.partition("&X-Amz-Signature")[0] or not mine:
        # Within one second they are the same.
        found, expires_ms = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider(REGION, Provider())
        token, expires = broker_token(credentials, REGION)
        theirs, mine = opened(found), opened(token)
    assert mine.partition("&User-Agent")[0] == theirs.partition("&User-Agent")[0]
    assert expires * 1000 == expires_ms
    assert begun <= expires - LIFETIME <= time.time()


def test_a_token_for_msk_is_valid_for_its_region_and_not_after_its_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    token, _ = broker_token(Credentials("AKIA1", "secret"), REGION)
    assert signer_at_msk(token, lambda _: ("secret", "")) == "AKIA1"
    with pytest.raises(PermissionError, match="not for kafka-cluster in us-east-1"):
        signer_of(opened(token), "kafka-cluster", "us-east-1", lambda _: ("secret", ""), unsigned=("User-Agent",))
    now = time.time()
    monkeypatch.setattr("tests.signatures.time.time", lambda: now + LIFETIME + 1)
    with pytest.raises(PermissionError, match="expired"):
        signer_at_msk(token, lambda _: ("secret", ""))


def test_a_process_has_one_source_of_tokens_for_each_identity() -> None:
    """So that a role is assumed once, not by each client of Kafka."""
    assert broker_tokens(AwsIdentity(REGION)) is broker_tokens(AwsIdentity(REGION))
    assert broker_tokens(AwsIdentity(REGION)) is not broker_tokens(AwsIdentity("us-east-1"))


def test_what_has_no_credentials_no_region_or_no_answer_says_so(monkeypatch: pytest.MonkeyPatch, unique: str) -> None:
    role = AwsIdentity(REGION, role_arn=f"arn:aws:iam::123456789012:role/{unique}")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_STS", f"http://{NOBODY}")
        for make in (lambda: DatabaseTokens(role).make(HOST, 3306, "relay"), lambda: broker_tokens(role).make()):
            with pytest.raises(Unavailable, match=r"no AWS credentials for an .* token now: .*Could not connect") as no:
                make()
            assert not isinstance(no.value, Refused)
    with pytest.raises(ConfigError, match="no region"):
        DatabaseTokens(AwsIdentity()).make(HOST, 3306, "relay")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(Refused, match=r"no AWS credentials for an RDS token: .*set AWS_PROFILE"):
        DatabaseTokens(AwsIdentity(REGION)).make(HOST, 3306, "relay")
    with pytest.raises(Refused, match=r"no AWS credentials for an MSK token: .*set AWS_PROFILE"):
        broker_tokens(AwsIdentity(REGION, role_session_name=unique)).make()
