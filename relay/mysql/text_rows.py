"""Rows of a SELECT as a server sends them: packets of MySQL's text protocol."""

import struct
from collections.abc import Callable, Generator
from typing import Any

import pymysql

NULL, END, ERROR = 0xFB, 0xFE, 0xFF
"""The first bytes of a value that is NULL, of the packet at the end, which is short, and of an error."""

_HEADER = struct.Struct("<HBB")
_LARGEST = 0xFFFFFF  # bytes of a packet that another one continues
_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}  # bytes of the length of a value, by the first byte


def row_packets(connection: Any, statement: str) -> Generator[bytes]:
    """Run a statement on a connection of PyMySQL, and yield the packets of its rows as they arrive.

    PyMySQL itself would make an object of each value. Closing the iterator reads the rest and drops it. Raises what
    PyMySQL does, and OSError.
    """
    connection.query(statement, unbuffered=True)
    result, number = connection._result, connection._next_seq_id
    try:
        while True:
            packet, number = next_packet(connection._rfile.read, number)
            if ends(packet):
                break
            yield packet
    except OSError:
        result.unbuffered_active = False
        connection._force_close()
        raise
    except GeneratorExit:
        connection._next_seq_id = number
        result._finish_unbuffered_query()
        raise
    result.unbuffered_active = False
    if packet[0] == ERROR:
        pymysql.err.raise_mysql_exception(packet)


def ends(packet: bytes) -> bool:
    """Whether a packet is not a row: no row follows it."""
    return packet[0] == ERROR or (packet[0] == END and len(packet) < 9)


def next_packet(read: Callable[[int], bytes], number: int) -> tuple[bytes, int]:
    """Read the packet ``number``, and return the number of the next one too. Raises OSError for any other (I1)."""
    packet = _part(read, number)
    number = (number + 1) % 256
    if len(packet) == _LARGEST:
        parts = [packet]
        while len(parts[-1]) == _LARGEST:
            parts.append(_part(read, number))
            number = (number + 1) % 256
        packet = b"".join(parts)
    if not packet:
        raise ConnectionError("its answer is not in MySQL's protocol")
    return packet, number


def _part(read: Callable[[int], bytes], expected: int) -> bytes:
    header = read(4)
    if len(header) == 4:
        low, high, number = _HEADER.unpack(header)
        size = low | high << 16
        part = read(size)
        if len(part) == size:
            if number == expected or part[:1] == b"\xff":  # MariaDB numbers the error of a shutdown 0
                return part
            raise ConnectionError(f"packet {expected} of its answer is missing")
    raise ConnectionError("the connection was lost during a query")


def values_of(packet: bytes) -> tuple[bytes | None, ...]:
    """Return the values of a row. Raises IndexError or KeyError for what is none."""
    values: list[bytes | None] = []
    at, end = 0, len(packet)
    while at < end:
        size = packet[at]
        at += 1
        if size == NULL:
            values.append(None)
            continue
        if size > NULL:
            width = _WIDTHS[size]
            size = int.from_bytes(packet[at : at + width], "little")
            at += width
        values.append(packet[at : at + size])
        at += size
    if at > end:
        raise IndexError("a value is cut off")
    return tuple(values)
