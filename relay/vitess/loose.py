"""The primary collation weights of a text, which the ``unicode_loose_*`` vindexes hash.

The weights come from Vitess' tables, which are frozen because they determine the shards of existing rows.
``tests/vitess/loose_weights_test.go`` writes ``loose_weights.xz`` from these tables.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files

from relay.mysql_dialect.printed import REMEMBERED

_MOST_MARKS = 30  # elements in one run of combining marks that Vitess sorts
_MOST_SKIPPED = 15  # marks between the parts of a contraction: Vitess stops at 30, and counts some twice
_LAST_SHORT = 0x7FFF  # the largest weight written in two bytes
_HANGUL = range(0xAC00, 0xD7A4)

Elements = tuple[tuple[int, int], ...]
"""Collation elements as (primary weight, combining class); an ignored element has the weight 0."""


@dataclass(slots=True)
class _Node:
    """The characters that may continue a contraction. ``elements``: the contraction's elements, if it may end here."""

    next: dict[str, _Node] = field(default_factory=dict)
    elements: Elements | None = None


class _Weights:
    """The elements of code points and contractions, and combining classes. It never changes, so threads share it."""

    def __init__(self, text: str) -> None:
        self._elements: dict[str, Elements] = {}
        self.contractions: dict[str, _Node] = {}
        # By mark, the combining class of the first and of the last character in its canonical decomposition.
        self.leads: dict[str, int] = {}
        self.trails: dict[str, int] = {}
        self._ideographs: list[range] = []
        self._unsure: list[range] = []
        suffixes: set[str] = set()
        for line in text.splitlines():
            kind, rest = line.split(" ", 1)
            match kind:
                case "one":
                    code, *elements = rest.split()
                    self._elements[chr(int(code, 16))] = _elements(elements)
                case "many":
                    codes, _, listed = rest[1:].partition("] ")
                    starter, *suffix = (chr(int(code, 16)) for code in codes.split())
                    node = self.contractions.setdefault(starter, _Node())
                    for character in suffix:
                        node = node.next.setdefault(character, _Node())
                    node.elements = _elements(listed.split())
                    suffixes.update(suffix)
                case "ccc":
                    mark, lead, trail = (int(number, 16) for number in rest.split())
                    self.leads[chr(mark)], self.trails[chr(mark)] = lead, trail
                case _:
                    first, last = rest.split()
                    ranges = self._ideographs if kind == "ideographic" else self._unsure
                    ranges.append(range(int(first, 16), int(last, 16) + 1))
        # A text without these characters has the weights of its characters, one after the other.
        self.dependent = frozenset(suffixes | {c for c, elements in self._elements.items() if elements[0][1]})
        self.key = lru_cache(REMEMBERED)(self._key)  # returns the weights of a single character, as they are hashed
        self.ascii = [self.key(chr(code)) for code in range(128)]

    def _key(self, character: str) -> bytes:
        return b"".join(_packed(primary) for primary, _ in self.elements(character))

    def elements(self, character: str) -> Elements:
        """Return the elements of a character by itself. Raises ValueError if they are uncertain."""
        known = self._elements.get(character)
        if known is not None:
            return known
        code = ord(character)
        if code in _HANGUL:
            syllable, trail = divmod(code - _HANGUL.start, 28)
            jamo = [0x1100 + syllable // 21, 0x1161 + syllable % 21] + ([0x11A7 + trail] if trail else [])
            return tuple(element for part in jamo for element in self._elements[chr(part)])
        if 0xD800 <= code < 0xE000:
            raise ValueError(
                f"a lone surrogate (U+{code:04X}) cannot be encoded in UTF-8, so it has no collation weight"
            )
        if any(code in each for each in self._unsure):
            raise ValueError(
                f"U+{code:04X} is not assigned in Unicode 15: its weight depends on the version of Go that Vitess was "
                "built with, so its keyspace id is uncertain"
            )
        if not any(code in each for each in self._ideographs):
            return ((code + 0x50000, 0),)
        common = 0x4E00 <= code < 0xA000 or 0xF900 <= code < 0xFB00
        return ((code + (0x10000 if common else 0x20000), 0),)


def primary_key(text: str) -> bytes:
    """Return the primary weights of ``text``, without its trailing spaces, as Vitess hashes them.

    Raises ValueError if the weight of a character is uncertain. Source: go/mysql/collations/vindex of Vitess v0.23.0.
    """
    text = text.rstrip(" ")
    weights = _weights()
    if text.isascii():
        return b"".join(map(weights.ascii.__getitem__, text.encode("ascii")))
    if weights.dependent.isdisjoint(text):
        return b"".join(map(weights.key, text))
    return _WeightReader(weights, text).key()


class _WeightReader:
    """Reads the elements of one text in the order in which Vitess hashes them.

    Vitess sorts combining marks while it reads, not always by the Unicode standard, so this follows its steps.
    """

    def __init__(self, weights: _Weights, text: str) -> None:
        self._weights = weights
        self._text = text
        self._at = 0
        self._elements: list[tuple[int, int]] = []

    def key(self) -> bytes:
        parts: list[bytes] = []
        while ready := self._segment():
            parts += [_packed(primary) for primary, _ in self._elements[:ready]]
            del self._elements[:ready]
        return b"".join(parts)

    def _segment(self) -> int:
        """Return how many elements are in their final order, after reading more if needed; 0 at the end."""
        if not self._elements and not self._read():
            return 0
        elements = self._elements
        last = elements[-1][1]
        if last == 0:
            return len(elements)
        if elements[0][1] == 0:
            return next(n for n, (_, combining) in enumerate(elements) if combining)
        while True:
            before = len(elements)
            if not self._read():
                return len(elements)
            combining = elements[before][1]
            if combining == 0 or len(elements) > _MOST_MARKS:
                return before
            if combining < last:
                to = before - 1
                while to > 0 and combining < elements[to - 1][1]:
                    to -= 1
                elements[to:] = elements[before:] + elements[to:before]
            else:
                last = combining

    def _read(self) -> bool:
        if self._at >= len(self._text):
            return False
        self._at += self._append(self._text, self._at)
        return True

    def _append(self, text: str, at: int) -> int:
        """Append the elements of the character or contraction at ``at``, and return its length in characters."""
        character = text[at]
        root = self._weights.contractions.get(character)
        if root is None:
            self._elements += self._weights.elements(character)
            return 1
        return 1 + self._append_contraction(character, root, text[at + 1 : at + 1 + 4 * _MOST_MARKS])

    def _append_contraction(self, starter: str, root: _Node, suffix: str) -> int:
        """Append the longest contraction, and then the marks that interrupt it. Return its length in characters."""
        found, leads, trails = _Match(root, suffix), self._weights.leads, self._weights.trails
        at = found.scan(0)
        skipped = ""
        skipped_then = 0
        if not found.done and at < len(suffix) and not suffix[at].isascii():
            kept = at
            mark = suffix[at]
            at += 1
            if leads.get(mark):
                previous = trails[mark]
                found.end = next((n for n in range(at, len(suffix)) if not leads.get(suffix[n])), len(suffix))
                if found.end - kept > _MOST_SKIPPED:
                    raise ValueError(
                        f"{found.end - kept} combining marks in a row after {starter!r}: Vitess splits so many marks, "
                        "and it is uncertain where"
                    )
                while at < len(suffix) and not found.done and not suffix[at].isascii():
                    lead = leads.get(suffix[at], 0)
                    if lead == 0 or previous >= lead:
                        break
                    previous = trails[suffix[at]]
                    if (reached := found.scan(at)) != at:
                        skipped += suffix[kept:at]
                        if found.length == reached:
                            skipped_then = len(skipped)
                        at = kept = reached
                    else:
                        at += 1
        self._elements += found.elements if found.elements is not None else self._weights.elements(starter)
        skipped = skipped[:skipped_then]
        at = 0
        while at < len(skipped):
            at += self._append(skipped, at)
        return found.length


class _Match:
    """The longest contraction found so far, and its length."""

    def __init__(self, root: _Node, suffix: str) -> None:
        self._node, self._suffix = root, suffix
        self.end = len(suffix)
        self.elements: Elements | None = None
        self.length = 0
        self.done = False

    def scan(self, at: int) -> int:
        while at < self.end and (node := self._node.next.get(self._suffix[at])) is not None:
            at += 1
            self._node = node
            if node.elements is not None:
                self.elements, self.length = node.elements, at
            if not node.next:
                self.done = True
                break
        return at


@cache
def _weights() -> _Weights:
    packed = (files("relay.vitess") / "loose_weights.xz").read_bytes()
    return _Weights(lzma.decompress(packed).decode("ascii"))


def _elements(listed: list[str]) -> Elements:
    pairs = (element.split(".") for element in listed)
    return tuple((int(primary, 16), int(combining, 16)) for primary, combining in pairs)


def _packed(primary: int) -> bytes:
    if primary <= _LAST_SHORT:
        return primary.to_bytes(2, "big") if primary else b""
    return (primary | 0x800000).to_bytes(3, "big")
