"""How the texts are read that SELECT prints: to the values that a binlog has in their place."""

import ipaddress
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from relay.mysql_dialect import charsets
from relay.mysql_dialect.memo import Memo
from relay.types.sql import Defined, Form


class Printed(NamedTuple):
    """``decode``: makes the value of a text. ``cell``: how the compiled core reads it, ``relay/native/src/rows.rs``."""

    decode: Callable[[bytes], Any]
    cell: str = "other"


def printed(found: Defined, charset: str | None) -> Printed:
    """Return how a column of a type is read. ``charset``: the charset of its text, or None if it is UTF-8 or not text.

    Raises ValueError for ENUM, SET and FLOAT, which SELECT does not print so that they can be read by that alone.
    """
    match found.type.form:
        case Form.INTEGER:
            return Printed(int, "integer")
        case Form.DECIMAL:
            return Printed(lambda raw: Decimal(raw.decode("ascii")), "decimal")
        case Form.DOUBLE:
            return Printed(float, "double")
        case Form.TEXT:
            return printed_text(charset)
        case Form.TIME | Form.JSON:
            return printed_text(None)
        case Form.TIMESTAMP:
            return Printed(MICROSECONDS.__getitem__)
        case Form.ADDRESS if found.type.name == "uuid":
            return Printed(lambda raw: uuid.UUID(raw.decode("ascii")).bytes)
        case Form.ADDRESS:
            return Printed(lambda raw: ipaddress.ip_address(raw.decode("ascii")).packed)
        case Form.BIT | Form.BYTES | Form.PADDED | Form.OPAQUE:
            return Printed(bytes, "bytes")
        case _:
            raise ValueError(f"{found.type.name} cannot be read as it is printed")


def printed_text(charset: str | None) -> Printed:
    """Return how text in a character set is read, which is UTF-8 for None."""
    if charset is None or charsets.is_utf8(charset):
        return Printed(bytes.decode, "text")
    return Printed(charsets.decoder(charset))


def _microseconds(text: bytes) -> int:
    whole, _, fraction = text.decode("ascii").partition(".")
    if whole == "0000-00-00 00:00:00":
        return 0
    seconds = int(datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000 + int(fraction.ljust(6, "0"))


MICROSECONDS = Memo(_microseconds)
"""Microseconds of TIMESTAMPs by their text, which is UTC. Neighbouring rows often have the same."""
