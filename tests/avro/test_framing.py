"""Headers of both framings, byte for byte; everything else is refused."""

from __future__ import annotations

import fastavro.schema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.avro.framing import UnknownFraming, confluent_header, fingerprint, schema_id, single_object_header, split


@pytest.mark.parametrize(("schema", "value"), [('"null"', 0x63DD24E7CC258F8A), ('"int"', 0x7275D51A3F395C8F)])
def test_the_fingerprint_is_avros_own(schema: str, value: int) -> None:
    # From the test data of the Avro project.
    assert fastavro.schema.fingerprint(schema, "CRC-64-AVRO") == value.to_bytes(8, "little").hex()


def test_a_single_object_begins_with_the_mark_and_the_little_endian_fingerprint() -> None:
    schema = {"type": "record", "name": "R", "fields": []}
    mark = fingerprint(schema)
    header = single_object_header(mark)
    assert header == b"\xc3\x01" + mark
    assert split(header + b"body") == (header, b"body")
    assert schema_id(header) is None


def test_a_fingerprint_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        single_object_header(b"short")


def test_a_confluent_value_begins_with_zero_and_the_big_endian_id() -> None:
    header = confluent_header(258)
    assert header == b"\x00\x00\x00\x01\x02"
    assert split(header + b"body") == (header, b"body")
    assert schema_id(header) == 258


def test_what_no_registry_can_have_assigned_is_not_an_id() -> None:
    """Ids are Java's integers."""
    assert schema_id(confluent_header(0x7FFF_FFFF)) == 0x7FFF_FFFF
    assert schema_id(confluent_header(0x8000_0000)) is None


@given(st.binary(max_size=20).filter(lambda value: not value.startswith((b"\x00", b"\xc3\x01"))))
def test_bytes_with_an_unknown_header_are_never_taken_for_a_value(value: bytes) -> None:
    with pytest.raises(UnknownFraming):
        split(value)


@pytest.mark.parametrize(
    "value", [b"", b"\x00\x00\x00\x01", b"\xc3\x01\x00\x00\x00\x00\x00\x00\x00", b"\xc3\x02" + bytes(9)]
)
def test_a_truncated_header_is_unknown(value: bytes) -> None:
    with pytest.raises(UnknownFraming, match="neither in Avro"):
        split(value)
