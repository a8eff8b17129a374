"""GetRecords without most of botocore: the same answers, and the same errors as with all of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relay.config import DynamoDBConfig
from relay.dynamodb.describe import TableCalls
from relay.dynamodb.stream_calls import IteratorExpired, StreamSession, Transient
from relay.errors import Unavailable
from relay.stream_token import TRIM_HORIZON
from tests.aws_server import REGION, AwsServer, Keys
from tests.dynamodb.answering_server import Dropped, Refused
from tests.dynamodb.endpoint import ARN, TABLE, ScriptedStream
from tests.dynamodb.kept_open import KeptOpen

FINAL = [
    (Refused("ExpiredTokenException", 403), Unavailable, "may not read"),
    (Refused("ExpiredIteratorException"), IteratorExpired, "ExpiredIterator"),
]
PASSING = [Refused("ThrottlingException"), Refused("InternalServerError", 500), Dropped()]


class Lean:
    """A shard with a record whose next call is lean. ``whole``: how many calls botocore has made as a whole."""

    def __init__(self, stream: ScriptedStream) -> None:
        self.stream = stream
        shard = stream.shard("s")
        stream.put("s", "k", 1)
        place: dict[str, Any] = {"endpoint_url": stream.url, "region": "us-east-1"}
        self._table = TableCalls(DynamoDBConfig(name="orders", type="dynamodb", table=TABLE, **place))
        streams = self._table.streams
        self.session = StreamSession(streams, ARN)
        self.whole = 0
        streams.meta.events.register("before-call.dynamodb-streams.GetRecords", self._count)
        iterator = self.session.iterator(shard.id, TRIM_HORIZON)
        assert iterator is not None
        self.iterator = iterator
        self.read()
        assert (self.whole, self.asked) == (1, 1)

    def _count(self, **_: Any) -> None:
        self.whole += 1

    @property
    def asked(self) -> int:
        return self.stream.calls.count("GetRecords")

    def read(self) -> int:
        return len(self.session.records(self.iterator)[0])

    def fail(self, error: Exception, times: int) -> None:
        """Answer the next ``times`` calls of GetRecords with ``error``."""
        left = iter(range(times))

        def before(operation: str) -> None:
            if operation == "GetRecords" and next(left, None) is not None:
                raise error

        self.stream.before = before

    def close(self) -> None:
        self._table.close()


@pytest.fixture
def lean() -> Iterator[Lean]:
    with ScriptedStream() as stream:
        found = Lean(stream)
        yield found
        found.close()


def test_a_call_after_the_first_is_one_request_with_the_same_answer(lean: Lean) -> None:
    first = lean.stream.requests[-1]
    assert lean.read() == 1
    assert (lean.whole, lean.asked) == (1, 2)
    assert lean.stream.requests[-1] == first


@pytest.mark.parametrize(("error", "kind", "message"), FINAL)
def test_a_refusal_is_the_one_that_botocore_is_given(
    lean: Lean, error: Refused, kind: type[Exception], message: str
) -> None:
    lean.fail(error, 2)
    with pytest.raises(kind, match=message):
        lean.read()
    assert (lean.whole, lean.asked) == (2, 3)


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_botocore_makes_a_call_that_failed_once_more_and_the_next_is_lean_again(lean: Lean, error: Exception) -> None:
    lean.fail(error, 1)
    assert lean.read() == 1
    assert (lean.whole, lean.asked) == (2, 3)
    assert lean.read() == 1
    assert (lean.whole, lean.asked) == (2, 4)


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_what_fails_twice_is_transient(lean: Lean, error: Exception) -> None:
    """I1: it does not count as an empty page. Whoever reads the shard repeats the call, and nobody else."""
    lean.fail(error, 2)
    with pytest.raises(Transient):
        lean.read()
    assert (lean.whole, lean.asked) == (2, 3)


def test_a_connection_that_is_refused_is_transient(lean: Lean) -> None:
    lean.stream._server.shutdown()
    lean.stream._server.server_close()
    lean.fail(Dropped(), 1)  # on the connection that was kept
    with pytest.raises(Transient, match="Could not connect"):
        lean.read()
    assert lean.whole == 2


def test_each_of_many_threads_gets_the_answer_to_its_own_call(lean: Lean) -> None:
    """I2: they share the connections."""
    names = [f"t{number}" for number in range(8)]
    iterators = {}
    for name in names:
        shard = lean.stream.shard(name)
        lean.stream.put(name, name, 1)
        iterators[name] = lean.session.iterator(shard.id, TRIM_HORIZON)

    def read(name: str) -> set[str]:
        iterator = iterators[name]
        assert iterator is not None
        return {lean.session.records(iterator)[0][0].dynamodb.keys["id"]["S"] for _ in range(30)}

    with ThreadPoolExecutor(len(names)) as threads:
        assert list(threads.map(read, names)) == [{name} for name in names]
    assert lean.whole <= 1 + len(names)


def test_calls_are_signed_with_the_credentials_of_the_role(aws: AwsServer, aws_user: Keys, unique: str) -> None:
    """Of two calls the second is lean; the server checks signatures, tokens and what the role may do."""
    administrator = aws.client("dynamodb")
    administrator.create_table(
        TableName=unique,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    administrator.put_item(TableName=unique, Item={"id": {"S": "k"}})
    actions = ("DescribeTable", "DescribeStream", "GetShardIterator", "GetRecords")
    role = aws.role(unique, *(f"dynamodb:{action}" for action in actions))
    with KeptOpen(aws.url) as kept:
        source = DynamoDBConfig(
            name="orders", type="dynamodb", table=unique, region=REGION, endpoint_url=kept.url, role_arn=role
        )
        calls = TableCalls(source, probe=True)
        streams = calls.streams
        session = StreamSession(streams, calls.describe().stream_arn)
        whole: list[None] = []
        streams.meta.events.register("before-call.dynamodb-streams.GetRecords", lambda **_: whole.append(None))
        (shard,) = session.describe().shards
        iterator = session.iterator(shard.id, TRIM_HORIZON)
        assert iterator is not None
        assert [len(session.records(iterator)[0]) for _ in range(2)] == [1, 1]
        assert len(whole) == 1
        administrator.delete_table(TableName=unique)
        for each in (administrator, calls):
            each.close()
