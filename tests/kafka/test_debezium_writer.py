"""Changes as Debezium's records: keys, values, headers, tombstones, and what the envelope cannot say."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest

from relay.avro.debezium import SourceInfo
from relay.avro.encode import Unencodable
from relay.change import MARK, Change, Images, Operation, Snapshot, Transaction
from relay.dynamodb.columns import TypedRows, typed_key
from relay.errors import RelayError
from relay.kafka.dead_letters import DeadLetterWriter
from relay.kafka.debezium_writer import DebeziumWriter
from relay.kafka.keys import partition
from relay.mysql_dialect.catalog import carried_column
from relay.mysql_dialect.tables import lay_out, lay_out_keys, with_details
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken
from tests.kafka.plain_records import Kept

TOPIC = "my-shop.1orders"
AT = 1_700_000_000_123_456
TOKEN = EventToken(1_700_000_000, "shop/legacy/-80", "MariaDB/0-1-7")
ORIGINS = {kind: SourceInfo(kind, "shop", "legacy", "1.2.3") for kind in ("mysql", "vitess", "dynamodb")}


def table(*defined: str) -> TableSchema:
    columns = [carried_column(*each.split(" ", 1)) for each in defined]
    return with_details(lay_out("shop", "orders", columns, [columns[0].name])).schema


ORDERS = table("id int", "to-tal decimal(10,2)", "code tinyint")
ITEMS = TableSchema("shop", "orders", (KeyColumn("id", "S"), KeyColumn("line", "N")), 1)


class Registry:
    """Keeps schemas by their headers."""

    def __init__(self) -> None:
        self.schemas: dict[bytes, dict[str, Any]] = {}
        self.subjects: list[str] = []

    def register(self, topic: str, schema: dict[str, Any], part: str = "value") -> bytes:
        header = b"\x00" + len(self.schemas).to_bytes(4, "big")
        self.schemas[header] = schema
        self.subjects.append(f"{topic}-{part}")
        return header

    def newest_envelope(self, topic: str) -> bytes | None:
        found = [header for header, schema in self.schemas.items() if schema["name"] == "Envelope"]
        return found[-1] if found else None

    def read(self, framed: bytes) -> Any:
        stream = BytesIO(framed[5:])
        found = fastavro.schemaless_reader(stream, fastavro.parse_schema(self.schemas[framed[:5]]), None)
        assert stream.tell() == len(framed) - 5
        return found


def sent(changes: list[Change], of: TableSchema = ORDERS, kind: str = "mysql", **options: Any) -> list[Any]:
    """Return topic, key, value, partition and headers of what is sent for ``changes``."""
    registry, records = Registry(), Kept()
    if kind == "dynamodb":
        options["typed_key"] = typed_key(of)
    writer = DebeziumWriter(of, TOPIC, 6, "hash", registry, origin=ORIGINS[kind], **options)
    assert registry.subjects == [f"{TOPIC}-key", f"{TOPIC}-value"]
    for each in changes:
        if each.key is None:
            writer.send_to_all_partitions(records, each, 0)
        else:
            writer.send_page(records, [each], 0)

    def read(topic: str, framed: bytes | None) -> Any:
        return registry.read(framed) if framed is not None and topic == TOPIC else framed

    return [
        (topic, read(topic, key), read(topic, value), number, dict(headers))
        for topic, value, key, number, headers in records.records
    ]


def change(**fields: Any) -> Change:
    row = {"id": 7, "to-tal": 1, "code": None}
    whole = Change(
        event_id="1" * 31 + "e",
        operation=Operation.INSERT,
        source="shop",
        table="orders",
        key={"id": 7},
        old=None,
        new=row,
        images=Images.NEW_AND_OLD,
        token=TOKEN,
        committed_at=AT,
        transaction=Transaction("0-1-7", 2, True),
    )
    return replace(whole, **fields)


def test_an_insert_is_a_create_with_its_source_and_the_token_in_a_header() -> None:
    ((_, key, value, number, headers),) = sent([change()])
    assert key == {"id": 7}
    assert number == partition(b"7", 6)  # I2: as in the relay's own envelope
    assert json.loads(headers["event_id"]) == "1" * 31 + "e"  # not a number
    assert json.loads(headers["token"]).encode() == TOKEN.to_json_bytes()
    assert (value["op"], value["before"], value["transaction"]) == ("c", None, None)
    assert {name: str(each) for name, each in value["after"].items()} == {"id": "7", "to_tal": "1.00", "code": "None"}
    assert value["source"] == {
        "version": "1.2.3",
        "connector": "mysql",
        "name": "shop",
        "ts_ms": AT // 1000,
        "snapshot": "false",
        "db": "legacy",
        "sequence": None,
        "ts_us": AT,
        "ts_ns": AT * 1000,
        "table": "orders",
        "server_id": 0,
        "gtid": "0-1-7",
        "file": "",
        "pos": 0,
        "row": 2,
        "thread": None,
        "query": None,
    }
    assert value["ts_us"] // 1000 == value["ts_ms"]
    assert value["ts_ns"] // 1000 == value["ts_us"]


def test_the_schemas_are_named_after_the_topic_in_names_that_avro_allows() -> None:
    registry = Registry()
    DebeziumWriter(ORDERS, TOPIC, 6, "hash", registry, origin=ORIGINS["mysql"])
    key, value = registry.schemas.values()
    assert (key["connect.name"], value["connect.name"]) == ("my_shop._1orders.Key", "my_shop._1orders.Envelope")
    before = value["fields"][0]["type"][1]
    assert before["connect.name"] == "my_shop._1orders.Value"
    assert [field["name"] for field in value["fields"]] == [
        "before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"
    ]  # fmt: skip
    code = {"name": "code", "type": ["null", {"type": "int", "connect.type": "int16"}], "default": None}
    assert before["fields"][0] == {"name": "id", "type": "int"}
    assert before["fields"][2] == code


def test_columns_that_would_have_one_name_are_refused() -> None:
    """I8"""
    columns = tuple(Column(name, "int") for name in ("a-b", "a#b"))
    with pytest.raises(RelayError, match="a#b, a-b have the same name") as refused:
        sent([], replace(ORDERS, row=(Column("id", "int"), *columns)))
    assert refused.value.exit_code == 1  # a source goes on


def test_an_image_with_other_columns_is_refused() -> None:
    """I8"""
    with pytest.raises(Unencodable, match="differ in columns"):
        sent([change(new={"id": 7, "to-tal": 1, "code": None, "more": 1})])


def test_a_delete_is_followed_by_a_tombstone_and_an_update_is_not() -> None:
    row = {"id": 7, "to-tal": 1, "code": 1}
    update = change(operation=Operation.UPDATE, old=row)
    records = sent([update, change(operation=Operation.DELETE, old=row, new=None)])
    assert [value and value["op"] for _, _, value, _, _ in records] == ["u", "d", None]
    assert [key for _, key, _, _, _ in records] == [{"id": 7}] * 3
    assert (records[0][2]["before"]["code"], records[1][2]["after"]) == (1, None)


def test_a_row_that_was_read_beside_the_stream_is_refused() -> None:
    """I7: a sink would replace newer rows with it, and restore deleted ones."""
    read = change(operation=Operation.READ, token=None, transaction=None, snapshot=Snapshot("s", 5))
    for each in (read, replace(read, key=None, new=None, attributes={MARK: "begin"})):
        with pytest.raises(RelayError, match="reading table orders alongside its stream does not fit"):
            sent([each])


def test_a_truncate_is_sent_once_without_a_key() -> None:
    ((_, key, value, number, _),) = sent([change(operation=Operation.TRUNCATE, key=None, new=None)])
    assert (key, value["op"], value["before"], value["after"], number) == (None, "t", None, None, 0)


def test_the_truncate_of_a_table_of_which_only_the_key_is_known_has_the_newest_schema(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """I12: the registry would refuse another key schema, which lacks the details of the columns, and stop the shard."""
    registry, records = Registry(), Kept()
    DebeziumWriter(table("id tinyint", "note text"), TOPIC, 6, "hash", registry, origin=ORIGINS["mysql"])
    truncate = change(operation=Operation.TRUNCATE, key=None, new=None)
    known = lay_out_keys("shop", "orders", [("id", "int")], None).schema
    for each in (registry, Registry()):
        writer = DebeziumWriter(known, TOPIC, 6, "hash", each, origin=ORIGINS["mysql"])
        writer.send_to_all_partitions(records, truncate, 0)
        assert len(each.subjects) == (2 if each is registry else 0)
    ((_, value, key, _, _),) = records.records
    assert (key, registry.read(value)["op"]) == (None, "t")
    assert "has no schema and no records" in caplog.text


def test_what_is_too_large_is_a_dead_letter_alone_and_a_deletion_goes_without_its_image() -> None:
    """I8"""
    wide = table("id int", "note text")
    row = {"id": 7, "note": "x" * 20_000}
    options: dict[str, Any] = {"largest": 10_000, "dead_letters": DeadLetterWriter("letters", 100_000)}
    ((topic, _, value, _, headers),) = sent([change(new=row)], wide, **options)
    assert (topic, headers["reason"], headers["encoding"]) == ("letters", b"too large", b"json")
    assert (json.loads(value)["new"], headers["event_id"]) == (row, b"1" * 31 + b"e")
    gone = change(operation=Operation.DELETE, old=row, new=None)
    letter, deletion, tombstone = sent([gone], wide, **options)
    assert json.loads(letter[2])["old"] == row
    assert (deletion[2]["op"], deletion[2]["before"], tombstone[2]) == ("d", None, None)


def test_a_value_that_debezium_would_change_is_refused_or_a_dead_letter() -> None:
    """I8"""
    wide = table("id int", "big bigint unsigned")
    large = change(new={"id": 7, "big": 2**63})
    with pytest.raises(Unencodable, match="column 'big' of the new image: 9223372036854775808 does not fit"):
        sent([large], wide)
    letters = DeadLetterWriter("letters", 100_000)
    ((topic, *_),) = sent([large], wide, on_unencodable="dead_letter", dead_letters=letters)
    assert topic == "letters"


def test_vitess_names_keyspace_shard_and_position() -> None:
    ((_, _, value, _, _),) = sent([change()], kind="vitess")
    source = value["source"]
    assert (source["connector"], source["db"], source["keyspace"], source["shard"]) == ("vitess", "", "legacy", "-80")
    assert json.loads(source["vgtid"]) == [{"keyspace": "legacy", "shard": "-80", "gtid": "MariaDB/0-1-7"}]


def test_an_item_of_dynamodb_is_json_text_without_columns() -> None:
    item = '{"id":{"S":"a"},"line":{"N":"1.5"}}'
    token = EventToken(1_700_000_000, "shop/label/shardId-1", "DynamoDB/17")
    ((_, key, value, number, _),) = sent(
        [change(key={"id": "a", "line": "1.5"}, new=item, token=token, transaction=None)], ITEMS, "dynamodb"
    )
    assert key == {"id": "a", "line": "1.5"}
    assert number == partition(b"a", 6)
    assert value["after"] == item
    source = value["source"]
    assert (source["sequence"], source["shard"], source["table"]) == ("DynamoDB/17", "shardId-1", "orders")


def test_an_item_of_dynamodb_is_a_struct_with_columns_and_its_numbers_are_numbers_in_the_key() -> None:
    row = (Column("id", "string"), Column("line", "long"), Column("tags", "set"), Column("rest", "rest"))
    typed = replace(ITEMS, row=row)
    new = {"id": "a", "line": 15, "tags": ["x", "y"], "rest": None}
    ((_, key, value, _, _),) = sent([change(key={"id": "a", "line": "15"}, new=new)], typed, "dynamodb")
    assert key == {"id": "a", "line": 15}
    assert value["after"] == new


@pytest.mark.parametrize(
    ("declared", "value", "published"),
    [
        ("timestamp", "1700000000.5", "2023-11-14T22:13:20.5Z"),
        ("json", "1.5", '{"N":"1.5"}'),
        ("double", "1.5", 1.5),
        ("decimal(5,2)", "-1.5", Decimal("-1.50")),
    ],
)
def test_a_key_attribute_of_dynamodb_has_its_declared_type(declared: str, value: str, published: Any) -> None:
    """I8: the same value in the key and in the row, and in the key of a deletion that has no row."""
    typed = replace(ITEMS, row=(Column("line", declared), Column("rest", "rest")))
    key = {"id": "a", "line": value}
    row = TypedRows({"line": declared}).row({"id": {"S": "a"}, "line": {"N": value}})
    insert, deletion, _ = sent(
        [change(key=key, new=row), change(key=key, new=None, operation=Operation.DELETE)], typed, "dynamodb"
    )
    assert insert[1] == deletion[1] == {"id": "a", "line": published}
    assert insert[2]["after"]["line"] == published


def test_a_key_attribute_of_dynamodb_that_its_column_cannot_hold_is_refused() -> None:
    """I8"""
    typed = replace(ITEMS, row=(Column("line", "long"), Column("rest", "rest")))
    with pytest.raises(Unencodable, match=r"'1\.5' is not a value of 'line', declared as long: declare it as another"):
        sent([change(key={"id": "a", "line": "1.5"}, new={"line": None, "rest": "{}"})], typed, "dynamodb")


def test_a_stream_without_new_images_is_refused() -> None:
    with pytest.raises(RelayError, match="NEW_AND_OLD_IMAGES"):
        sent([change(key={"id": "a", "line": "1"}, new=None, images=Images.KEYS_ONLY)], ITEMS, "dynamodb")
