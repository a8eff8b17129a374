"""Reading a part of a change against reading all of it: the same values, and nothing that fastavro refuses."""

from __future__ import annotations

from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.decode import Undecodable, decode, part_decoder
from relay.avro.encode import ChangeEncoder
from relay.avro.framing import fingerprint, single_object_header, split
from relay.avro.part import part_reader
from relay.avro.schema import change_schema
from relay.table import TableSchema
from tests.avro.known import Known
from tests.avro.strategies import changes, tables
from tests.examples import examples

PARTS = ("operation", "key", "old", "new", "token")


@st.composite
def encoded(draw: st.DrawFn) -> tuple[dict[str, Any], bytes, list[str]]:
    """A schema, a value that it wrote, and some of the columns."""
    table: TableSchema = draw(tables())
    schema = change_schema(table)
    value = ChangeEncoder(schema, single_object_header(fingerprint(schema))).encode(draw(changes(table)))
    names = [column.name for column in table.key] + [column.name for column in table.row or ()]
    return schema, value, draw(st.lists(st.sampled_from(names), unique=True))


def whole(schema: dict[str, Any], value: bytes) -> dict[str, Any]:
    return decode(Known({split(value)[0]: schema}), value)


def part_of(change: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    def image(found: Any) -> Any:
        if isinstance(found, dict):
            return {name: value for name, value in found.items() if name in columns}
        return found if columns or found is None else ""

    return {name: image(change[name]) if name in ("old", "new") else change[name] for name in PARTS}


@settings(deadline=None, max_examples=examples(300))
@given(encoded())
def test_a_part_is_what_the_whole_has_of_it(drawn: tuple[dict[str, Any], bytes, list[str]]) -> None:
    """I8. Without the general reader, which would take over."""
    schema, value, columns = drawn
    parsed: Any = fastavro.parse_schema(schema)
    read = part_reader(parsed, columns)
    assert repr(read(split(value)[1])) == repr(part_of(whole(schema, value), columns))


@settings(deadline=None, max_examples=examples(300))
@given(encoded(), st.data())
def test_a_damaged_value_is_read_as_by_fastavro_or_its_damage_is_in_what_is_skipped(
    drawn: tuple[dict[str, Any], bytes, list[str]], data: st.DataObject
) -> None:
    """I8."""
    schema, value, columns = drawn
    header, body = split(value)
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))]
    read = part_decoder(schema, columns)
    try:
        change = whole(schema, header + bytes(damaged))
    except Undecodable as refusal:
        # Text that is not UTF-8, and times that no datetime holds, are only noticed by who reads them.
        if not any(hint in str(refusal) for hint in ("UnicodeDecodeError", "OverflowError")):
            with pytest.raises(Undecodable):
                read(bytes(damaged))
    else:
        # Where the general reader has taken over, there is more.
        assert repr(part_of(read(bytes(damaged)), columns)) == repr(part_of(change, columns))


@given(encoded())
@settings(deadline=None)
def test_what_is_cut_off_or_appended_is_damage(drawn: tuple[dict[str, Any], bytes, list[str]]) -> None:
    schema, value, columns = drawn
    read, body = part_decoder(schema, columns), split(value)[1]
    for damaged in (body[:-1], body + b"\0", b""):
        with pytest.raises(Undecodable):
            read(damaged)
