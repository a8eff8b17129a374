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
    assert next_packet(stream.read, 3) == (b"x" * LARGEST + rest, 5)
    assert next_packet(stream.read, 5) == (b"next", 6)


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_a_packet_that_is_cut_off_is_a_lost_connection(cut: int) -> None:
    """I8: never a shorter row."""
    with pytest.raises(ConnectionError):
        next_packet(io.BytesIO(sent(b"row", 1)[:-cut]).read, 1)


@pytest.mark.parametrize("number", [255, 1])
def test_an_answer_that_lacks_a_packet_is_refused(number: int) -> None:
    """I1: no row is passed over."""
    with pytest.raises(ConnectionError, match="packet 0 of its answer is missing"):
        next_packet(io.BytesIO(sent(b"row", number)).read, 0)


def test_an_error_ends_an_answer_whatever_its_number() -> None:
    """As that of a MariaDB which is shut down, whose number is 0."""
    error = b"\xff\x1d\x04#08S01Server shutdown"
    assert next_packet(io.BytesIO(sent(error, 0)).read, 7) == (error, 8)
