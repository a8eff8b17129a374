"""SQL column types to the column types that rows are carried as: one table for VStream and for binlogs.

It is on the wire: ``schemas/README.md`` shows it, and a row read by both paths has to be equal in every byte. The
values each carried type takes are those of ``relay.avro.columns``:

==================  =====================================================================================
carried as          Python value
==================  =====================================================================================
int, long           int
decimal(p,s)        Decimal with s decimals; int for ``decimal(20,0)``
float, double       float, the shortest text of which is that of the column's value
string              str: text transcoded; DATE, DATETIME, TIME as MySQL prints them; JSON verbatim
timestamp           int, microseconds since the epoch; 0 is the zero TIMESTAMP, which no real one is
bytes               bytes: BINARY padded to its length, BIT big-endian, geometry with its SRID
set                 list of str, in the order of the definition
==================  =====================================================================================
"""

from __future__ import annotations

_INTEGERS = {
    # Carried as, signed and unsigned.
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


def carried_as(base: str, *, unsigned: bool = False, precision: int = 0, scale: int = 0) -> str:
    """Return the column type that an SQL type is carried as; ValueError if there is none.

    ``base``: its name in lower case, all sizes of text being ``text`` and all of blob ``blob``. ``precision`` and
    ``scale``: of ``decimal``.
    """
    if base in _INTEGERS:
        return _INTEGERS[base][unsigned]
    if base == "decimal":
        return f"decimal({precision},{scale})"
    if base in _PLAIN:
        return _PLAIN[base]
    raise ValueError(f"columns of type {base} cannot be carried")
