"""Loading by keys: every item that exists, once, and nothing else, however DynamoDB splits its answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal
from typing import Any

import boto3
import pytest
from botocore.config import Config as BotoConfig
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.dynamodb import Loaded, batch_load
from relay.errors import RelayError, Unavailable
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ScriptedStream
from tests.dynamodb.items import with_base64

_EXACT = Context(prec=200)


class ScriptedTables(ScriptedStream):
    """Tables that answer BatchGetItem, and refuse what DynamoDB refuses.

    ``script``: for each request, how many keys are processed, or the error code; after its end all are processed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, dict[Any, dict[str, Any]]] = {}
        self.script: Iterator[int | Refused] = iter(())
        self.asked: list[dict[str, Any]] = []

    def put(self, table: str, item: dict[str, Any], *key: str) -> None:  # type: ignore[override]
        written = _as_stored(with_base64(item))
        self.tables.setdefault(table, {})[_identity({name: written[name] for name in key})] = written

    def _BatchGetItem(self, request: dict[str, Any]) -> dict[str, Any]:
        tables = request["RequestItems"]
        self.asked.append(tables)
        places = [(table, _as_stored(key)) for table, asked in tables.items() for key in asked["Keys"]]
        identities = [(table, _identity(key)) for table, key in places]
        if not 1 <= len(places) <= 100 or len(set(identities)) < len(places):
            raise Refused("ValidationException")
        processed = next(self.script, 100)
        if isinstance(processed, Refused):
            raise processed
        answer: dict[str, Any] = {"Responses": {table: [] for table in tables}, "UnprocessedKeys": {}}
        # In reverse: no caller may rely on the order.
        for number, (table, key) in reversed(list(enumerate(places))):
            if number >= processed:
                answer["UnprocessedKeys"].setdefault(table, {"Keys": []})["Keys"].append(key)
            elif (item := self.tables.get(table, {}).get(_identity(key))) is not None:
                answer["Responses"][table].append(item)
        return answer


def _as_stored(item: dict[str, Any]) -> dict[str, Any]:
    """DynamoDB returns numbers in its own form."""
    return {name: {"N": f"{Decimal(v['N']).normalize(_EXACT):f}"} if "N" in v else v for name, v in item.items()}


def _identity(key: Mapping[str, Any]) -> Any:
    return tuple(
        (name, tag, Decimal(raw) if tag == "N" else raw)
        for name, value in sorted(key.items())
        for tag, raw in value.items()
    )


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ScriptedTables, Any]]:
    tables = ScriptedTables()
    with tables:
        client: Any = boto3.client(
            "dynamodb",
            endpoint_url=tables.url,
            region_name="us-east-1",
            config=BotoConfig(retries={"mode": "standard", "total_max_attempts": 1}),
        )
        yield tables, client
        client.close()


@pytest.fixture
def tables(served: tuple[ScriptedTables, Any]) -> ScriptedTables:
    served[0].tables, served[0].asked, served[0].script = {}, [], iter(())
    return served[0]


@pytest.fixture
def client(served: tuple[ScriptedTables, Any]) -> Any:
    return served[1]


def numbered(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": {"N": str(number)}} for number in range(start, start + count)]


class Waits(list[float]):
    """The waits, which are recorded and not slept."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def test_tables_may_have_different_key_shapes(tables: ScriptedTables, client: Any) -> None:
    tables.put("a", {"id": {"S": "1"}, "v": {"B": b"\xff"}}, "id")
    tables.put("b", {"x": {"B": b"\x00"}, "y": {"N": "7"}}, "x", "y")
    asked: dict[str, Any] = {
        "a": [{"id": {"S": "1"}}, {"id": {"S": "2"}}],
        "b": [{"y": {"N": "7"}, "x": {"B": b"\x00"}}],
        "c": [],
    }
    assert batch_load(client, asked) == Loaded(
        items={"a": [{"id": {"S": "1"}, "v": {"B": b"\xff"}}], "b": [{"x": {"B": b"\x00"}, "y": {"N": "7"}}], "c": []},
        missing={"a": [{"id": {"S": "2"}}]},
    )
    assert len(tables.asked) == 1


def test_an_empty_load_makes_no_request(tables: ScriptedTables, client: Any) -> None:
    assert batch_load(client, {}) == Loaded({}, {})
    assert batch_load(client, {"t": []}) == Loaded({"t": []}, {})
    assert tables.asked == []


@pytest.mark.parametrize("consistent", [True, False])
def test_consistency_is_requested_for_every_table(tables: ScriptedTables, client: Any, consistent: bool) -> None:
    batch_load(client, {"t": numbered(1), "u": numbered(1)}, consistent=consistent)
    assert [asked["ConsistentRead"] for request in tables.asked for asked in request.values()] == [consistent] * 2


@pytest.mark.parametrize(("count", "requests"), [(100, 1), (101, 2), (1000, 10)])
def test_the_number_of_requests_depends_on_distinct_keys(
    tables: ScriptedTables, client: Any, count: int, requests: int
) -> None:
    for key in numbered(count):
        tables.put("t", key, "id")
    loaded = batch_load(client, {"t": numbered(count) * 3})
    assert loaded == Loaded({"t": numbered(count)}, {})
    assert len(tables.asked) == requests


def test_keys_of_many_tables_share_requests(tables: ScriptedTables, client: Any) -> None:
    batch_load(client, {f"t{number}": numbered(10) for number in range(20)})
    assert len(tables.asked) == 2


def test_two_spellings_of_a_number_are_one_key_and_both_are_returned_as_given(
    tables: ScriptedTables, client: Any
) -> None:
    """I8: N "1.0" is N "1"."""
    tables.put("t", {"id": {"N": "1"}}, "id")
    spellings = [{"id": {"N": text}} for text in ("1.0", "1", "10E-1", "2.50", "25e-1", "2.50")]
    loaded = batch_load(client, {"t": spellings})
    assert loaded.items == {"t": [{"id": {"N": "1"}}]}
    assert loaded.missing == {"t": [{"id": {"N": "2.50"}}, {"id": {"N": "25e-1"}}]}
    assert len(tables.asked[0]["t"]["Keys"]) == 2


def test_swapped_values_are_different_keys(tables: ScriptedTables, client: Any) -> None:
    """I8: (a, b) is not (b, a)."""
    tables.put("t", {"x": {"S": "a"}, "y": {"S": "b"}}, "x", "y")
    mirror = {"x": {"S": "b"}, "y": {"S": "a"}}
    loaded = batch_load(client, {"t": [mirror, {"y": {"S": "b"}, "x": {"S": "a"}}]})
    assert loaded == Loaded({"t": [{"x": {"S": "a"}, "y": {"S": "b"}}]}, {"t": [mirror]})


def test_bytes_and_a_bytearray_of_the_same_value_are_one_key(tables: ScriptedTables, client: Any) -> None:
    tables.put("t", {"id": {"B": b"\x00"}}, "id")
    loaded = batch_load(client, {"t": [{"id": {"B": bytearray(b"\x00")}}, {"id": {"B": b"\x00"}}]})
    assert loaded == Loaded({"t": [{"id": {"B": b"\x00"}}]}, {})


KEYS = st.builds(
    lambda x, y: {"x": {"S": x}, "y": {"N": y}},
    st.sampled_from(["a", "b", "1", ""]),
    st.sampled_from(["0", "-0", "1", "1.0", "0.1e1", "2", "12345678901234567890123456789012345678"]),
)
SCRIPTS = st.lists(
    st.integers(0, 100)
    | st.sampled_from(
        [
            Refused("ProvisionedThroughputExceededException"),
            Refused("ThrottlingException"),
            Refused("RequestLimitExceeded"),
            Refused("InternalServerError", 500),
        ]
    ),
    max_size=8,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["t", "u", "v"]), st.lists(KEYS, max_size=30)),
    st.dictionaries(st.sampled_from(["t", "u", "v"]), st.lists(KEYS, max_size=10)),
    SCRIPTS,
)
def test_each_item_comes_once_whatever_is_throttled_and_the_rest_is_missing(
    served: tuple[ScriptedTables, Any], asked: dict[str, Any], stored: dict[str, Any], script: list[Any]
) -> None:
    tables, client = served
    tables.tables, tables.asked, tables.script = {}, [], iter(script)
    for table, items in stored.items():
        for item in items:
            tables.put(table, item, "x", "y")
    loaded = batch_load(client, asked, sleep=lambda seconds: None)

    def there(table: str, key: dict[str, Any]) -> bool:
        return _identity(key) in tables.tables.get(table, {})

    assert loaded.items.keys() == asked.keys()
    for table, keys in asked.items():
        wanted = list(dict.fromkeys(_identity(key) for key in keys if there(table, key)))
        assert [_identity(item) for item in loaded.items[table]] == wanted
        missing: dict[Any, list[Any]] = {}
        for key in keys:
            spellings = missing.setdefault(_identity(key), []) if not there(table, key) else [key]
            if key not in spellings:
                spellings.append(key)
        assert loaded.missing.get(table, []) == [key for spellings in missing.values() for key in spellings]


def test_a_load_that_progresses_waits_briefly_and_one_that_stalls_ever_longer(
    tables: ScriptedTables, client: Any
) -> None:
    for key in numbered(100):
        tables.put("t", key, "id")
    throttled = Refused("ProvisionedThroughputExceededException")
    tables.script = iter([40, 40, 0, throttled, 0, throttled, 5, 0])
    waits = Waits()
    loaded = batch_load(client, {"t": numbered(100)}, sleep=waits)
    assert loaded == Loaded({"t": numbered(100)}, {})
    assert [len(request["t"]["Keys"]) for request in tables.asked] == [100, 60, 20, 20, 20, 20, 20, 15, 15]
    longest = [0.05, 0.05, 0.1, 0.2, 0.4, 0.8, 0.05, 0.1]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, longest, strict=True))


@pytest.mark.parametrize(
    "stall", [0, Refused("ThrottlingException"), Refused("of a proxy", 408), Refused("of a proxy", 429)]
)
def test_a_load_that_makes_no_progress_ends_with_an_error(tables: ScriptedTables, client: Any, stall: Any) -> None:
    """I10"""
    tables.script = iter([50] + [stall] * 1000)
    waits = Waits()
    with pytest.raises(Unavailable, match=r"orders.*50 keys are left") as caught:
        batch_load(client, {"orders": numbered(100)}, sleep=waits)
    assert len(tables.asked) == 11
    assert 10 < sum(waits) < 25
    assert isinstance(caught.value.__cause__, ClientError) == isinstance(stall, Refused)


def test_keys_of_another_table_do_not_wait_behind_a_throttled_one(tables: ScriptedTables, client: Any) -> None:
    tables.script = iter([0])
    batch_load(client, {"t": numbered(100), "u": numbered(100)}, sleep=Waits())
    assert [set(request) for request in tables.asked] == [{"t"}, {"u"}, {"t"}]


@pytest.mark.parametrize("kind", ["ResourceNotFoundException", "ValidationException", "AccessDeniedException"])
def test_a_request_that_is_refused_for_good_is_not_retried(tables: ScriptedTables, client: Any, kind: str) -> None:
    tables.script = iter([Refused(kind)])
    with pytest.raises(ClientError, match=kind):
        batch_load(client, {"t": numbered(1)}, sleep=Waits())
    assert len(tables.asked) == 1


@pytest.mark.parametrize(
    "keys",
    [
        [{}],
        [{"a": {"S": "1"}, "b": {"S": "1"}, "c": {"S": "1"}}],
        [{"a": {"BOOL": True}}],
        [{"a": {"S": "1", "N": "1"}}],
        [{"a": "1"}],
        [{"a": {"N": 1}}],
        [{"a": {"N": "one"}}],
        [{"a": {"B": "AP8="}}],
        [{"a": {"S": "1"}}, {"b": {"S": "1"}}],
        [{"a": {"S": "1"}}, {"a": {"N": "1"}}],
        [{"a": {"S": "1"}}, {"a": "1"}],
        [{"a": {"S": "1"}}, {"a": {"S": None}}],
        [{"a": {"S": "1"}}, {"a": {"S": "1"}, "b": {"S": "1"}}],
        [{"a": {"N": "1"}}, {"a": {"N": "NaN"}}],
    ],
)
def test_keys_of_different_shapes_are_refused_before_any_request(
    tables: ScriptedTables, client: Any, keys: Any
) -> None:
    """I8"""
    with pytest.raises(ValueError, match="table orders") as caught:
        batch_load(client, {"good": numbered(1), "orders": keys})
    assert repr(keys[-1]) in str(caught.value)
    assert tables.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        {"Responses": {"t": [{"id": {"N": "2"}}]}},
        {"Responses": {"u": [{"id": {"N": "1"}}]}},
        {"Responses": {"t": [{"id": {"S": "1"}}]}},
        {"Responses": {"t": [{"no": {"N": "1"}}]}},
        {"Responses": {}, "UnprocessedKeys": {"t": {"Keys": [{"id": {"N": "2"}}]}}},
    ],
)
def test_an_answer_with_other_keys_is_an_error(
    tables: ScriptedTables, client: Any, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """I8: the item would be assigned to the wrong key, or lost."""
    monkeypatch.setattr(tables, "_BatchGetItem", lambda request: answer)
    with pytest.raises(RelayError, match=r"DynamoDB (answered|gave)"):
        batch_load(client, {"t": [{"id": {"N": "1"}}]})


@pytest.mark.services
def test_dynamodb_local_returns_every_item_once_across_tables_and_past_16_megabytes(dynamodb: Any) -> None:
    client: Any = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    small, large = f"small-{uuid.uuid4().hex[:8]}", f"large-{uuid.uuid4().hex[:8]}"
    for table, columns in ((small, {"h": "B", "r": "N"}), (large, {"id": "S"})):
        client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in columns.items()],
            KeySchema=[
                {"AttributeName": name, "KeyType": kind} for name, kind in zip(columns, ("HASH", "RANGE"), strict=False)
            ],
        )
    # 60 items of 390 KB do not fit into one answer.
    body = "x" * 390_000
    for number in range(60):
        client.put_item(TableName=large, Item={"id": {"S": str(number)}, "body": {"S": body}})
    for number in range(120):
        client.put_item(TableName=small, Item={"h": {"B": b"\x00\xff"}, "r": {"N": f"{number}.50"}})
    keys: dict[str, Any] = {
        large: [{"id": {"S": str(number)}} for number in range(61)],
        small: [
            {"h": {"B": b"\x00\xff"}, "r": {"N": f"{number}.{zeros}"}} for number in range(121) for zeros in (5, 500)
        ],
    }
    unprocessed: list[Any] = []
    client.meta.events.register(
        "after-call.dynamodb.BatchGetItem", lambda parsed, **_: unprocessed.append(parsed["UnprocessedKeys"])
    )
    loaded = batch_load(client, keys, consistent=True, sleep=lambda seconds: None)
    assert large in unprocessed[0]
    assert [item["id"]["S"] for item in loaded.items[large]] == [str(number) for number in range(60)]
    assert {len(item["body"]["S"]) for item in loaded.items[large]} == {len(body)}
    assert [item["r"]["N"] for item in loaded.items[small]] == [f"{number}.5" for number in range(120)]
    assert loaded.missing == {large: keys[large][-1:], small: keys[small][-2:]}
    client.close()
