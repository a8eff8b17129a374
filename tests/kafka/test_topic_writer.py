"""Changes as records: partition by hash key, tombstones, and stubs with dead letters."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from io import BytesIO
from typing import Any, Literal

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.encode import Unencodable
from relay.avro.framing import split
from relay.avro.schema import change_schema
from relay.change import REDRIVEN, Change, Images, Operation, Snapshot, Uncarriable
from relay.errors import RelayError
from relay.kafka.dead_letters import DeadLetterWriter
from relay.kafka.keys import partition
from relay.kafka.limits import Headers, record_size
from relay.kafka.topic_writer import TopicWriter
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken
from tests import needs

TABLE = TableSchema("shop", "orders", (KeyColumn("customer", "S"), KeyColumn("line", "N")), 1)
SHARD = "shop/l/shard"


@pytest.fixture(autouse=True, params=["plain Python", "compiled"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is about both ways to make records."""
    if request.param == "compiled":
        needs.compiled_core()
    monkeypatch.setenv("RELAY_NATIVE", "required" if request.param == "compiled" else "off")


class SentRecords:
    """Records what is sent, in order."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None, bytes, int, dict[str, Any]]] = []

    def send(self, topic: str, value: bytes | None, key: bytes, partition: int, headers: Headers) -> None:
        self.records.append((topic, value, key, partition, dict(headers)))

    def on(self, topic: str) -> list[tuple[bytes | None, bytes, int, dict[str, Any]]]:
        return [record[1:] for record in self.records if record[0] == topic]


class ScriptedRegistry:
    def register(self, topic: str, schema: dict[str, object]) -> bytes:
        return b"\xc3\x01" + bytes(8)


def topic_writer(table: TableSchema = TABLE, key: Literal["hash", "item"] = "hash", **options: Any) -> TopicWriter:
    return TopicWriter(table, "shop.orders", 6, key, ScriptedRegistry(), **options)


def letters(largest: int = 100_000) -> DeadLetterWriter:
    return DeadLetterWriter("shop.dead_letters", largest)


def change(customer: str = "ada", line: str = "1", *, payload: str = "x", **fields: Any) -> Change:
    image = json.dumps({"customer": {"S": customer}, "line": {"N": line}, "payload": {"S": payload}})
    whole = Change(
        event_id="e" * 32,
        operation=Operation.UPDATE,
        source="shop",
        table="orders",
        key={"customer": customer, "line": line},
        old=None,
        new=image,
        images=Images.NEW,
        token=EventToken(1_700_000_000, SHARD, "DynamoDB/7"),
        committed_at=1_700_000_000_000_000,
        attributes={"event_version": "1.1"},
    )
    return replace(whole, **fields)


def long_token(domains: int) -> EventToken:
    return EventToken(1_700_000_000, SHARD, "MariaDB/" + ",".join(f"{n}-1-{10**6 + n}" for n in range(domains)))


def decoded(value: bytes | None, table: TableSchema = TABLE) -> dict[str, Any]:
    body = split(value or b"")[1]
    found: Any = fastavro.schemaless_reader(BytesIO(body), fastavro.parse_schema(change_schema(table)), None)
    return dict(found)


@given(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])), st.integers(0, 99))
def test_the_partition_is_that_of_the_hash_key_in_both_key_modes(customer: str, line: int) -> None:
    """I2"""
    sent = SentRecords()
    keys: tuple[Literal["hash", "item"], ...] = ("hash", "item")
    for key in keys:
        topic_writer(key=key).send_page(sent, [change(customer, str(line))], 0)
    (_, by_hash, first, _), (_, by_item, second, _) = sent.on("shop.orders")
    assert first == second == partition(customer.encode(), 6)
    assert by_hash == customer.encode()
    assert json.loads(by_item) == {"customer": {"S": customer}, "line": {"N": str(line)}}


def test_only_a_delete_is_followed_by_a_tombstone_with_the_same_key_and_partition() -> None:
    sent = SentRecords()
    writer = topic_writer(key="item", tombstones=True)
    for operation in Operation:
        if operation is not Operation.TRUNCATE:
            writer.send_page(sent, [change(operation=operation)], 0)
    operations = [None if value is None else decoded(value)["operation"] for value, *_ in sent.on("shop.orders")]
    assert operations == ["INSERT", "UPDATE", "DELETE", None, "READ"]
    assert len({(key, where) for _, key, where, _ in sent.on("shop.orders")}) == 1


@given(st.integers(-40, 40), st.integers(0, 3), st.integers(1, 3000))
@settings(deadline=None)
def test_a_change_above_the_limit_is_a_stub_on_its_topic_and_complete_as_a_dead_letter(
    beyond: int, long: int, domains: int
) -> None:
    """I1, I8: up to the limit it is complete on its topic. I10: its token, twice in the record, counts as well."""
    sent = SentRecords()
    huge = change(payload="x" * (5000 * long + 100), token=long_token(domains))
    topic_writer().send_page(sent, [huge], 0)
    ((value, key, where, headers),) = sent.on("shop.orders")
    size = record_size(value or b"", key, list(headers.items()))
    again, writer = SentRecords(), topic_writer(largest=size - beyond, dead_letters=letters(1 << 20))
    writer.send_page(again, [huge], 0)
    ((value, same_key, same_where, same_headers),) = again.on("shop.orders")
    assert (same_key, same_where, same_headers) == (key, where, headers)
    stubbed = beyond > 0
    assert decoded(value)["images"] == ("OMITTED" if stubbed else "NEW")
    assert len(again.on("shop.dead_letters")) == stubbed
    if stubbed:
        assert record_size(value or b"", key, list(headers.items())) <= writer.largest


@pytest.mark.parametrize("fields", [{}, {"operation": Operation.READ, "token": None, "snapshot": Snapshot("s", 5)}])
def test_a_stub_lacks_only_the_images_and_its_dead_letter_is_the_change_in_chunks(fields: dict[str, Any]) -> None:
    sent, writer = SentRecords(), topic_writer(largest=4000, dead_letters=letters(6000))
    huge = change(payload="".join(chr(33 + n % 90) for n in range(20_000)), **fields)
    assert writer.send_page(sent, [huge], 17) > 20_000  # bytes that count towards the transaction's size (I11)
    assert [topic for topic, *_ in sent.records] == ["shop.dead_letters"] * 4 + ["shop.orders"]
    ((value, key, where, headers),) = sent.on("shop.orders")
    chunks = sent.on("shop.dead_letters")
    whole = decoded(b"".join(part or b"" for part, *_ in chunks))
    stub = decoded(value)
    assert whole == {**stub, "new": huge.new, "images": "NEW", "attributes": {"event_version": "1.1", REDRIVEN: "true"}}
    assert (stub["old"], stub["new"], stub["images"]) == (None, None, "OMITTED")
    assert [name for _, name, *_ in chunks] == [f"{huge.event_id}/{n}".encode() for n in (1, 2, 3, 4)]
    for number, (part, name, partition_of_letters, described) in enumerate(chunks, 1):
        assert partition_of_letters == 0
        assert record_size(part or b"", name, list(described.items())) <= 6000
        assert described.pop("detail").endswith(b"; shop.orders takes 4000")
        assert described == {
            "consumer": b"relay",
            "reason": b"too large",
            "source": b"shop",
            "table": b"orders",
            "shard": SHARD.encode() if huge.token else b"",
            "position": b"DynamoDB/7" if huge.token else b"snapshot/s",
            "key": b'{"customer":{"S":"ada"},"line":{"N":"1"}}',
            "topic": b"shop.orders",
            "partition": str(where).encode(),
            "record_key": key,
            "encoding": b"avro",
            "chunk": f"{number}/4".encode(),
            **headers,
        }


HALF = {"customer": {"S": "ada"}, "line": {"N": "1"}, "text": {"S": "\ud83d"}, "raw": {"B": b"\xff"}}


@pytest.mark.parametrize("row", [None, (Column("customer", "string"), Column("line", "int"), Column("rest", "rest"))])
def test_a_change_that_avro_cannot_hold_is_an_error_with_key_position_and_remedy(row: Any) -> None:
    """I8"""
    sent = SentRecords()
    with pytest.raises(Unencodable) as caught:
        topic_writer(replace(TABLE, row=row), dead_letters=letters()).send_page(
            sent, [change(new=Uncarriable(HALF, "no Unicode"))], 0
        )
    for part in ("shop: the UPDATE of orders", "'ada'", "DynamoDB/7", SHARD, "no Unicode", "on_unencodable"):
        assert part in str(caught.value)
    assert (caught.value.exit_code, sent.records) == (1, [])


def test_on_unencodable_dead_letter_publishes_a_stub_and_keeps_the_change_as_lossless_json() -> None:
    """I1, I8"""
    sent = SentRecords()
    odd = change(old=Uncarriable(HALF, "no Unicode"), images=Images.NEW_AND_OLD)
    topic_writer(dead_letters=letters(), on_unencodable="dead_letter").send_page(sent, [odd], 0)
    ((value, *_),) = sent.on("shop.orders")
    assert decoded(value)["images"] == "OMITTED"
    ((whole, _, _, headers),) = sent.on("shop.dead_letters")
    assert (headers["encoding"], headers["reason"]) == (b"json", b"not encodable")
    kept = json.loads(whole or b"")
    assert kept["old"] == {**HALF, "raw": {"B": "/w=="}}
    assert kept["new"] == json.loads(str(odd.new))
    assert kept["token"] == json.loads(odd.token.to_json()) if odd.token else None
    assert (kept["event_id"], kept["operation"], kept["images"]) == (odd.event_id, "UPDATE", "NEW_AND_OLD")
    assert kept["key"] == {"customer": {"S": "ada"}, "line": {"N": "1"}}


def test_a_change_whose_key_cannot_be_encoded_is_always_an_error() -> None:
    """I8: a stub needs a key."""
    sent = SentRecords()
    for customer in ("\ud83d", b"ada"):
        with pytest.raises(RelayError, match="orders"):
            topic_writer(dead_letters=letters(), on_unencodable="dead_letter").send_page(
                sent, [change(key={"customer": customer, "line": "1"})], 0
            )
    assert sent.records == []


def test_a_topic_too_small_for_a_stub_is_an_error_that_names_the_limit() -> None:
    with pytest.raises(RelayError, match=r"even without its images, .* but topic shop\.orders allows 200: raise"):
        topic_writer(largest=200, dead_letters=letters()).send_page(SentRecords(), [change()], 0)


def test_a_topic_too_small_for_the_token_of_a_change_is_an_error_that_says_how_to_raise_the_limit() -> None:
    """I10: a stub and a TRUNCATE have the token as well."""
    long, sent = long_token(2000), SentRecords()
    truncate = change(key=None, new=None, operation=Operation.TRUNCATE, token=long)
    writer = topic_writer(largest=40_000, dead_letters=letters())
    said = (
        r"takes \d{5} bytes, \d{5} of them for its token in a header, but topic shop\.orders allows 40000: .*"
        r"--entity-name shop\.orders --add-config max\.message\.bytes=8388608"
    )
    with pytest.raises(RelayError, match=said):
        writer.send_page(sent, [change(payload="x" * 50_000, token=long)], 0)
    with pytest.raises(RelayError, match=said):
        writer.send_to_all_partitions(sent, truncate, 0)
    assert sent.records == []


def test_a_topic_of_dead_letters_too_small_for_their_headers_is_an_error_that_says_how_to_raise_the_limit() -> None:
    """I10"""
    sent, writer = SentRecords(), topic_writer(largest=70_000, dead_letters=letters(40_000))
    with pytest.raises(RelayError, match=r"takes? \d{5} bytes, but topic shop\.dead_letters allows 40000: raise"):
        writer.send_page(sent, [change(payload="x" * 50_000, token=long_token(2000))], 0)
    assert sent.records == []


def test_a_page_is_sent_in_its_order_also_where_some_of_it_takes_another_way() -> None:
    """I2: stubs and their dead letters in place."""
    sent, writer = SentRecords(), topic_writer(largest=4000, dead_letters=letters(1 << 20))
    page = [change(line=str(line), payload="x" * (5000 if line % 3 == 1 else 5)) for line in range(8)]
    size = writer.send_page(sent, page, 17)
    whole = sent.on("shop.orders")
    assert [decoded(value)["key"]["line"] for value, *_ in whole] == [str(line) for line in range(8)]
    assert [decoded(value)["images"] == "OMITTED" for value, *_ in whole] == [line % 3 == 1 for line in range(8)]
    assert writer.dead_lettered == 3
    assert size == sum(len(value or b"") for _, value, *_ in sent.records)
    assert {decoded(value)["resume_timestamp"] for value, *_ in whole} == {17}
    assert all(abs(decoded(value)["relayed_at"].timestamp() - time.time()) < 600 for value, *_ in whole)
