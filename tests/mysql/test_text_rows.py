"""Packets of rows: each whole, whatever its size, or an error."""

from __future__ import annotations

import io

import pytest

from relay.mysql.text_rows import next_packet

LARGEST = 0xFFFFFF


def sent(part: bytes, number: int) -> bytes:
    return len(part).to_bytes(3, "little") + bytes([number]) + part


@pytest.mark.parametrize("rest", [b"", b"end"])
def test_a_row_of_16_megabytes_comes_in_several_packets(rest: bytes) -> None:
    stream = io.BytesIO(sent(b"x" * LARGEST, 3) + sent(rest, 4) + sent(b"next", 5))
    assert next_packet(stream.read) == (b"x" * LARGEST + rest, 4)
    assert next_packet(stream.read) == (b"next", 5)


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_a_packet_that_is_cut_off_is_a_lost_connection(cut: int) -> None:
    """I8: never a shorter row."""
    with pytest.raises(ConnectionError):
        next_packet(io.BytesIO(sent(b"row", 1)[:-cut]).read)
