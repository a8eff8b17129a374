"""Raw records: the same changes as with botocore's parsing, and the same errors."""

from __future__ import annotations

import gc
import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from relay.change import Uncarriable
from relay.config import DynamoDBConfig
from relay.dynamodb.columns import TypedRows
from relay.dynamodb.describe import TableCalls
from relay.dynamodb.raw_records import RawData, RawRecord
from relay.dynamodb.records import RecordFormat
from relay.dynamodb.stream_calls import StreamSession, Transient
from relay.dynamodb.values import image_json
from relay.errors import RelayError
from relay.stream_token import TRIM_HORIZON
from relay.table import KeyColumn, TableSchema
from tests.dynamodb.endpoint import ARN, TABLE, ScriptedShard, ScriptedStream
from tests.dynamodb.items import TYPED, with_base64
from tests.examples import examples

FORMAT = RecordFormat(TableSchema("orders", TABLE, (KeyColumn("id", "S"),), 1), "orders/label/shard")


class Served:
    """A shard, read by the relay's client and by an unmodified boto3 client."""

    def __init__(self, stream: ScriptedStream) -> None:
        self.stream = stream
        self.shard: ScriptedShard = stream.shard("s")
        place: dict[str, Any] = {"endpoint_url": stream.url, "region": "us-east-1"}
        config = DynamoDBConfig(name="orders", type="dynamodb", table=TABLE, **place)
        self.calls = TableCalls(config)
        streams = self.calls.streams
        stock = boto3.client("dynamodbstreams", region_name="us-east-1", endpoint_url=stream.url)
        self.ours, self.stock = StreamSession(streams, ARN), StreamSession(stock, ARN)

    def read(self, session: StreamSession) -> list[Any]:
        iterator = session.iterator(self.shard.id, TRIM_HORIZON)
        assert iterator is not None
        return session.records(iterator)[0]

    def close(self) -> None:
        for client in (self.calls, self.stock.client):
            client.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """For tests that only read their own records."""
    with ScriptedStream() as stream:
        served = Served(stream)
        yield served
        served.close()


@pytest.fixture
def served() -> Iterator[Served]:
    with ScriptedStream() as stream:
        served = Served(stream)
        yield served
        served.close()


def test_raw_records_are_unchanged_from_the_wire(served: Served) -> None:
    """Fails if botocore no longer uses the relay's parsed answer, or parses it again."""
    served.stream.put("s", "k", 1, created=1_700_000_000, unheard={"of": None})
    image = served.shard.records[0]["dynamodb"]["NewImage"]
    image |= {"b": {"B": "AP8="}, "bs": {"BS": ["AP8="]}, "new": {"X": {}}}
    ours, stock = served.read(served.ours)[0].dynamodb, served.read(served.stock)[0]["dynamodb"]
    assert bytes(ours.new_image) == orjson.dumps(image)
    assert ours.approximate_creation_date_time == 1_700_000_000
    # Another client in the same process is not changed.
    assert stock["ApproximateCreationDateTime"] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert stock["NewImage"]["b"] == {"B": b"\x00\xff"}


def test_botocore_parses_the_rest_of_the_answer(served: Served) -> None:
    iterator = served.ours.iterator(served.shard.id, TRIM_HORIZON)
    assert iterator is not None
    answer = served.ours.client.get_records(ShardIterator=iterator)
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert answer["NextShardIterator"]
    served.stream.close("s")
    assert "NextShardIterator" not in served.ours.client.get_records(ShardIterator=iterator)


@settings(deadline=None, max_examples=examples(60))
@given(st.dictionaries(st.text(), TYPED, max_size=4), st.dictionaries(st.text(), TYPED, max_size=4))
def test_images_are_byte_for_byte_those_of_botocores_parser(
    shared: Served, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """I8"""
    shared.shard.records.clear()
    shared.stream.put("s", "k", 1, created=1_700_000_000, old=1)
    shared.shard.records[0]["dynamodb"] |= {"OldImage": with_base64(old), "NewImage": with_base64(new)}
    (record,), (stock,) = shared.read(shared.ours), shared.read(shared.stock)
    change = FORMAT.change(record, 0)
    assert change.old == image_json(stock["dynamodb"]["OldImage"]) == image_json(old)
    assert change.new == image_json(stock["dynamodb"]["NewImage"]) == image_json(new)
    assert change.committed_at == 1_700_000_000_000_000


def test_the_deepest_nesting_and_the_longest_number_are_carried(served: Served) -> None:
    """I8: 32 levels, 38 digits at both ends of the exponents."""
    value: dict[str, Any] = {"NS": ["9.9999999999999999999999999999999999999E+125", "-1E-130"]}
    for _ in range(32):
        value = {"L": [{"M": {"": value}}]}
    served.stream.put("s", "k", 1, created=1_700_000_000)
    image = served.shard.records[0]["dynamodb"]["NewImage"] = {"a": value}
    assert FORMAT.change(served.read(served.ours)[0], 0).new == orjson.dumps(image).decode()


@pytest.mark.parametrize("style", [{}, {"indent": 1}, {"ensure_ascii": True, "separators": (",", ":")}])
def test_images_do_not_depend_on_how_the_answer_is_written(
    served: Served, monkeypatch: pytest.MonkeyPatch, style: dict[str, Any]
) -> None:
    """I8: needless spaces and escapes are removed."""
    served.stream.put("s", "k", 1, old=1)
    image = {"a": {"S": 'é \\ " / \n\u2028 \U0001f600'}, "b": {"L": []}, "c d": {"N": "1.0"}}
    served.shard.records[0]["dynamodb"] |= {"OldImage": image, "NewImage": {}}
    body = json.dumps({"Records": served.shard.records}, **{"ensure_ascii": False, **style}).encode()
    monkeypatch.setattr(served.stream, "_GetRecords", lambda request: orjson.Fragment(body))
    change = FORMAT.change(served.read(served.ours)[0], 0)
    assert (change.old, change.new) == (orjson.dumps(image).decode(), "{}")


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\xff" * 2048])
def test_a_binary_key_is_bytes(served: Served, raw: bytes) -> None:
    served.stream.put("s", "k", 1, created=1_700_000_000)
    served.shard.records[0]["dynamodb"]["Keys"] = {"id": {"B": b64encode(raw).decode()}}
    assert FORMAT.change(served.read(served.ours)[0], 0).key == {"id": raw}


def test_a_time_with_decimals_counts_as_its_second(served: Served) -> None:
    served.stream.put("s", "k", 1, created=1_700_000_000)
    served.shard.records[0]["dynamodb"]["ApproximateCreationDateTime"] = 1_700_000_000.9
    change = FORMAT.change(served.read(served.ours)[0], 0)
    assert change.committed_at == 1_700_000_000_000_000
    assert change.token is not None
    assert change.token.timestamp == 1_700_000_000


def test_the_user_identity_does_not_depend_on_the_order_of_its_keys(served: Served) -> None:
    identity = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}
    served.stream.put("s", "k", 1, created=1_700_000_000, old=1, eventName="REMOVE", userIdentity=identity)
    attributes = FORMAT.change(served.read(served.ours)[0], 0).attributes
    assert attributes["user_identity"] == '{"PrincipalId":"dynamodb.amazonaws.com","Type":"Service"}'
    assert attributes["ttl_delete"] == "true"


def test_a_record_that_botocore_has_parsed_is_refused(served: Served) -> None:
    """I8: a client without the hook fails at once, instead of carrying something else."""
    sequence = served.stream.put("s", "k", 1, created=1_700_000_000)
    with pytest.raises(RelayError, match=sequence):
        FORMAT.change(served.read(served.stock)[0], 0)


@pytest.mark.parametrize("columns", [None, {"id": "string"}, {"id": "string", "version": "json"}])
def test_text_that_is_not_unicode_is_passed_on_and_refused_by_the_encoder(
    served: Served, monkeypatch: pytest.MonkeyPatch, columns: dict[str, str] | None
) -> None:
    """I8: half a surrogate pair is valid JSON, but not valid text."""
    served.stream.put("s", "k", 1, old=7, created=1_700_000_000)
    served.stream.put("s", "l", 2)
    body = orjson.dumps({"Records": served.shard.records}).replace(b'"1"', b'"\\ud800"')
    monkeypatch.setattr(served.stream, "_GetRecords", lambda request: orjson.Fragment(body))
    bad, good = served.read(served.ours)
    made = RecordFormat(FORMAT.table, FORMAT.shard, TypedRows(columns) if columns else None)
    change = made.change(bad, 0)
    assert isinstance(change.old, Uncarriable)
    assert isinstance(change.new, Uncarriable)
    assert change.old.item == {"id": {"S": "k"}, "version": {"N": "7"}}
    assert change.new.item == {"id": {"S": "k"}, "version": {"N": "\ud800"}}
    assert made.change(good, 0).key == {"id": "l"}


def test_bytes_that_are_not_utf_8_become_lone_surrogates() -> None:
    image = Raw(b'{"id":{"S":"\xff"}}')
    data = RawData("7", 1_700_000_000.0, {"id": {"S": "k"}}, "NEW_IMAGE", new_image=image)
    change = FORMAT.change(RawRecord("INSERT", data), 0)
    assert isinstance(change.new, Uncarriable)
    assert change.new.item == {"id": {"S": "\udcff"}}


def test_a_key_that_is_not_unicode_is_refused_with_its_sequence_number(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: it has no key to publish it under."""
    sequence = served.stream.put("s", "k", 1, created=1_700_000_000)
    body = orjson.dumps({"Records": served.shard.records}).replace(b'"k"', b'"\\ud800"')
    monkeypatch.setattr(served.stream, "_GetRecords", lambda request: orjson.Fragment(body))
    with pytest.raises(RelayError, match=sequence):
        FORMAT.change(served.read(served.ours)[0], 0)


DEEP = '{"Records":[],"more":' + "[" * 10_000 + "]" * 10_000 + "}"


@pytest.mark.parametrize(
    "body", ["", "<html>sign in</html>", '{"Records":[{"dynamodb":', "[]", "{}", '{"Records":{}}', DEEP]
)
def test_an_answer_that_is_not_get_records_is_transient(
    served: Served, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """I1: it does not count as an empty page."""
    gc.collect()  # a finalizer that runs at the limit of the recursion fails
    monkeypatch.setattr(served.stream, "_GetRecords", lambda request: orjson.Fragment(body))
    with pytest.raises(Transient, match="cannot be read"):
        served.read(served.ours)


def test_calls_name_the_relay_and_the_application_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever reads CloudTrail knows who calls."""
    monkeypatch.setenv("AWS_SDK_UA_APP_ID", "shop")
    with ScriptedStream() as stream:
        stream.shard("s")
        served, agents = Served(stream), []
        served.ours.client.meta.events.register(
            "before-send.dynamodb-streams.GetRecords",
            lambda request, **_: agents.append(request.headers["User-Agent"].decode()),
        )
        served.read(served.ours)
        served.close()
    (agent,) = agents
    assert {f"Boto3/{boto3.__version__}", "app/shop", "relay"} <= set(agent.split())
