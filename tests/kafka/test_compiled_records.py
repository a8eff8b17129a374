"""The compiled writer against the plain path: the same records in every byte, and no record that the other refuses."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.encode import ChangeEncoder, Unencodable
from relay.avro.schema import change_schema
from relay.change import MARK, Change, Images, Operation, Snapshot, Uncarriable
from relay.errors import RelayError
from relay.kafka.keys import KeyCodec, partition
from relay.kafka.topic_writer import compiled_records
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken, OriginToken
from tests import golden, golden_inputs, needs
from tests.avro.strategies import ANYTHING, KINDS, LONGS, TIMES, VALUES, changes, tables
from tests.examples import examples

HEADER = b"\xc3\x01header.."
LARGEST = 1 << 20
Mode = Literal["hash", "item"]
Record = tuple[bytes, bytes, int, list[tuple[str, str | bytes | None]]]


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


class BothPaths:
    """The two writers of one table."""

    def __init__(self, table: TableSchema, mode: Mode = "hash", partitions: int = 6, largest: int = LARGEST) -> None:
        schema = change_schema(table)
        self.partitions = partitions
        self.encoder = ChangeEncoder(schema, HEADER)
        self.codec = KeyCodec(table, mode)
        compiled = compiled_records(schema, HEADER, table, self.codec, partitions, largest)
        assert compiled is not None
        self.compiled = compiled

    def plain(self, change: Change) -> Record | None:
        """Return what the plain path makes of a change with its times set, None if it refuses it."""
        try:
            if change.key is None:
                return None
            hashed, key = self.codec.hash_and_record_key(change.key)
            value = self.encoder.encode(change)
        except (Unencodable, RelayError):
            return None
        headers: list[tuple[str, str | bytes | None]] = [("event_id", change.event_id.encode())]
        if change.token is not None:
            headers.append(("token", change.token.to_json_bytes()))
        return value, key, partition(hashed, self.partitions), headers

    def compare(self, page: list[Change], resume_timestamp: int = 1, relayed_at: int = 2) -> list[Record | None]:
        made = self.compiled.records(page, resume_timestamp, relayed_at)
        assert made == list(map(self.plain, page))
        assert all((each.resume_timestamp, each.relayed_at) == (resume_timestamp, relayed_at) for each in page)
        return made


@settings(deadline=None, max_examples=examples(300))
@given(st.data(), st.sampled_from(["hash", "item"]), st.integers(1, 100), LONGS, TIMES, st.booleans())
def test_every_record_is_that_of_the_plain_path(
    data: st.DataObject, mode: Mode, partitions: int, resume_timestamp: int, relayed_at: int, shared: bool
) -> None:
    """I2, I8: and it writes all that the plain path writes."""
    table = data.draw(tables())
    page = data.draw(st.lists(changes(table), max_size=4))
    if shared:  # by the changes of one transaction
        page = [replace(each, token=page[0].token) for each in page]
    BothPaths(table, mode, partitions).compare(page, resume_timestamp, relayed_at)


TYPED = TableSchema("shop", "orders", (KeyColumn("id", "long"),), 1, (Column("id", "long"), Column("c", "int")))
CHANGE = Change(
    event_id="e",
    operation=Operation.UPDATE,
    source="shop",
    table="orders",
    key={"id": 7},
    old=None,
    new={"id": 7, "c": 1},
    images=Images.NEW,
    token=EventToken(1, "shop/l/-80", "MariaDB/0-1-5"),
    committed_at=1_700_000_000_000_000,
)


@settings(deadline=None, max_examples=examples(600))
@given(
    st.sampled_from([*KINDS, "decimal(1,0)", "decimal(1,1)", "decimal(38,2)"]).flatmap(
        lambda kind: st.tuples(st.just(kind), st.none() | VALUES.get(kind, ANYTHING) | ANYTHING)
    )
)
def test_a_value_is_written_or_refused_as_the_plain_path_does(given_: tuple[str, Any]) -> None:
    """I8"""
    kind, value = given_
    table = replace(TYPED, row=(Column("id", "long"), Column("c", kind)))
    BothPaths(table).compare([replace(CHANGE, new={"id": 7, "c": value}, old={"id": None, "c": value})])


@pytest.mark.parametrize("kind", ["decimal(3,0)", "decimal(3,2)", "decimal(38,0)", "decimal(38,38)"])
@pytest.mark.parametrize(
    "text",
    [
        *("0", "-0", "1", "-1", "127", "128", "-128", "-129", "999", "1000", "9.99", "-1.28", "10.00", ".5", "-0.05"),
        *("1E+2", "5E-38", "1E-39", "9" * 38, "-" + "9" * 38, "9" * 39, "0." + "9" * 38, "NaN", "Infinity"),
    ],
)
def test_a_decimal_is_written_or_refused_at_its_bounds(kind: str, text: str) -> None:
    """I8"""
    table = replace(TYPED, row=(Column("id", "long"), Column("c", kind)))
    BothPaths(table).compare([replace(CHANGE, new={"id": 7, "c": Decimal(text)})])


@pytest.mark.parametrize("kind", ["S", "N", "B", "string", "bytes", "int", "long", "decimal(9,2)", "timestamp"])
@pytest.mark.parametrize("mode", ["hash", "item"])
@pytest.mark.parametrize("hashed", [1, 2])
@settings(deadline=None, max_examples=examples(60))
@given(value=ANYTHING)
def test_a_key_is_made_or_refused_as_the_plain_path_does(kind: str, mode: Mode, hashed: int, value: Any) -> None:
    """I2"""
    table = TableSchema("shop", "orders", (KeyColumn("a", kind), KeyColumn("b", "string")), hashed)
    both = BothPaths(table, mode)
    both.compare([replace(CHANGE, key={"a": value, "b": "é"}, new="{}")])


@pytest.mark.parametrize(
    "change",
    [
        replace(CHANGE, key=None, operation=Operation.TRUNCATE),
        replace(CHANGE, key=None, operation=Operation.READ, attributes={MARK: "begin"}),
        replace(CHANGE, key={}),
        replace(CHANGE, key={"id": 7, "more": 1}),
        replace(CHANGE, new={"id": 7}),
        replace(CHANGE, new={"id": 7, "c": 1, "more": 1}),
        replace(CHANGE, new={"id": 7, "d": 1}),
        replace(CHANGE, new=Uncarriable({}, "half a surrogate pair")),
        replace(CHANGE, event_id="\ud800"),
        replace(CHANGE, attributes={"a": "\ud800"}),
        replace(CHANGE, snapshot=Snapshot("\ud800", 1)),
        replace(CHANGE, token=EventToken(1 << 63, "s", "p")),
        replace(CHANGE, committed_at=1 << 63),
    ],
)
def test_what_the_plain_path_refuses_or_sends_elsewhere_is_left_to_it(change: Change) -> None:
    """I8"""
    both = BothPaths(TYPED)
    assert both.compare([CHANGE, change, CHANGE]) == [both.plain(CHANGE), None, both.plain(CHANGE)]


@given(st.text() | st.sampled_from(['"', "\\", "\x1f\x7f", "é\u2028"]), st.booleans())
def test_the_header_of_a_token_is_its_json(text: str, has_origin: bool) -> None:
    origin = OriginToken(1, text, "p") if has_origin else None
    token = EventToken(1_700_000_000, f"shop/l/{text}", f"MariaDB/{text}", origin)
    BothPaths(TYPED).compare([replace(CHANGE, token=token)] * 2)


@pytest.mark.parametrize("has_token", [True, False])
def test_a_record_above_the_limit_is_left_to_the_plain_path(has_token: bool) -> None:
    """I10: the token in its header counts as well."""
    token = CHANGE.token if has_token else None
    change = replace(CHANGE, token=token)
    record = BothPaths(TYPED).plain(change)
    assert record is not None
    value, key, _, _ = record
    size = len(value) + len(key) + (len(token.to_json_bytes()) if token else 0)
    # The plain path writes the times that the compiled one has set, which take another size.
    (fits,) = BothPaths(TYPED, largest=size + 20).compiled.records([change], 0, 0)
    assert fits is not None
    (left,) = BothPaths(TYPED, largest=size - 1).compiled.records([change], 0, 0)
    assert left is None


@pytest.mark.parametrize("name", sorted(golden_inputs.VALUES))
def test_the_golden_values_are_written_but_for_those_of_every_partition(name: str) -> None:
    given_ = golden_inputs.VALUES[name]
    expected, schema = golden.framed(given_)
    table, change = (
        golden.read_table(given_["table"]),
        golden.read_change(golden.read_table(given_["table"]), given_["change"]),
    )
    header = expected[: 5 if expected[:1] == b"\x00" else 10]
    compiled = compiled_records(schema, header, table, KeyCodec(table, "item"), 6, LARGEST)
    assert compiled is not None
    (record,) = compiled.records([change], change.resume_timestamp, change.relayed_at)
    assert (record is None) == (change.key is None)
    assert record is None or record[0] == expected


@given(st.binary(max_size=600), st.integers(1, 1000))
def test_the_partition_of_a_key_is_that_of_the_plain_path(data: bytes, partitions: int) -> None:
    """I2"""
    table = TableSchema("shop", "orders", (KeyColumn("a", "B"),), 1)
    both = BothPaths(table, partitions=partitions)
    (record,) = both.compare([replace(CHANGE, key={"a": data}, new="{}")])
    assert record is not None


def test_an_interrupt_inside_of_a_value_is_not_swallowed() -> None:
    class Interrupting(Decimal):
        def is_finite(self) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BothPaths(TYPED).compiled.records([replace(CHANGE, new={"id": 7, "c": Interrupting(1)})], 0, 0)
