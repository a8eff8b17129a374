"""Values of ENUM and SET columns, decoded by the members in the column's definition.

Each decoder takes the members as in a column type, ``'a','b'``, and returns a mapping from received bytes to the
carried value. It raises KeyError or ValueError for bytes that are not a value of the column.
"""

import re
from collections.abc import Callable, Sequence

from relay.mysql_dialect.memo import Memo

_LARGEST_SET = 64

_MEMBER = re.compile(r"\s*'((?:[^'\\]|''|\\.)*)'\s*(?:,|$)", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


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


def by_text(inside: str, decode: Callable[[bytes], str]) -> Memo[str]:
    """Decode ENUM as text. The empty text is what MySQL stores for a value that is not a member."""
    found = {"", *members(inside)}

    def known(value: bytes) -> str:
        text = decode(value)
        if text not in found:
            raise KeyError(text)
        return text

    return Memo(known)


def by_index(inside: str) -> dict[bytes, str]:
    """Decode ENUM as the number of a member, from 1, as Vitess sends it before v20."""
    return {b"0": "", **{b"%d" % (at + 1): member for at, member in enumerate(members(inside))}}


def sets_by_text(inside: str, decode: Callable[[bytes], str], *, copied: bool) -> Memo[list[str]]:
    """Decode SET as the texts of its members, separated by commas."""
    found = members(inside)
    if "" in found:
        raise ValueError("the set of the empty member and the empty set cannot be told apart")
    if len(found) == _LARGEST_SET and not copied:
        # vstreamer.go, buildSetStringValue: the loop over the bits ends before the last one.
        raise ValueError("Vitess omits the 64th member of a SET")
    known = set(found)

    def split(value: bytes) -> list[str]:
        texts = decode(value).split(",") if value else []
        if not known.issuperset(texts):
            raise KeyError(decode(value))
        return texts

    return Memo(split)


def sets_by_index(inside: str) -> Memo[list[str]]:
    """Decode SET as a number whose bits are its members."""
    found = members(inside)
    return Memo(lambda value: chosen(found, int(value)))


def chosen(members: Sequence[str], bits: int) -> list[str]:
    """Return the members of a SET whose bits are set, the first in the lowest. Raises ValueError for other bits."""
    if bits >> len(members):
        raise ValueError(f"{bits:#x} has bits beyond its {len(members)} members")
    return [member for at, member in enumerate(members) if bits >> at & 1]
