"""Describing a table and its stream, and the errors if they cannot be read."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import boto3
import pytest

from relay.config import DynamoDBConfig
from relay.dynamodb.config_match import misspelt_columns, unseen_rule
from relay.dynamodb.describe import Description, TableCalls
from relay.errors import ConfigError, Unavailable
from relay.table import KeyColumn
from tests.dynamodb.answering_server import AnsweringServer, Dropped, Refused
from tests.listening import NOBODY

LABEL = "2026-11-21T06:00:00.000"
STREAM_ARN = f"arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/{LABEL}"


def source(endpoint_url: str | None, **others: Any) -> DynamoDBConfig:
    settings = {"name": "shop", "type": "dynamodb", "table": "orders", "region": "us-east-1"} | others
    return DynamoDBConfig(endpoint_url=endpoint_url, **settings)


def look(endpoint_url: str | None, *, patience: float = 0.0, **others: Any) -> Description:
    with closing(TableCalls(source(endpoint_url, **others), probe=True)) as calls:
        return calls.describe(patience)


Answer = dict[str, Any] | Refused | None


@contextmanager
def scripted(**answers: Answer | list[Answer]) -> Iterator[str]:
    """An endpoint with an answer for each operation, None for no answer. A list is taken one by one, its last for ever.

    Yields its URL.
    """
    closing = threading.Event()

    def answer(operation: str, request: dict[str, Any]) -> dict[str, Any]:
        found = answers[operation]
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if found is None:
            closing.wait(60)
            raise Dropped
        if isinstance(found, Refused):
            raise found
        return found

    server = AnsweringServer(answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def table(**others: Any) -> dict[str, Any]:
    description = {
        "TableName": "orders",
        "TableArn": "arn:aws:dynamodb:us-east-1:123456789012:table/orders",
        "TableStatus": "ACTIVE",
        # Not in the order of the key.
        "KeySchema": [{"AttributeName": "line", "KeyType": "RANGE"}, {"AttributeName": "order_id", "KeyType": "HASH"}],
        "AttributeDefinitions": [
            {"AttributeName": "line", "AttributeType": "N"},
            {"AttributeName": "order_id", "AttributeType": "S"},
            {"AttributeName": "email", "AttributeType": "S"},
        ],
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        "LatestStreamArn": STREAM_ARN,
        "LatestStreamLabel": LABEL,
    }
    return {"Table": description | others}


def stream(**others: Any) -> dict[str, Any]:
    description = {
        "StreamArn": STREAM_ARN,
        "StreamLabel": LABEL,
        "StreamStatus": "ENABLED",
        "StreamViewType": "NEW_IMAGE",
        "TableName": "orders",
        "Shards": [],
    }
    return {"StreamDescription": description | others}


def failure(code: str, message: str = "no") -> Refused:
    return Refused(code, message=message)


ITEMS = {"Items": [{"order_id": {"S": "a"}, "line": {"N": "1"}, "total": {"N": "1"}}]}
NOT_ALLOWED = Refused("AccessDeniedException", message="no")


@pytest.mark.parametrize(
    ("scan", "rules", "said"),
    [
        (ITEMS, {"total": "mask", "email": "exclude"}, None),  # the key of an index
        (ITEMS, {"totl": {"absent": "mask"}}, None),
        (
            ITEMS,
            {"totl": "mask"},
            "`protect.orders.totl`: none of the items that were looked at has it; did you mean `total`?",
        ),
        (
            {"Items": []},
            {"xyz": "mask"},
            "none of the items that were looked at has it; known names: email, line, order_id",
        ),
        (NOT_ALLOWED, {"xyz": "mask"}, "the credentials may not look at items (dynamodb:Scan)"),
    ],
)
def test_a_rule_needs_an_attribute_that_is_seen_unless_it_may_be_absent(
    scan: Answer, rules: dict[str, Any], said: str | None
) -> None:
    """A name with a typing mistake would publish what it is to hide."""
    with (
        scripted(DescribeTable=table(), DescribeStream=stream(), Scan=scan) as url,
        closing(TableCalls(source(url, protect={"orders": rules}), probe=True)) as calls,
    ):
        problem = unseen_rule(calls, calls.describe())
    assert problem is None if said is None else said in str(problem)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"order_id": "string", "total": "long"}, []),
        (
            {"totl": "long"},
            [
                "`totl`: none of the items that were looked at has it; did you mean `total`? If other items have it, "
                "or will have it, write `totl: {absent: long}`"
            ],
        ),
        ({"totl": {"absent": "long"}}, []),
        ({"total": "long", "totl": "long"}, []),  # both may be there
        ({"email": "string", "other": "long"}, []),
    ],
)
def test_a_column_without_items_that_is_like_an_attribute_without_a_column_is_refused(
    columns: dict[str, Any], said: list[str]
) -> None:
    entry = DynamoDBConfig.model_validate({"name": "s", "type": "dynamodb", "table": "orders", "columns": columns})
    assert entry.columns is not None
    with (
        scripted(DescribeTable=table(), DescribeStream=stream(), Scan=ITEMS) as url,
        closing(TableCalls(source(url), probe=True)) as calls,
    ):
        assert misspelt_columns(calls.describe(), entry.columns, calls.first_names) == said


def test_items_are_looked_at_once_whatever_asks_for_their_names() -> None:
    """A megabyte has a price."""
    refused = failure("ThrottlingException")
    with (
        scripted(DescribeTable=table(), DescribeStream=stream(), Scan=[ITEMS, refused]) as url,
        closing(TableCalls(source(url, protect={"orders": {"total": "mask"}}), probe=True)) as calls,
    ):
        assert unseen_rule(calls, calls.describe()) is None
        assert calls.first_names == {"order_id", "line", "total"}


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"TableNames": ["order", "users"]}, "`endpoint_url`; did you mean `order`?"),
        ({"TableNames": ["lines"]}, "`endpoint_url`"),
        (NOT_ALLOWED, "`endpoint_url`"),
    ],
)
def test_a_table_that_does_not_exist_is_reported_with_the_nearest_name(listed: Answer, said: str) -> None:
    answers: dict[str, Answer | list[Answer]] = {"DescribeTable": failure("ResourceNotFoundException")}
    with scripted(**answers, ListTables=listed) as url, pytest.raises(Unavailable) as caught:
        look(url)
    assert str(caught.value).endswith(said)


def test_the_key_has_the_hash_column_first_and_no_columns_of_indexes() -> None:
    with scripted(DescribeTable=table(), DescribeStream=stream()) as url:
        found = look(url)
    assert found.key == (KeyColumn("order_id", "S"), KeyColumn("line", "N"))
    assert (found.table, found.stream_arn, found.stream_label) == ("orders", STREAM_ARN, LABEL)
    assert found.view_type == "NEW_IMAGE"


def test_a_stream_given_by_its_arn_is_read_even_if_the_table_has_a_newer_one() -> None:
    newer = STREAM_ARN.replace("06:00", "07:00")
    answers = {"DescribeTable": table(LatestStreamArn=newer), "DescribeStream": stream(StreamViewType="KEYS_ONLY")}
    with scripted(**answers) as url:
        found = look(url, table=None, stream_arn=STREAM_ARN)
    assert (found.stream_arn, found.view_type) == (STREAM_ARN, "KEYS_ONLY")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"DescribeTable": failure("AccessDeniedException", "no right to dynamodb:DescribeTable")},
         "not allowed to describe the table orders in region us-east-1 at .*: no right to dynamodb:DescribeTable"),
        ({"DescribeTable": table(), "DescribeStream": failure("AccessDeniedException")},
         "not allowed to describe the stream arn:aws:dynamodb"),
        ({"DescribeTable": failure("UnrecognizedClientException", "invalid token")},
         "refuses the AWS credentials: invalid token"),
        ({"DescribeTable": failure("ExpiredTokenException")}, "refuses the AWS credentials"),
        ({"DescribeTable": failure("ValidationException", "odd")},
         "refuses to describe the table orders: ValidationException: odd"),
        ({"DescribeTable": table(TableStatus="CREATING")}, "is CREATING: start again when it is ACTIVE"),
        ({"DescribeTable": table(StreamSpecification={"StreamEnabled": False})}, "has no stream: enable it with"),
        ({"DescribeTable": table(), "DescribeStream": failure("ResourceNotFoundException")},
         r"stream arn:.* does not exist, or no longer exists"),
    ],
)  # fmt: skip
def test_an_error_says_why_a_table_cannot_be_read(answers: Any, said: str) -> None:
    with scripted(**answers) as url, pytest.raises(Unavailable, match=f"source shop: .*{said}"):
        look(url)


def test_a_table_that_is_being_created_is_waited_for_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    creating = table(TableStatus="CREATING")
    with scripted(DescribeTable=[creating, creating, table()], DescribeStream=stream()) as url:
        assert look(url, patience=30.0).stream_arn == STREAM_ARN
    assert caplog.messages == ["source shop: table 'orders' is CREATING: waiting up to 30 s for it"]


def test_the_wait_for_a_table_that_is_being_created_is_bounded() -> None:
    begun = time.monotonic()
    with scripted(DescribeTable=table(TableStatus="CREATING")) as url, pytest.raises(Unavailable, match="is CREATING"):
        look(url, patience=0.5)
    assert time.monotonic() - begun >= 0.5


def test_a_table_that_is_deleted_while_it_is_waited_for_is_an_error() -> None:
    answers: Any = {"DescribeTable": [table(TableStatus="CREATING"), failure("ResourceNotFoundException")]}
    with scripted(**answers) as url, pytest.raises(Unavailable, match="table 'orders' does not exist"):
        look(url, patience=30.0)


def test_an_endpoint_that_cannot_be_reached_is_named() -> None:
    url = f"http://{NOBODY}"
    with pytest.raises(Unavailable, match=f"DynamoDB in region us-east-1 at {url} cannot be reached"):
        look(url)


@pytest.mark.services  # it needs no services, but ten seconds
def test_an_endpoint_that_never_answers_fails_in_bounded_time() -> None:
    begun = time.monotonic()
    with scripted(DescribeTable=None) as url, pytest.raises(Unavailable, match="cannot be reached"):
        look(url)
    assert time.monotonic() - begun < 45  # ten seconds; those of a relay would take a minute


def test_missing_credentials_are_reported_with_what_dynamodb_local_accepts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(Unavailable, match=r"no AWS credentials to describe .*AWS_ACCESS_KEY_ID=local"):
        look("http://127.0.0.1:1")


def test_a_missing_region_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="source shop: no region is given"):
        look("http://127.0.0.1:1", region=None)


def test_a_region_that_cannot_be_one_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one with the end of a line, from a file."""
    with pytest.raises(
        ConfigError, match=r"source shop: 'eu-west-1\\n' is not an AWS region such as eu-west-1: correct `region`"
    ):
        look("http://127.0.0.1:1", region="eu-west-1\n")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu west")
    with pytest.raises(
        ConfigError, match=r"source shop: 'eu west' is not an AWS region .*: correct AWS_DEFAULT_REGION, or"
    ):
        look("http://127.0.0.1:1", region=None)


@pytest.mark.services
class TestOnDynamoDB:
    @pytest.fixture
    def client(self, dynamodb: Any) -> Any:
        return boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")

    def create(self, client: Any, name: str, view_type: str | None) -> None:
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "order_id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "order_id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            **({"StreamSpecification": {"StreamEnabled": True, "StreamViewType": view_type}} if view_type else {}),
        )

    def test_a_table_with_a_stream_is_described(self, client: Any, dynamodb: Any, unique: str) -> None:
        self.create(client, unique, "NEW_AND_OLD_IMAGES")
        found = look(dynamodb.endpoint_url, table=unique)
        assert found.table == unique
        assert found.key == (KeyColumn("order_id", "S"),)
        assert found.view_type == "NEW_AND_OLD_IMAGES"
        assert found.stream_arn.endswith(found.stream_label)
        assert look(dynamodb.endpoint_url, table=None, stream_arn=found.stream_arn) == found

    def test_a_missing_table_is_reported_with_region_and_endpoint(self, dynamodb: Any, unique: str) -> None:
        said = f"table '{unique}' does not exist in region us-east-1 at {dynamodb.endpoint_url}: check `table`"
        with pytest.raises(Unavailable, match=said):
            look(dynamodb.endpoint_url, table=unique)

    def test_the_error_for_a_table_without_a_stream_says_how_to_enable_one(
        self, client: Any, dynamodb: Any, unique: str
    ) -> None:
        self.create(client, unique, None)
        command = (
            f"`aws dynamodb update-table --table-name {unique} --region us-east-1 --endpoint-url "
            f"{dynamodb.endpoint_url} --stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES`"
        )
        with pytest.raises(Unavailable, match=f"has no stream: enable it with {re.escape(command)}"):
            look(dynamodb.endpoint_url, table=unique)

    def test_a_disabled_stream_is_not_read(self, client: Any, dynamodb: Any, unique: str) -> None:
        self.create(client, unique, "KEYS_ONLY")
        client.update_table(TableName=unique, StreamSpecification={"StreamEnabled": False})
        with pytest.raises(Unavailable, match="has no stream: enable it with"):
            look(dynamodb.endpoint_url, table=unique)
