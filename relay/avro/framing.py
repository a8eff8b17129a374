"""The header of a value, which names its schema: Avro's "Single-object encoding" and Confluent's "Wire format"."""

from collections.abc import Mapping
from typing import Any

import fastavro.schema

from relay.errors import RelayError

SINGLE_OBJECT_MARK = b"\xc3\x01"
SINGLE_OBJECT_HEADER = 10  # bytes: the mark and the fingerprint
CONFLUENT_MARK = b"\x00"
CONFLUENT_HEADER = 5  # bytes: the mark and a 4-byte big-endian schema id
_LARGEST_ID = 0x7FFF_FFFF


class UnknownFraming(RelayError):
    """The value begins with no known framing: it is foreign or damaged, and goes to the dead letters."""


def fingerprint(schema: Mapping[str, Any]) -> bytes:
    """Return the CRC-64-AVRO of a schema's parsing canonical form, as 8 little-endian bytes."""
    canonical = fastavro.schema.to_parsing_canonical_form(dict(schema))
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def single_object_header(fingerprint: bytes) -> bytes:
    """Return the header of Avro's single-object encoding. Raises ValueError unless ``fingerprint`` has 8 bytes."""
    if len(fingerprint) != 8:
        raise ValueError(f"a fingerprint has 8 bytes, not {len(fingerprint)}")
    return SINGLE_OBJECT_MARK + fingerprint


def confluent_header(schema_id: int) -> bytes:
    return CONFLUENT_MARK + schema_id.to_bytes(4, "big")


def schema_id(header: bytes) -> int | None:
    """Return the id in a Confluent header. None for another framing, or an id that no registry assigns."""
    if len(header) != CONFLUENT_HEADER or not header.startswith(CONFLUENT_MARK):
        return None
    number = int.from_bytes(header[1:], "big")
    # I12: ids are Java's integers. A registry answers larger ones with 404 for an unknown path, as a registry that is
    # starting answers everything.
    return number if number <= _LARGEST_ID else None


def split(value: bytes) -> tuple[bytes, bytes]:
    """Return header and body. Raises `UnknownFraming`: an Avro decoder would read a plausible row of zeros instead."""
    if value.startswith(SINGLE_OBJECT_MARK) and len(value) >= SINGLE_OBJECT_HEADER:
        return value[:SINGLE_OBJECT_HEADER], value[SINGLE_OBJECT_HEADER:]
    if value.startswith(CONFLUENT_MARK) and len(value) >= CONFLUENT_HEADER:
        return value[:CONFLUENT_HEADER], value[CONFLUENT_HEADER:]
    raise UnknownFraming(
        f"a value of {len(value)} bytes that starts with {value[:5].hex() or 'nothing'} is neither in Avro's"
        " single-object encoding (c301...) nor in Confluent's wire format (00...)"
    )
