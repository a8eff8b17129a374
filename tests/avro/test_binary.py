"""Integers in Avro's encoding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.avro.columns import long


@given(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 62).map(lambda bits: 1 << bits))
def test_an_integer_is_written_seven_bits_per_byte(number: int) -> None:
    zigzag = number * 2 if number >= 0 else -number * 2 - 1
    groups: list[int] = []
    while not groups or zigzag:
        groups.append(zigzag & 0x7F)
        zigzag >>= 7
    assert long(number) == bytes([group | 0x80 for group in groups[:-1]] + [groups[-1]])
