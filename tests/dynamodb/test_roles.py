"""Reading a table with the credentials of a role or a profile, and what is said where they are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError
from typer.testing import CliRunner

from relay.aws import Refused
from relay.cli import app
from relay.config import DynamoDBConfig
from relay.dynamodb.describe import TableCalls
from relay.dynamodb.kind import refusals, tagged
from relay.dynamodb.stream_calls import StreamSession, Transient, translated
from relay.errors import Unavailable
from tests.aws_server import REGION, AwsServer, Keys
from tests.listening import NOBODY, give_up_on_brokers_at_once

READS = ("dynamodb:DescribeTable", "dynamodb:DescribeStream", "dynamodb:ListTables", "dynamodb:ListTagsOfResource")


@pytest.fixture
def table(aws: AwsServer, unique: str) -> Iterator[str]:
    client = aws.client("dynamodb")
    client.create_table(
        TableName=unique,
        KeySchema=[{"AttributeName": "order_id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "order_id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        Tags=[{"Key": "relayed", "Value": unique}],
    )
    yield unique
    client.delete_table(TableName=unique)
    client.close()


def source(aws: AwsServer, **others: Any) -> DynamoDBConfig:
    return DynamoDBConfig(name="orders", type="dynamodb", region=REGION, endpoint_url=aws.url, **others)


def test_a_table_is_described_and_its_stream_listed_as_the_role(
    aws: AwsServer, aws_user: Keys, table: str, unique: str
) -> None:
    with_role = source(aws, table=table, role_arn=aws.role(f"{unique}-reads", *READS))
    calls = TableCalls(with_role, probe=True)
    found = calls.describe()
    assert found.table == table
    assert StreamSession(calls.streams, found.stream_arn).describe().shards
    without = TableCalls(source(aws, table=table), probe=True)
    with pytest.raises(Unavailable, match="not authorized to perform: dynamodb:DescribeTable"):
        without.describe()


def test_a_table_is_described_with_the_keys_of_a_profile(
    aws: AwsServer, table: str, unique: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = aws.user(f"{unique}-profile", *READS)
    file = tmp_path / "credentials"
    file.write_text(f"[shop]\naws_access_key_id={keys.access_key}\naws_secret_access_key={keys.secret_key}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    assert TableCalls(source(aws, table=table, profile="shop"), probe=True).describe().table == table


def test_tables_are_found_by_their_tags_as_the_role(aws: AwsServer, aws_user: Keys, table: str, unique: str) -> None:
    role = aws.role(f"{unique}-reads", *READS)
    assert tagged(source(aws, tags={"relayed": unique}, role_arn=role)) == [table]
    with pytest.raises(Unavailable, match=r"cannot find tables by tag.*AWS does not let the relay assume"):
        tagged(source(aws, tags={"relayed": unique}, role_arn=aws.role(unique, external_id="x1"), external_id="x2"))


def test_a_role_that_is_refused_later_ends_the_reading_and_one_that_cannot_be_asked_for_does_not(
    aws: AwsServer, aws_user: Keys, table: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = f"arn:aws:dynamodb:{REGION}:123456789012:table/{table}/stream/2026-11-21T06:00:00.000"
    role = aws.role(unique, external_id="shop-42")
    streams = TableCalls(source(aws, stream_arn=arn, role_arn=role, external_id="shop-43"), probe=True).streams
    with pytest.raises(Unavailable, match=f"may not read {arn}: AWS does not let the relay assume the role {role}"):
        StreamSession(streams, arn).records("iterator")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{NOBODY}")
    streams = TableCalls(source(aws, stream_arn=arn, role_arn=role, external_id="shop-42"), probe=True).streams
    with pytest.raises(Transient, match="Could not connect"):
        StreamSession(streams, arn).records("iterator")


def test_a_refused_role_keeps_its_message_and_is_not_another_error() -> None:
    with pytest.raises(Unavailable, match="the role r"), translated("arn:stream"):
        raise Refused("AWS does not let the relay assume the role r")
    with pytest.raises(Unavailable, match="may not read"), translated("arn:stream"):
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetRecords")


def test_check_names_a_refused_role_in_one_line_and_exits_3(
    aws: AwsServer, aws_user: Keys, table: str, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_on_brokers_at_once(monkeypatch)
    role = aws.role(unique, *READS, external_id="shop-42")
    settings = {"name": "orders", "type": "dynamodb", "table": table, "region": REGION, "endpoint_url": aws.url}
    settings |= {"role_arn": role, "external_id": "shop-43"}
    config = {"name": unique, "kafka": {"bootstrap_servers": NOBODY}, "sources": [settings]}
    path = tmp_path / "relay.yaml"

    def check() -> dict[str, Any]:
        path.write_text(yaml.safe_dump(config))
        answer = CliRunner().invoke(app, ["check", str(path), "--json"])
        assert answer.exit_code == 3  # of the broker, where the source is fine
        assert "Traceback" not in answer.output
        assert aws_user.secret_key not in answer.output
        return next(each for each in json.loads(answer.stdout) if each["check"] == "source orders")

    refused = check()
    assert not refused["ok"]
    assert refused["detail"] == (
        f"AWS does not let the relay assume the role {role}: AccessDenied: User: arn:aws:iam::123456789012:user/"
        f"{unique} is not authorized to perform: sts:AssumeRole: check `role_arn`, "
        "`external_id`, the role's trust policy, and that the relay's own credentials allow sts:AssumeRole"
    )
    settings["external_id"] = "shop-42"
    assert check()["ok"]


def test_check_finds_what_the_credentials_may_not_read_before_the_relay_does(
    aws: AwsServer, aws_user: Keys, table: str, unique: str
) -> None:
    streaming = (*READS, "dynamodb:GetShardIterator")

    def refused(*actions: str) -> list[str]:
        role = aws.role(f"{unique}-{len(actions)}", *actions)
        calls = TableCalls(source(aws, table=table, role_arn=role, snapshot="initial"), probe=True)
        return list(refusals(calls, calls.describe()))

    stream, rows = refused(*streaming)
    assert "dynamodb:GetRecords" in stream
    assert "dynamodb:Scan" in rows
    (rows,) = refused(*streaming, "dynamodb:GetRecords")
    assert "dynamodb:Scan" in rows
    assert refused(*streaming, "dynamodb:GetRecords", "dynamodb:Scan") == []
