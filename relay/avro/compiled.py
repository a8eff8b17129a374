"""Writers of complete records, generated as straight-line Python for the columns of one table.

Values of the usual types are written in place. All others, and every refusal, are left to the writers of
``relay.avro.columns``, which decide what a column may hold (I8). The bytes are those of a general Avro writer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from relay.avro import columns
from relay.avro.binary import LENGTHS, PRESENT, PRESENT_LENGTHS, SHORT, length, varint
from relay.table import MAX_AVRO_PRECISION, Decimals, column_type

RecordWriter = Callable[[Mapping[str, Any]], bytes]

_ENVIRONMENT: dict[str, Any] = {
    "Decimal": Decimal,
    "LENGTHS": LENGTHS,
    "PRESENT_LENGTHS": PRESENT_LENGTHS,
    "PRESENT": PRESENT,
    "length": length,
    "varint": varint,
    "pack": struct.Struct("<d").pack,
    "join": b"".join,
}


def record_writer(fields: Sequence[tuple[str, str]], *, nullable: bool) -> RecordWriter:
    """Return the writer of a record with these fields, each a column name and type, all of them ``nullable`` or none.

    The writer raises KeyError for a missing column, and what `columns.writer` raises.
    """
    environment = dict(_ENVIRONMENT)
    lines, parts = ["def write(record):"], []
    for at, (name, kind) in enumerate(fields):
        environment[f"w{at}"] = columns.writer(kind)
        lines.append(f" v = record[{name!r}]")
        cases = _cases(kind, nullable)
        for number, (test, statements) in enumerate(cases):
            lines.append(f" {'elif' if number else 'if'} {test}:")
            lines += [f"  {statement.format(at=at)}" for statement in statements]
        if nullable:
            lines += [f" {'elif' if cases else 'if'} v is None:", f"  p{at} = b'\\0'"]
        slowly = f"p{at} = {'PRESENT + ' if nullable else ''}w{at}(v)"
        lines += [" else:", f"  {slowly}"] if cases or nullable else [f" {slowly}"]
        parts.append(f"p{at}")
    # Joined only once: each column's length and bytes stay separate pieces until here.
    lines.append(f" return join(({', '.join(parts)},))" if parts else " return b''")
    exec(compile("\n".join(lines), "<record writer>", "exec"), environment)
    writer: RecordWriter = environment["write"]
    return writer


def _cases(kind: str, nullable: bool) -> list[tuple[str, list[str]]]:
    """Return the conditions under which a value ``v`` is written in place, each with the statements that set p{at}."""
    found = column_type(kind)
    lengths, present = ("PRESENT_LENGTHS", "PRESENT + ") if nullable else ("LENGTHS", "")
    sized = f"p{{at}} = ({lengths}[n] if n < {SHORT} else {present}length(n)) + v"
    if isinstance(found, Decimals):
        return [] if found.precision > MAX_AVRO_PRECISION else [_decimal(found, present)]
    match found:
        case "string" | "json" | "rest":
            return [("type(v) is str", ["v = v.encode()", "n = len(v)", sized])]
        case "bytes":
            return [("type(v) is bytes", ["n = len(v)", sized])]
        case "int" | "long":
            limit = 1 << (31 if found == "int" else 63)
            whole = f"{present}varint(v << 1 ^ v >> 63)"
            return [
                (
                    f"type(v) is int and {-limit} <= v < {limit}",
                    [f"p{{at}} = {lengths}[v] if 0 <= v < {SHORT} else {whole}"],
                )
            ]
        case "timestamp":
            inside = f"{columns.FIRST_TIME} <= v <= {columns.LAST_TIME}"
            return [(f"type(v) is int and {inside}", [f"p{{at}} = {present}varint(v << 1 ^ v >> 63)"])]
        case "double":
            return [("type(v) is float", [f"p{{at}} = {present}pack(v)"])]
    return []


def _decimal(kind: Decimals, present: str) -> tuple[str, list[str]]:
    # Databases return as many decimals as the column has, so the digits are the unscaled number.
    if kind.scale:
        plain, whole = f"t[-{kind.scale + 1}:-{kind.scale}] == '.' and 'E' not in t", "int(t.replace('.', ''))"
    else:
        plain, whole = "t.lstrip('-').isdigit()", "int(t)"
    limit = 10**kind.precision
    return (
        f"type(v) is Decimal and (t := str(v)) and {plain} and {-limit} < (n := {whole}) < {limit}",
        [
            "size = (n.bit_length() + 8) // 8",
            f"p{{at}} = {present}LENGTHS[size] + n.to_bytes(size, 'big', signed=True)",
        ],
    )
