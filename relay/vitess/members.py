"""The members of ENUM and SET columns, read from their definition, and what the values of such columns mean.

Each function takes the members as a column type holds them, ``'a','b'``, and returns a mapping from the bytes that
come to the value that is carried; what is in none is a KeyError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_LARGEST_SET = 64

_MEMBER = re.compile(r"\s*'((?:[^'\\]|''|\\.)*)'\s*(?:,|$)", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


def members(inside: str) -> list[str]:
    """Return the members of ``'a','it''s'``, in the order of the definition. ValueError if it is none."""
    found: list[str] = []
    at = 0
    while at < len(inside):
        matched = _MEMBER.match(inside, at)
        if matched is None:
            raise ValueError(f"its members cannot be read: {inside!r}")
        found.append(_ESCAPED.sub(lambda m: _ESCAPES.get(m[1], m[1]) if m[1] else "'", matched[1]))
        at = matched.end()
    if not found:
        raise ValueError("it has no members")
    return found


def by_text(inside: str, decode: Callable[[bytes], str]) -> dict[bytes, str]:
    """ENUM as text. The empty text is what MySQL keeps of a value that is no member."""
    found = {"", *members(inside)}

    def known(value: bytes) -> str:
        text = decode(value)
        if text not in found:
            raise KeyError(text)
        return text

    return _Made(known)


def by_index(inside: str) -> dict[bytes, str]:
    """ENUM as the number of a member, from 1: what servers older than v20 send."""
    return {b"0": "", **{b"%d" % (at + 1): member for at, member in enumerate(members(inside))}}


def sets_by_text(inside: str, decode: Callable[[bytes], str], *, copied: bool) -> dict[bytes, list[str]]:
    """SET as the texts of its members with commas between them."""
    found = members(inside)
    if "" in found:
        raise ValueError("a set of the empty member cannot be told from the empty set")
    if len(found) == _LARGEST_SET and not copied:
        # vstreamer.go, buildSetStringValue: its loop over the bits ends before the last one.
        raise ValueError("Vitess leaves the 64th member of a SET out")
    known = set(found)

    def split(value: bytes) -> list[str]:
        texts = decode(value).split(",") if value else []
        if not known.issuperset(texts):
            raise KeyError(decode(value))
        return texts

    return _Made(split)


def sets_by_index(inside: str) -> dict[bytes, list[str]]:
    """SET as a number whose bits are its members."""
    found = members(inside)

    def split(value: bytes) -> list[str]:
        bits = int(value)
        if bits >> len(found):
            raise ValueError(f"{bits} has more bits than the {len(found)} members")
        return [member for at, member in enumerate(found) if bits >> at & 1]

    return _Made(split)


class _Made(dict[bytes, Any]):
    """Values that were made before; lists among them are shared, and nobody changes them."""

    def __init__(self, make: Callable[[bytes], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, value: bytes) -> Any:
        if len(self) > 10_000:
            self.clear()
        made = self[value] = self._make(value)
        return made
