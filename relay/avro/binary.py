"""Integers, text and bytes in Avro's "Binary Encoding"."""

from __future__ import annotations

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1


def varint(number: int) -> bytes:
    """Return a number that is not negative as Avro's variable-length integer: seven bits per byte, low bits first."""
    # Unrolled, because a loop takes three times as long.
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    if number < 0x10000000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80, number >> 21))
    low = (number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80, number >> 21 & 0x7F | 0x80)
    return bytes(low) + varint(number >> 28)


NULL = b"\x00"  # the first branch of our unions
PRESENT = b"\x02"  # the second branch
SHORT = 1 << 13
LENGTHS = tuple(varint(size << 1) for size in range(SHORT))
"""The length prefixes, of at most two bytes, of all values shorter than `SHORT` bytes."""
PRESENT_LENGTHS = tuple(PRESENT + size for size in LENGTHS)
"""The same after the union branch of a nullable value."""


def long(value: int) -> bytes:
    """Return an Avro int or long. Raises ValueError for more than 64 bits."""
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise ValueError(f"{value} does not fit into 64 bits")
    return varint(value << 1 ^ value >> 63)


def length(size: int) -> bytes:
    """Return the length prefix of text or bytes, or the count of an array's block."""
    return LENGTHS[size] if size < SHORT else varint(size << 1)


def text(value: str) -> bytes:
    """Return an Avro string. Raises UnicodeEncodeError for a lone surrogate, which UTF-8 cannot encode."""
    raw = value.encode()
    return length(len(raw)) + raw


def blob(value: bytes) -> bytes:
    """Return Avro bytes."""
    return length(len(value)) + value
