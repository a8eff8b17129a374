"""The bytes in front of a value that say which schema wrote it, in both framings.

Fixed by other people's formats: Avro single-object encoding, and Confluent's wire format. What a reader does
about bytes it does not know is decided here (`UnknownFraming`) and in ``decode.py`` (`UnknownSchema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fastavro.schema

from relay.errors import RelayError

SINGLE_OBJECT_MARK = b"\xc3\x01"
SINGLE_OBJECT_HEADER = 10  # bytes: the mark and the fingerprint
CONFLUENT_MARK = b"\x00"
CONFLUENT_HEADER = 5  # bytes: the mark and a 4-byte big-endian schema id


class UnknownFraming(RelayError):
    """A value that no known framing begins: not ours, or damaged. It goes to the dead letters."""


def fingerprint(schema: Mapping[str, Any]) -> bytes:
    """Give the CRC-64-AVRO of a schema's parsing canonical form, as its 8 little-endian bytes on the wire."""
    canonical = fastavro.schema.to_parsing_canonical_form(dict(schema))
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def single_object_header(fingerprint: bytes) -> bytes:
    if len(fingerprint) != 8:
        raise ValueError(f"a fingerprint has 8 bytes, not {len(fingerprint)}")
    return SINGLE_OBJECT_MARK + fingerprint


def confluent_header(schema_id: int) -> bytes:
    return CONFLUENT_MARK + schema_id.to_bytes(4, "big")


def schema_id(header: bytes) -> int | None:
    """Read the registry's id out of a Confluent header; None for another framing."""
    if len(header) != CONFLUENT_HEADER or not header.startswith(CONFLUENT_MARK):
        return None
    return int.from_bytes(header[1:], "big")


def split(value: bytes) -> tuple[bytes, bytes]:
    """Part a value into its header and its Avro body.

    Raises `UnknownFraming`: bytes of unknown origin are never decoded, since a decoder that is given them
    finds a plausible row of zeros instead of an error.
    """
    if value.startswith(SINGLE_OBJECT_MARK) and len(value) >= SINGLE_OBJECT_HEADER:
        return value[:SINGLE_OBJECT_HEADER], value[SINGLE_OBJECT_HEADER:]
    if value.startswith(CONFLUENT_MARK) and len(value) >= CONFLUENT_HEADER:
        return value[:CONFLUENT_HEADER], value[CONFLUENT_HEADER:]
    raise UnknownFraming(
        f"a value of {len(value)} bytes beginning with {value[:5].hex() or 'nothing'} is framed neither as"
        " Avro single object (c301...) nor in the Confluent wire format (00...)"
    )
