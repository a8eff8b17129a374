"""Whose credentials sessions have: those of a role are asked for, renewed, and refused in plain words."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, CredentialRetrievalError

from relay.aws import AwsIdentity, Refused
from relay.aws.identity import open_session, region
from relay.errors import ConfigError
from tests.aws_server import REGION, AwsServer, Keys
from tests.listening import NOBODY


def caller(aws: AwsServer, identity: AwsIdentity) -> str:
    """Return the ARN of who signs the calls of a session."""
    client: Any = open_session(identity).create_client("sts", endpoint_url=aws.url)
    try:
        return str(client.get_caller_identity()["Arn"])
    finally:
        client.close()


def credentials_of(identity: AwsIdentity, now: Callable[[], datetime] | None = None) -> Credentials:
    found = open_session(identity, now=now).get_credentials()
    assert found is not None
    return found


def test_a_session_signs_as_the_role_with_the_name_and_the_external_id_of_the_config(
    aws: AwsServer, aws_user: Keys, unique: str
) -> None:
    identity = AwsIdentity(REGION, role_arn=aws.role(unique, external_id="shop-42"), external_id="shop-42")
    assert caller(aws, identity).endswith(f":assumed-role/{unique}/relay")
    assert caller(aws, replace(identity, role_session_name="shop@eu")).endswith(f"{unique}/shop@eu")
    with pytest.raises(Refused):
        caller(aws, replace(identity, external_id="shop-43"))


def test_a_session_signs_with_the_keys_of_a_profile_and_assumes_a_role_with_them(
    aws: AwsServer, unique: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = aws.user(f"{unique}-other", "sts:AssumeRole")
    file = tmp_path / "credentials"
    file.write_text(f"[shop]\naws_access_key_id={other.access_key}\naws_secret_access_key={other.secret_key}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.url)
    identity = AwsIdentity(REGION, profile="shop")
    assert caller(aws, identity).endswith(f":user/{unique}-other")
    assert caller(aws, replace(identity, role_arn=aws.role(unique))).endswith(f":assumed-role/{unique}/relay")


def test_a_profile_that_does_not_exist_is_a_mistake_in_the_config() -> None:
    with pytest.raises(ConfigError, match=r"\(shop\).*`profile`"):
        open_session(AwsIdentity(REGION, profile="shop"))


def test_the_region_is_that_of_the_config_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="set `region` or AWS_DEFAULT_REGION"):
        region(open_session(AwsIdentity()))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    assert region(open_session(AwsIdentity())) == "us-east-2"
    assert region(open_session(AwsIdentity(REGION))) == REGION


def test_the_credentials_of_a_role_are_renewed_before_they_expire_and_not_for_each_call(
    aws: AwsServer, aws_user: Keys, unique: str
) -> None:
    now = datetime.now(UTC)
    credentials = credentials_of(AwsIdentity(REGION, role_arn=aws.role(unique)), lambda: now)
    first = credentials.get_frozen_credentials()
    now += timedelta(minutes=44)
    assert credentials.get_frozen_credentials() == first
    now += timedelta(minutes=2)
    assert credentials.get_frozen_credentials() != first


def test_a_refused_role_is_named_with_what_to_check(aws: AwsServer, unique: str, aws_user: Keys) -> None:
    arn = aws.role(unique)
    for name, keys in {"may not": aws.user(f"{unique}-x"), "unknown": Keys("AKIAUNKNOWN", "secret-of-nobody")}.items():
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in keys.environment.items():
                patch.setenv(variable, value)
            with pytest.raises(Refused) as raised:
                caller(aws, AwsIdentity(REGION, role_arn=arn, external_id="shop-42"))
        text = str(raised.value)
        assert f"AWS does not let the relay assume the role {arn}: " in text, name
        assert "trust policy" in text
        assert "sts:AssumeRole" in text
        assert keys.secret_key not in text


def test_no_credentials_to_assume_a_role_with_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    credentials = credentials_of(AwsIdentity(REGION, role_arn="arn:aws:iam::123456789012:role/relay"))
    with pytest.raises(Refused, match=r"cannot assume role .*:role/relay: no AWS credentials: .*set AWS_PROFILE"):
        credentials.get_frozen_credentials()


def test_a_service_that_does_not_answer_is_not_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may answer the next time."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{NOBODY}")
    credentials = credentials_of(AwsIdentity(REGION, role_arn="arn:aws:iam::123456789012:role/relay"))
    with pytest.raises(CredentialRetrievalError, match="Could not connect"):
        credentials.get_frozen_credentials()


def test_a_renewal_that_fails_is_logged_in_one_line_while_the_old_credentials_are_good(
    aws: AwsServer, aws_user: Keys, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)
    credentials = credentials_of(AwsIdentity(REGION, role_arn=aws.role(unique)), lambda: now)
    first = credentials.get_frozen_credentials()
    iam = aws.client("iam")
    iam.delete_user_policy(UserName=unique, PolicyName="may")
    iam.close()
    now += timedelta(minutes=47)
    with caplog.at_level(logging.WARNING, "botocore.credentials"):
        assert credentials.get_frozen_credentials() == first
        now += timedelta(minutes=10)
        with pytest.raises(Refused):  # which says it; there is no second line
            credentials.get_frozen_credentials()
    (line,) = caplog.records
    assert "soon expire" in line.getMessage()
    assert line.exc_info is None


def test_other_warnings_of_botocore_are_logged_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "botocore.credentials"):
        try:
            raise ClientError({}, "GetRole")
        except ClientError:
            logging.getLogger("botocore.credentials").warning("of %s", "something", exc_info=True)
    (line,) = caplog.records
    assert line.getMessage() == "of something"
    assert line.exc_info
