"""The rows of a SELECT as a server sends them: packets of MySQL's text protocol."""

import struct
from collections.abc import Callable, Generator
from typing import Any

import pymysql

NULL, END, ERROR = 0xFB, 0xFE, 0xFF  # the first bytes of a NULL value, of the short packet at the end, and of an error
_HEADER = struct.Struct("<HBB")
_LARGEST = 0xFFFFFF  # bytes of a packet that another one continues
_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}  # bytes of a value's length, by the first byte


def row_packets(connection: Any, statement: str) -> Generator[bytes]:
    """Run a statement on a PyMySQL connection, and yield its rows' packets as they arrive. Closing it drops the rest.

    PyMySQL itself would create an object for each value. Raises PyMySQL's errors and OSError.
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
    """Whether a packet is not a row, so that no row follows."""
    return packet[0] == ERROR or (packet[0] == END and len(packet) < 9)


def next_packet(read: Callable[[int], bytes], number: int) -> tuple[bytes, int]:
    """Read the packet ``number``, and return the number after it. Raises OSError for any other packet (I1)."""
    part = packet = _part(read, number)
    while len(part) == _LARGEST:
        number += 1
        part = _part(read, number % 256)
        packet += part
    if not packet:
        raise ConnectionError("its answer is not in MySQL's protocol")
    return packet, (number + 1) % 256


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
    """Return the values of a row. Raises IndexError or KeyError for bytes that are not a row."""
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
