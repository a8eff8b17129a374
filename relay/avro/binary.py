"""Avro's binary form of whole numbers, text and bytes.

Fixed by the Avro specification; only the speed may be changed here.
"""

from __future__ import annotations

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1


def varint(number: int) -> bytes:
    """Write a number that is not negative, seven bits a byte, the low ones first."""
    # Spelled out: a loop takes three times as long.
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


NULL = b"\x00"  # the first branch of every union here
PRESENT = b"\x02"  # the second
SHORT = 1 << 13
LENGTHS = tuple(varint(size << 1) for size in range(SHORT))
"""The length prefix of everything shorter than `SHORT` bytes: up to there it takes at most two bytes."""
PRESENT_LENGTHS = tuple(PRESENT + size for size in LENGTHS)
"""The same with the union branch of a nullable value in front."""


def long(value: int) -> bytes:
    """Write an int or long; ValueError past 64 bits."""
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise ValueError(f"{value} does not fit 64 bits")
    return varint(value << 1 ^ value >> 63)


def length(size: int) -> bytes:
    return LENGTHS[size] if size < SHORT else varint(size << 1)


def text(value: str) -> bytes:
    """Write a string; UnicodeEncodeError on a lone surrogate, which UTF-8 has no bytes for."""
    raw = value.encode()
    return length(len(raw)) + raw


def blob(value: bytes) -> bytes:
    return length(len(value)) + value
