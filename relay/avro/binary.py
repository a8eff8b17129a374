"""Integers, text and bytes in Avro's "Binary Encoding"."""

from functools import lru_cache

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1

NULL = b"\x00"  # the first branch of our unions
PRESENT = b"\x02"  # the second branch


@lru_cache(maxsize=1 << 13, typed=True)  # lengths and times mostly come again
def long(value: int) -> bytes:
    """Return an Avro int or long: seven bits per byte, low bits first. Raises ValueError for more than 64 bits."""
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise ValueError(f"{value} does not fit into 64 bits")
    number = value << 1 ^ value >> 63
    groups = []
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*groups, number))


def text(value: str) -> bytes:
    """Return an Avro string. Raises UnicodeEncodeError for a lone surrogate, which UTF-8 cannot encode."""
    return blob(value.encode())


def blob(value: bytes) -> bytes:
    """Return Avro bytes."""
    return long(len(value)) + value
