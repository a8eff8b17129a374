"""Readers for the texts that SELECT prints, including members of ENUM and SET, which return the values of a binlog."""

import ipaddress
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from relay.mysql_dialect import charsets
from relay.types.sql import Defined, Form, detail_of

REMEMBERED = 20_000
"""How many values of a type or column are remembered with their decoded form (I11). Rows share them."""

_LARGEST_SET = 64
_MEMBER = re.compile(r"\s*'((?:[^'\\]|''|\\.)*)'\s*(?:,|$)", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


class Printed(NamedTuple):
    """``decode``: returns a text's value. ``cell``: how the core reads it, see ``relay/native/src/rows.rs``."""

    decode: Callable[[bytes], Any]
    cell: str = "other"


def printed(found: Defined, charset: str | None) -> Printed:
    """Return the reader of a type. ``charset``: None if UTF-8 or not text. Raises ValueError for FLOAT."""
    form, name = found.type.form, found.type.name
    if form is Form.TEXT:
        return printed_text(charset)._replace(decode=charsets.text_reader(charset or "utf8mb4"))
    if form is Form.ENUM:
        return printed_text(charset)
    if form is Form.SET:
        return Printed(sets_by_text(found.inside, printed_text(charset).decode, copied=True))
    if name == "uuid":
        return Printed(lambda raw: uuid.UUID(raw.decode("ascii")).bytes)
    if form not in _PRINTED:
        raise ValueError(f"{name} cannot be read as it is printed")
    return _PRINTED[form]


def printed_text(charset: str | None) -> Printed:
    """Return the reader for text in a character set; None means UTF-8."""
    if charset is None or charsets.is_utf8(charset):
        return Printed(bytes.decode, "text")
    return Printed(charsets.decoder(charset))


@lru_cache(REMEMBERED)  # neighbouring rows often have the same value
def _microseconds(text: bytes) -> int:
    """Return the microseconds of a TIMESTAMP from its text, which is in UTC."""
    whole, _, fraction = text.decode("ascii").partition(".")
    if whole == "0000-00-00 00:00:00":
        return 0
    seconds = int(datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000 + int(fraction.ljust(6, "0"))


_PRINTED = {
    Form.INTEGER: Printed(int, "integer"),
    Form.DECIMAL: Printed(lambda raw: Decimal(raw.decode("ascii")), "decimal"),
    Form.DOUBLE: Printed(float, "double"),
    Form.TIMESTAMP: Printed(_microseconds),
    Form.ADDRESS: Printed(lambda raw: ipaddress.ip_address(raw.decode("ascii")).packed),
    **dict.fromkeys((Form.TIME, Form.JSON), printed_text(None)),
    **dict.fromkeys((Form.BIT, Form.BYTES, Form.PADDED, Form.OPAQUE), Printed(bytes, "bytes")),
}


def members(inside: str) -> list[str]:
    """Return the members in ``'a','it''s'``, in the order of the definition. Raises ValueError if it cannot."""
    found: list[str] = []
    at = 0
    while at < len(inside):
        matched = _MEMBER.match(inside, at)
        if matched is None:
            raise ValueError(f"its members cannot be parsed: {inside!r}")
        found.append(_ESCAPED.sub(lambda m: _ESCAPES.get(m[1], m[1]) if m[1] else "'", matched[1]))
        at = matched.end()
    if not found:
        raise ValueError("it has no members")
    return found


def detail(found: Defined) -> str:
    form, inside = found.type.form, found.inside
    number = int(inside) if inside.isdecimal() else 0
    unsigned, names = "unsigned" in found.attributes.split(), members(inside) if form in (Form.ENUM, Form.SET) else ()
    return detail_of(found.type, unsigned=unsigned, decimals=number, bits=number or 1, members=names)


# The next four return what decodes the values of a column by the members in its type, ``'a','b'``. It raises KeyError
# or ValueError for bytes that are not a value of the column.


def by_text(inside: str, decode: Callable[[bytes], str]) -> Callable[[bytes], str]:
    """Decode ENUM as text. The empty text is what MySQL stores for a value that is not a member."""
    found = {"", *members(inside)}

    @lru_cache(REMEMBERED)
    def known(value: bytes) -> str:
        text = decode(value)
        if text not in found:
            raise KeyError(text)
        return text

    return known


def by_index(inside: str) -> Callable[[bytes], str]:
    """Decode ENUM as the number of a member, from 1, as Vitess sends it before v20."""
    return {b"%d" % at: member for at, member in enumerate(["", *members(inside)])}.__getitem__


def sets_by_text(inside: str, decode: Callable[[bytes], str], *, copied: bool) -> Callable[[bytes], list[str]]:
    """Decode SET as the texts of its members, separated by commas."""
    found = members(inside)
    if "" in found:
        raise ValueError("a set of only the empty member has the same text as an empty set")
    if len(found) == _LARGEST_SET and not copied:
        # vstreamer.go, buildSetStringValue: the loop over the bits ends before the last one.
        raise ValueError("Vitess omits the 64th member of a SET")
    known = set(found)

    @lru_cache(REMEMBERED)
    def split(value: bytes) -> list[str]:
        texts = decode(value).split(",") if value else []
        if not known.issuperset(texts):
            raise KeyError(decode(value))
        return texts

    return split


def sets_by_index(inside: str) -> Callable[[bytes], list[str]]:
    """Decode SET as a number whose bits are its members."""
    found = members(inside)
    return lru_cache(REMEMBERED)(lambda value: chosen(found, int(value)))


def chosen(members: Sequence[str], bits: int) -> list[str]:
    """Return the members of a SET by its bits, the first in the lowest. Raises ValueError for other bits."""
    if bits >> len(members):
        raise ValueError(f"{bits:#x} has bits beyond its {len(members)} members")
    return [member for at, member in enumerate(members) if bits >> at & 1]
