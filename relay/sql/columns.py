"""The column type that carries each SQL type, the same for VStream and for binlogs.

This is on the wire: ``schemas/README.md`` shows it, and a row must be equal in every byte whichever way it is read. The
values are those that ``relay.avro.columns`` takes:

==================  =====================================================================================
carried as          Python value
==================  =====================================================================================
int, long           int
decimal(p,s)        Decimal with s decimals; int for ``decimal(20,0)``
float, double       float whose shortest text is that of the column's value
string              str: text transcoded; DATE, DATETIME, TIME as MySQL prints them; JSON verbatim
timestamp           int, microseconds since the epoch; 0 only for the zero TIMESTAMP
bytes               bytes: BINARY padded to its length, BIT big-endian, geometry with its SRID
set                 list of str, in the order of the definition
==================  =====================================================================================
"""

from __future__ import annotations

_INTEGERS = {
    # Signed, unsigned.
    "tinyint": ("int", "int"),
    "smallint": ("int", "int"),
    "mediumint": ("int", "int"),
    "int": ("int", "long"),
    "bigint": ("long", "decimal(20,0)"),
}
_PLAIN = {
    "year": "int",
    "float": "float",
    "double": "double",
    "date": "string",
    "datetime": "string",
    "time": "string",
    "timestamp": "timestamp",
    "char": "string",
    "varchar": "string",
    "text": "string",
    "json": "string",
    "enum": "string",
    "set": "set",
    "binary": "bytes",
    "varbinary": "bytes",
    "blob": "bytes",
    "bit": "bytes",
    "geometry": "bytes",
    "uuid": "bytes",
    "inet4": "bytes",
    "inet6": "bytes",
    "vector": "bytes",
}

WITH_DECIMALS = frozenset({"datetime", "time"})
"""The types carried as text that ends in decimals of a second: DATETIME(3) has three, DATETIME has none."""


def carried_as(base: str, *, unsigned: bool = False, precision: int = 0, scale: int = 0) -> str:
    """Return the column type that carries an SQL type. Raises ValueError for a type that cannot be carried.

    ``base``: the type's name in lower case; ``text`` and ``blob`` for those of any size. ``precision``, ``scale``: of a
    ``decimal``.
    """
    if base in _INTEGERS:
        return _INTEGERS[base][unsigned]
    if base == "decimal":
        return f"decimal({precision},{scale})"
    if base in _PLAIN:
        return _PLAIN[base]
    raise ValueError(
        f"columns of type {base} cannot be carried: list the tables to relay in `tables`, without this one"
    )
