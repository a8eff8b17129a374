"""Blocks of records against plain Python: the same changes and records in every byte, counts and refusals."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from relay.avro.schema import change_schema
from relay.change import Change, Images, Operation
from relay.config.protection import ColumnRule
from relay.dynamodb.columns import TypedRows
from relay.dynamodb.protection import ProtectedItems
from relay.dynamodb.raw_records import RawData, RawRecord, read_answer
from relay.dynamodb.records import RecordBlock, RecordFormat
from relay.dynamodb.values import image_json
from relay.errors import RelayError
from relay.kafka.dead_letters import DeadLetterWriter
from relay.kafka.keys import KeyCodec
from relay.kafka.topic_writer import TopicWriter, compiled_records
from relay.table import KeyColumn, TableSchema
from tests import needs
from tests.dynamodb.items import NUMBERS, TYPED, with_base64
from tests.examples import examples
from tests.kafka.plain_records import HEADER, PARTITIONS, AnySchema, Kept, Mode, plain_records

SHARD = "shop/2026-01-01T00:00:00.000/shardId-00000001700000000000-0123abcd"
TABLES = [
    TableSchema("shop", "örders", tuple(KeyColumn(f"k{at}", kind) for at, kind in enumerate(kinds)), 1)
    for kinds in ("S", "N", "B", "SN", "NB", "BS", "SS", "NN")
]
TABLE = TableSchema("shop", "orders", (KeyColumn("id", "S"), KeyColumn("line", "N")), 1)
TTL = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
SERVICE = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}
VIEWS = ["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"]


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    needs.compiled_core()
    monkeypatch.setenv("RELAY_NATIVE", "required")


KEY_VALUES: dict[str, st.SearchStrategy[str]] = {
    "S": st.text() | st.sampled_from(["ada", 'é"\\\n\u2028\U0001f600']),
    "N": st.integers().map(str)
    | st.decimals(allow_nan=False, allow_infinity=False).map(str)
    | NUMBERS
    | st.sampled_from(["0", "-0", "0.0", "-0.5", "00", "01", "1.", ".5", "+1", "1.50", "1e2", "-", "9" * 38, "٣"]),
    "B": st.binary().map(lambda raw: b64encode(raw).decode()) | st.sampled_from(["", "AA==", "A", "AA=", "A A="]),
}
ITEMS = st.dictionaries(st.text(), TYPED, max_size=4).map(with_base64)
IDENTITIES = st.sampled_from([TTL, SERVICE, {}]) | st.dictionaries(
    st.text(), st.text() | st.integers(-(1 << 63), (1 << 63) - 1), max_size=2
)


def stream_records(table: TableSchema) -> st.SearchStrategy[dict[str, Any]]:
    """Records as GetRecords returns them, also with images that are not of their view."""
    keys = {each.name: st.fixed_dictionaries({each.type: KEY_VALUES[each.type]}) for each in table.key}
    seconds = st.integers(1_699_999_990, 1_700_000_010) | st.integers(0, 1 << 33)
    data = st.fixed_dictionaries(
        {
            "ApproximateCreationDateTime": seconds | seconds.map(lambda whole: whole + 0.5),
            "Keys": st.fixed_dictionaries(keys),
            "SequenceNumber": st.integers(0, 10**40).map(str),
            "StreamViewType": st.sampled_from(VIEWS),
        },
        optional={"SizeBytes": st.integers(0, 1 << 20), "OldImage": ITEMS, "NewImage": ITEMS},
    )
    return st.fixed_dictionaries(
        {"eventID": st.just("1"), "eventName": st.sampled_from(["INSERT", "MODIFY", "REMOVE"]), "dynamodb": data},
        optional={
            "eventVersion": st.sampled_from(["1.1", "1.1", "1.0", "", "é"]),
            "userIdentity": IDENTITIES | st.none(),
        },
    )


def usual(number: int = 1, **fields: Any) -> dict[str, Any]:
    """A record of `TABLE`. ``fields``: replace those of its data, or remove them if they are None."""
    key = {"id": {"S": "ada"}, "line": {"N": str(number)}}
    data = {
        "ApproximateCreationDateTime": 1_700_000_000.0 + number,
        "Keys": key,
        "SequenceNumber": str(number),
        "StreamViewType": "NEW_AND_OLD_IMAGES",
        "SizeBytes": 70,
        "OldImage": key | {"version": {"N": "1"}},
        "NewImage": key | {"version": {"N": "2"}},
    }
    data = {name: value for name, value in (data | fields).items() if value is not None}
    return {"eventName": "MODIFY", "eventVersion": "1.1", "dynamodb": data}


def parsed(records: list[dict[str, Any]], style: dict[str, Any] | None = None) -> list[Any]:
    body = orjson.dumps({"Records": records}) if style is None else json.dumps({"Records": records}, **style).encode()
    return list(read_answer(body)["Records"])


class Plain:
    """What plain Python makes of records, and what the reader counts of them."""

    def __init__(self, made: RecordFormat, records: list[Any], floor: int) -> None:
        self.changes: list[Change] = []
        self.error = ""
        self.floor, self.behind, self.size, self.created = floor, 0, 0, floor
        for record in records:
            try:
                change = made.change(record, self.floor)
            except RelayError as error:
                self.error = str(error)
                return
            assert change.token is not None
            self.created = change.committed_at // 1_000_000
            self.behind += self.created < self.floor
            self.floor = change.token.timestamp
            data = record.dynamodb
            self.size += data.size_bytes or len(data.old_image) + len(data.new_image)
            self.changes.append(change)

    def assert_same(self, block: RecordBlock) -> None:
        assert not self.error
        assert list(block.changes) == self.changes
        assert [type(each) for change in block.changes for each in (change.operation, change.images)] == [
            Operation,
            Images,
        ] * len(self.changes)
        assert [list(change.key or {}) for change in block.changes] == [
            list(change.key or {}) for change in self.changes
        ]
        assert [list(change.attributes.items()) for change in block.changes] == [
            list(change.attributes.items()) for change in self.changes
        ]
        assert block[1:] == (self.floor, self.behind, self.size, self.created)
        deleted = [change.operation is Operation.DELETE for change in self.changes]
        assert [block.changes.deletes(at) for at in range(len(block.changes))] == deleted


def compare(
    table: TableSchema, records: list[Any], floor: int = 0, mode: Mode = "hash", times: tuple[int, int] = (1, 2)
) -> bool:
    """Compare both paths. Return whether the core has made the page."""
    made = RecordFormat(table, SHARD)
    block = made.block(records, floor)
    if block is None:
        return False
    plain = Plain(made, records, floor)
    plain.assert_same(block)
    schema = change_schema(table)
    writer = compiled_records(schema, HEADER, table, KeyCodec(table, mode), PARTITIONS, 1 << 30)
    assert writer is not None
    assert writer.block_records(block.changes, *times) == plain_records(plain.changes, table, mode, times)
    assert [(each.resume_timestamp, each.relayed_at) for each in block.changes] == [times] * len(records)
    return True


STYLES = [None, {"indent": 1}, {"ensure_ascii": True}, {"ensure_ascii": False, "separators": (",", ":")}]


@settings(deadline=None, max_examples=examples(400))
@given(
    st.sampled_from(TABLES).flatmap(
        lambda table: st.tuples(st.just(table), st.lists(stream_records(table), min_size=1, max_size=5))
    ),
    st.sampled_from(STYLES),
    st.sampled_from([0, 1_700_000_000, 1 << 40]),
    st.sampled_from(["hash", "item"]),
    st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 52)),
)
def test_a_block_has_the_changes_and_records_of_plain_python(
    given_: tuple[TableSchema, list[dict[str, Any]]],
    style: dict[str, Any] | None,
    floor: int,
    mode: Mode,
    times: tuple[int, int],
) -> None:
    """I2, I3, I8: and the core makes all that plain Python takes."""
    table, records = given_
    page = parsed(records, style)
    is_right = not Plain(RecordFormat(table, SHARD), page, floor).error
    assert compare(table, page, floor, mode, times) == is_right


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("event", ["INSERT", "MODIFY", "REMOVE"])
def test_the_core_makes_every_event_of_every_view(event: str, view: str) -> None:
    old = None if event == "INSERT" or view in ("NEW_IMAGE", "KEYS_ONLY") else {"id": {"S": "ada"}, "é": {"L": []}}
    new = None if event == "REMOVE" or view in ("OLD_IMAGE", "KEYS_ONLY") else {"id": {"S": "ada"}}
    records = [usual(number, OldImage=old, NewImage=new, StreamViewType=view) for number in (1, 2, 3)]
    records = [record | {"eventName": event} for record in records]
    records[1] |= {"userIdentity": SERVICE}
    assert compare(TABLE, parsed(records))
    block = RecordFormat(TABLE, SHARD).block(parsed(records), 0)
    assert block is not None
    marked = [change.attributes.get("ttl_delete") for change in block.changes]
    assert marked == [None, "true" if event == "REMOVE" else None, None]


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda record: record["dynamodb"].pop("Keys"), id="no key"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].pop("line"), id="half a key"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].update(line={"N": "x"}), id="no number"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].update(line={"BOOL": True}), id="no key's type"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].update(line="1"), id="text for a key"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].update(line={"N": "1", "S": "1"}), id="two types"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].update(id={"S": "\ud800"}), id="half a pair in a key"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].update(id={"B": "AA=="}), id="another type"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].update(id={"N": "1"}), id="a number for a text"),
        pytest.param(lambda record: record["dynamodb"]["Keys"].update(id={"B": "A"}), id="no base64"),
        pytest.param(lambda record: record["dynamodb"].update(OldImage={"a": {"S": "\ud800"}}), id="half a pair"),
        pytest.param(lambda record: record["dynamodb"].update(OldImage=None), id="null for an image"),
        pytest.param(lambda record: record["dynamodb"].update(OldImage="text"), id="text for an image"),
        pytest.param(lambda record: record["dynamodb"].update(OldImage={"a": 10**30}), id="an integer"),
        pytest.param(lambda record: record["dynamodb"].update(OldImage={"a": 1.0}), id="a float"),
        pytest.param(lambda record: record["dynamodb"].pop("ApproximateCreationDateTime"), id="no time"),
        pytest.param(lambda record: record["dynamodb"].update(ApproximateCreationDateTime=-1.5), id="before the epoch"),
        pytest.param(lambda record: record["dynamodb"].update(ApproximateCreationDateTime=1e300), id="far ahead"),
        pytest.param(lambda record: record["dynamodb"].update(ApproximateCreationDateTime=1e11), id="a bit ahead"),
        pytest.param(lambda record: record["dynamodb"].update(ApproximateCreationDateTime=inf), id="an infinite time"),
        pytest.param(lambda record: record["dynamodb"].update(ApproximateCreationDateTime=nan), id="a time of NaN"),
        pytest.param(lambda record: record["dynamodb"].update(SequenceNumber='"\\\n\x7f'), id="escapes in a position"),
        pytest.param(lambda record: record["dynamodb"].update(SequenceNumber="\ud800"), id="half a pair in a position"),
        pytest.param(lambda record: record["dynamodb"].update(SequenceNumber=7), id="a number for a position"),
        pytest.param(lambda record: record["dynamodb"].pop("StreamViewType"), id="no view"),
        pytest.param(lambda record: record["dynamodb"].update(StreamViewType="SOME"), id="an unknown view"),
        pytest.param(lambda record: record["dynamodb"].update(SizeBytes=-1), id="a negative size"),
        pytest.param(lambda record: record["dynamodb"].update(SizeBytes=10**30), id="a huge size"),
        pytest.param(lambda record: record["dynamodb"].update(SizeBytes="12"), id="text for a size"),
        pytest.param(lambda record: record["dynamodb"].update(SizeBytes=None, OldImage=None), id="no size, no image"),
        pytest.param(lambda record: record["dynamodb"].update(SizeBytes=(1 << 63) - 1), id="a huge sum of sizes"),
        pytest.param(lambda record: record.pop("eventName"), id="no event"),
        pytest.param(lambda record: record.update(eventName="SOMETHING_NEW"), id="an unknown event"),
        pytest.param(lambda record: record.update(eventVersion="\ud800"), id="half a pair in a version"),
        pytest.param(lambda record: record.update(eventVersion=1), id="a number for a version"),
        pytest.param(lambda record: record.update(userIdentity={"a": "\ud800"}), id="half a pair in an identity"),
        pytest.param(lambda record: record.update(userIdentity={"a": {"b": None}}), id="a deep identity"),
        pytest.param(lambda record: record.update(userIdentity="x"), id="text for an identity"),
    ],
)
def test_a_record_that_is_not_as_usual_is_made_or_refused_as_plain_python_does(
    spoil: Callable[[dict[str, Any]], Any], position: int
) -> None:
    """I8"""
    records = [usual(number) for number in (1, 2, 3)]
    spoil(records[position])
    try:
        page = parsed(records, {"separators": (",", ":")})
    except ValueError:  # not an answer of the service
        return
    plain = Plain(RecordFormat(TABLE, SHARD), page, 0)
    assert not (compare(TABLE, page) and plain.error)


@given(st.text("0123456789.-+eE", max_size=8))
@example("-0")
@example("-0.0")
@example("0.10")
def test_a_number_in_a_key_is_made_or_refused_as_plain_python_does(text: str) -> None:
    """I2"""
    page = parsed([usual(Keys={"id": {"S": "ada"}, "line": {"N": text}})])
    is_right = not Plain(RecordFormat(TABLE, SHARD), page, 0).error
    assert compare(TABLE, page) == is_right


@pytest.mark.parametrize(
    "record",
    [
        RawRecord("INSERT", RawData("7", 1.0, {"id": {"S": "a"}}, "NEW_IMAGE", new_image=Raw(b'{"a":{"S":"\xff"}}'))),
        RawRecord("INSERT", RawData("7", 1.0, {"id": {"S": "\udcff"}}, "NEW_IMAGE")),
        RawRecord("INSERT", RawData("7", float("nan"), {"id": {"S": "a"}}, "NEW_IMAGE")),
        RawRecord("INSERT", RawData("7", float("inf"), {"id": {"S": "a"}}, "NEW_IMAGE")),
        RawRecord("INSERT", RawData("7", 1.0, {"id": {"S": "a"}}, "NEW_IMAGE", new_image={"a": {"S": "x"}})),  # type: ignore[arg-type]
        {"eventName": "INSERT", "dynamodb": {"Keys": {"id": {"S": "a"}}, "SequenceNumber": "7"}},
    ],
)
def test_what_only_a_tolerant_parser_reads_is_left_to_plain_python(record: Any) -> None:
    """I8"""
    table = TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1)
    good = RawRecord("INSERT", RawData("6", 1.0, {"id": {"S": "a"}}, "KEYS_ONLY"))
    made = RecordFormat(table, SHARD)
    assert made.block([good], 0) is not None
    assert made.block([good, record], 0) is None


@pytest.mark.parametrize(
    "settings_",
    [
        {"rows": TypedRows({"id": "string", "line": "int"})},
        {"protected": ProtectedItems({"version": ColumnRule("mask")}, image_json)},
        {"wanted": {"line": "1"}},
    ],
)
def test_tables_of_which_not_all_is_published_as_it_is_are_left_to_plain_python(settings_: dict[str, Any]) -> None:
    """I8"""
    assert RecordFormat(TABLE, SHARD).block(parsed([usual()]), 0) is not None
    assert RecordFormat(TABLE, SHARD, **settings_).block(parsed([usual()]), 0) is None


def test_where_there_is_no_core_there_are_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_NATIVE", "off")
    assert RecordFormat(TABLE, SHARD).block(parsed([usual()]), 0) is None


def test_a_floor_of_more_than_64_bits_is_left_to_plain_python() -> None:
    """I8: a record far ahead raises it, and the next page must not hide what is said about that record."""
    ahead, following = parsed([usual(ApproximateCreationDateTime=1e300)]), parsed([usual(2)])
    made = RecordFormat(TABLE, SHARD)
    plain = Plain(made, ahead, 0)
    assert plain.floor > 1 << 64
    assert made.block(following, plain.floor) is None


OTHER_LAYOUTS = [
    TableSchema("shop", "orders", (KeyColumn("pk", "S"), KeyColumn("line", "N")), 1),
    TableSchema("shop", "orders", (KeyColumn("id", "S"), KeyColumn("number", "N")), 1),
    TableSchema("shop", "orders", (KeyColumn("id", "B"), KeyColumn("line", "N")), 1),
    TableSchema("shop", "orders", (KeyColumn("id", "S"), KeyColumn("line", "B")), 1),
    TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1),
    replace(TABLE, row=TypedRows({"version": "int"}).columns),
]


@pytest.mark.parametrize("other", OTHER_LAYOUTS)
@pytest.mark.parametrize("native", ["off", "required"])
def test_a_block_is_not_sent_under_the_schema_of_other_columns(
    monkeypatch: pytest.MonkeyPatch, other: TableSchema, native: str
) -> None:
    """I2, I8: as plain Python refuses a change whose columns are not those of the schema."""
    block = RecordFormat(TABLE, SHARD).block(parsed([usual()]), 0)
    assert block is not None
    monkeypatch.setenv("RELAY_NATIVE", native)
    kept = Kept()
    with pytest.raises(RelayError, match=r"is not a key of table|cannot be carried exactly"):
        TopicWriter(other, "t", PARTITIONS, "hash", AnySchema()).send_page(kept, block.changes, 5)
    assert kept.records == []


def test_an_interrupt_is_not_swallowed() -> None:
    class Interrupting(dict[str, Any]):
        def __bool__(self) -> bool:
            raise KeyboardInterrupt

    data = RawData("7", 1.0, {"id": {"S": "a"}, "line": {"N": "1"}}, "KEYS_ONLY")
    with pytest.raises(KeyboardInterrupt):
        RecordFormat(TABLE, SHARD).block([RawRecord("INSERT", data, user_identity=Interrupting(a=1))], 0)


@pytest.mark.parametrize("largest", [2000, 1 << 20])
def test_both_ways_send_the_same_stubs_dead_letters_and_tombstones(
    monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    """I8"""
    monkeypatch.setattr("time.time_ns", lambda: 1_790_000_000_000_000_000)
    large = {"id": {"S": "ada"}, "text": {"S": "é" * 1000}}
    page = parsed([usual(1), usual(2, NewImage=large), usual(3, NewImage=None) | {"eventName": "REMOVE"}])
    block = RecordFormat(TABLE, SHARD).block(page, 0)
    assert block is not None
    sent = []
    for changes, native in ((list(block.changes), "off"), (block.changes, "required")):
        monkeypatch.setenv("RELAY_NATIVE", native)
        letters = DeadLetterWriter("letters", 100_000)
        writer = TopicWriter(
            TABLE, "t", PARTITIONS, "item", AnySchema(), tombstones=True, largest=largest, dead_letters=letters
        )
        kept = Kept()
        size = writer.send_page(kept, changes, 5)
        sent.append((kept.records, size, writer.dead_lettered))
    assert sent[0] == sent[1]
    assert sent[0][2] == (largest == 2000)
    assert [value for topic, value, *_ in sent[0][0] if topic == "t"].count(None) == 1
