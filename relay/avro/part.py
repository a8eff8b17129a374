"""Readers for a part of a change, generated as straight-line Python for the columns of one table.

The general reader of ``relay.avro.decode`` decides whether a body that they cannot read is damaged.
"""

import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from decimal import Context, Decimal
from itertools import groupby
from typing import Any

from relay.avro.schema import source_name
from relay.types.columns import EPOCH, MAX_AVRO_PRECISION

PartReader = Callable[[bytes], dict[str, Any]]
"""Reads an Avro body. Raises any exception for a body that it cannot read."""

_FIELDS = ("operation", "key", "old", "new", "token")
_ROWS = ("old", "new")
_EXACT = Context(prec=MAX_AVRO_PRECISION)
_PRIMITIVE = ("string", "bytes", "int", "long", "boolean", "float", "double")
_ONE_NUMBER = b"[\x80-\xff]{0,9}[\x00-\x7f]"

_AFTER_SHORT = tuple(0 if first & 1 or first > 127 else 1 + (first >> 1) for first in range(256))
"""For each first byte of a text or bytes value, the distance to its end; 0 if the byte does not show it."""


def _long(b: bytes, p: int, first: int) -> tuple[int, int]:
    """Return the number whose first byte was read, still in zigzag form, and the place after it."""
    number, shift = first & 0x7F, 7
    while (byte := b[p]) > 127:
        number |= (byte & 0x7F) << shift
        shift += 7
        p += 1
    if shift > 63:
        raise ValueError("a number has more than ten bytes")
    return number | byte << shift, p + 1


def _after_sized(b: bytes, p: int) -> int:
    """Return the end of the text or bytes value at ``p``."""
    n = b[p]
    if n > 127:
        n, p = _long(b, p + 1, n)
        p -= 1
    if n & 1:
        raise ValueError("a length is negative")
    return p + 1 + (n >> 1)


def _decimal(raw: bytes, scale: int) -> Decimal:
    return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, _EXACT)


_ENVIRONMENT: dict[str, Any] = {
    "SHORT": _AFTER_SHORT,
    "after_sized": _after_sized,
    "long": _long,
    "decimal": _decimal,
    "time": lambda microseconds: EPOCH + timedelta(microseconds=microseconds),
    "float": struct.Struct("<f").unpack_from,
    "double": struct.Struct("<d").unpack_from,
}


def part_reader(schema: Mapping[str, Any], columns: Collection[str]) -> PartReader:
    """Return the reader of operation, key, token, and only these columns of the images, by their original names.

    An image that is text is read if there are any columns, otherwise it is "". ``schema``: a schema that fastavro has
    parsed. Raises ``KeyError`` unless it is a schema of a table's changes.
    """
    compiler = _Compiler()
    lines = []
    for wanted, fields in groupby(schema["fields"], lambda field: field["name"] in _FIELDS):
        if not wanted:
            lines += compiler.skip_fields(fields)
            continue
        for field in fields:
            compiler.chosen = columns if field["name"] in _ROWS else None
            lines += [*compiler.read(field["type"]), f"f_{field['name']} = v"]
    parts = ", ".join(f"{name!r}: f_{name}" for name in _FIELDS)
    lines += ["if p != len(b): raise ValueError('it does not end where its schema ends')", f"return {{{parts}}}"]
    environment = _ENVIRONMENT | compiler.constants
    exec(compile("\n".join(["def read(b):", " p = 0", *_indented(lines)]), "<part reader>", "exec"), environment)
    reader: PartReader = environment["read"]
    return reader


class _Compiler:
    """Writes statements that read the value at ``p`` of ``b`` into ``v``, or skip the value, and move ``p`` past it.

    ``chosen``: the columns to read in the next row; None means all.
    """

    def __init__(self) -> None:
        self.constants: dict[str, Any] = {}
        self.chosen: Collection[str] | None = None
        self._records: dict[str, Any] = {}  # by full name, since a schema defines each once
        self._depth = 0

    def read(self, kind: Any) -> list[str]:
        if isinstance(kind, list):
            return self._union(kind, self.read, ["v = None"])
        kind, logical = self._resolved(kind)
        if kind == "string":
            if self.chosen is not None and not self.chosen:
                return [*self.skip(kind), "v = ''"]
            return [*_SIZED, "v = b[p:e].decode()", "p = e"]
        if kind == "bytes":
            is_decimal = logical.get("logicalType") == "decimal"
            return [*_SIZED, f"v = decimal(b[p:e], {logical.get('scale', 0)})" if is_decimal else "v = b[p:e]", "p = e"]
        if kind in ("int", "long"):
            is_time = logical.get("logicalType") == "timestamp-micros"
            return [*_NUMBER, "v = n >> 1 ^ -(n & 1)", *(["v = time(v)"] if is_time else [])]
        if kind == "boolean":
            return [f"v = {self._constant({0: False, 1: True})}[b[p]]", "p += 1"]
        if kind in ("float", "double"):
            return [f"v, = {kind}(b, p)", f"p += {4 if kind == 'float' else 8}"]
        if kind["type"] == "enum":
            symbols = {2 * number: symbol for number, symbol in enumerate(kind["symbols"])}
            return [f"v = {self._constant(symbols)}[b[p]]", "p += 1"]
        if kind["type"] == "array":
            return ["items = []", *self._blocks([*self.read(kind["items"]), "items.append(v)"]), "v = items"]
        return self._record(kind)

    def skip(self, kind: Any) -> list[str]:
        if isinstance(kind, list):
            return self._union(kind, self.skip, [])
        kind, _ = self._resolved(kind)
        if kind in ("string", "bytes"):
            return ["e = SHORT[b[p]]", "if e: p += e", "else: p = after_sized(b, p)"]
        if kind in ("int", "long"):
            return self._skip_numbers(1)
        if kind in ("float", "double"):
            return [f"p += {4 if kind == 'float' else 8}"]
        if kind == "boolean" or kind["type"] == "enum":
            return self.read(kind)  # the value must be one of its symbols
        if kind["type"] == "map":
            return self._blocks([*self.skip("string"), *self.skip(kind["values"])])
        if kind["type"] == "array":
            return self._blocks(self.skip(kind["items"]))
        return self.skip_fields(kind["fields"])

    def skip_fields(self, fields: Iterable[Mapping[str, Any]]) -> list[str]:
        """Skip fields, with consecutive numbers in one step."""
        lines = []
        for are_numbers, run in groupby(fields, lambda field: self._is_number(field["type"])):
            kinds = [field["type"] for field in run]
            lines += self._skip_numbers(len(kinds)) if are_numbers else [x for kind in kinds for x in self.skip(kind)]
        return lines

    def _is_number(self, kind: Any) -> bool:
        return not isinstance(kind, list) and self._resolved(kind)[0] in ("int", "long")

    def _skip_numbers(self, count: int) -> list[str]:
        return [f"p = {self._constant(re.compile(_ONE_NUMBER * count).match)}(b, p).end()"]

    def _record(self, kind: Mapping[str, Any]) -> list[str]:
        chosen, self.chosen = self.chosen, None
        self._depth += 1
        lines, parts = [], []
        for number, field in enumerate(kind["fields"]):
            name = source_name(field)
            if chosen is not None and name not in chosen:
                lines += self.skip(field["type"])
                continue
            part = f"r{self._depth}_{number}"
            lines += [*self.read(field["type"]), f"{part} = v"]
            parts.append(f"{name!r}: {part}")
        self._depth -= 1
        return [*lines, f"v = {{{', '.join(parts)}}}"]

    def _union(self, kinds: list[Any], statements: Callable[[Any], list[str]], null: list[str]) -> list[str]:
        first, kind = kinds
        if first != "null":
            raise KeyError(f"the union {kinds} does not begin with null")
        return [
            "u = b[p]",
            "p += 1",
            "if u == 2:",
            *_indented(statements(kind)),
            "elif u: raise ValueError('a union has no such branch')",
            *(["else:", *_indented(null)] if null else []),
        ]

    def _blocks(self, statements: list[str]) -> list[str]:
        return [
            *_NUMBER,
            "while n:",
            " if n & 1: raise ValueError('a block comes with its size, as our writers write none')",
            " left = n >> 1",
            " while left:",
            "  left -= 1",
            *_indented(_indented(statements)),
            *_indented(_NUMBER),
        ]

    def _resolved(self, kind: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return a type without its logical type, and the logical type; a record in full."""
        if isinstance(kind, str):
            return (kind, {}) if kind in _PRIMITIVE else (self._records[kind], {})
        if kind["type"] in _PRIMITIVE:
            return kind["type"], kind
        if kind["type"] in ("record", "enum"):
            self._records[kind["name"]] = kind
        elif kind["type"] not in ("array", "map"):
            raise KeyError(f"{kind['type']} is in no schema of changes")
        return kind, {}

    def _constant(self, value: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


_NUMBER = ("n = b[p]", "p += 1", "if n > 127: n, p = long(b, p, n)")
# Sets ``e`` to the end of the text or bytes value that begins at ``p``.
_SIZED = (*_NUMBER, "if n & 1: raise ValueError('a length is negative')", "e = p + (n >> 1)")


def _indented(lines: Iterable[str]) -> list[str]:
    return [f" {line}" for line in lines]
