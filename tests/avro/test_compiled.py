"""Generated writers against the writers of single columns: the same bytes, and the same refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro import columns
from relay.avro.binary import long
from relay.avro.compiled import record_writer
from tests.avro.strategies import ANYTHING, KINDS, VALUES
from tests.examples import examples


def outcome(write: Any, value: Any) -> bytes | None:
    """Return the bytes, None for a refusal."""
    try:
        return bytes(write(value))
    except ValueError:
        return None


@settings(deadline=None, max_examples=examples(500))
@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), VALUES.get(kind, ANYTHING) | ANYTHING)))
def test_a_generated_writer_writes_and_refuses_the_same_values_as_the_writer_of_a_column(
    given_: tuple[str, Any],
) -> None:
    """I8."""
    kind, value = given_
    plain = columns.writer(kind)
    for nullable, one in ((False, plain), (True, columns.nullable(plain))):
        write = record_writer([("c", kind)], nullable=nullable)
        assert outcome(lambda v, write=write: write({"c": v}), value) == outcome(one, value)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(VALUES)), st.booleans()), max_size=5).flatmap(
        lambda fields: st.tuples(
            st.just([kind for kind, _ in fields]),
            st.tuples(*(st.none() if null else VALUES[kind] for kind, null in fields)),
        )
    )
)
@settings(deadline=None)
def test_a_record_is_its_columns_one_after_the_other(drawn: tuple[list[str], tuple[Any, ...]]) -> None:
    kinds, values = drawn
    fields = [(f"column {at} \"'{{}}\\", kind) for at, kind in enumerate(kinds)]
    record = {name: value for (name, _), value in zip(fields, values, strict=True)}
    expected = [columns.nullable(columns.writer(kind))(value) for kind, value in zip(kinds, values, strict=True)]
    assert record_writer(fields, nullable=True)(record) == b"".join(expected)


def test_a_missing_column_is_not_written_as_null() -> None:
    with pytest.raises(KeyError):
        record_writer([("a", "int"), ("b", "int")], nullable=True)({"a": 1})


@given(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 62).map(lambda bits: 1 << bits))
def test_an_integer_is_written_seven_bits_per_byte(number: int) -> None:
    zigzag = number * 2 if number >= 0 else -number * 2 - 1
    groups: list[int] = []
    while not groups or zigzag:
        groups.append(zigzag & 0x7F)
        zigzag >>= 7
    assert long(number) == bytes([group | 0x80 for group in groups[:-1]] + [groups[-1]])
