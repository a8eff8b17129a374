"""The SQL types: the column type that carries each, and how servers show and store its values.

The column types are on the wire: ``schemas/README.md`` shows them, and a row must be equal in every byte however it is
read. ``relay.avro.columns`` accepts these values:

==================  =====================================================================================
carried as          Python value
==================  =====================================================================================
int, long           int
decimal(p,s)        Decimal with s decimals; int for ``decimal(20,0)``
float, double       float whose shortest text is the column's value
string              str: text transcoded; DATE, DATETIME, TIME as MySQL prints them; JSON verbatim
timestamp           int, microseconds since the epoch; 0 only for the zero TIMESTAMP
bytes               bytes: BINARY padded to its length, BIT big-endian, geometry with its SRID
set                 list of str, in the order of the definition
==================  =====================================================================================
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from relay.types.columns import ColumnKind


class Form(Enum):
    """The form in which servers show and store a value; it chooses the value's readers."""

    INTEGER = auto()
    DECIMAL = auto()
    FLOAT = auto()
    DOUBLE = auto()
    TIME = auto()
    TIMESTAMP = auto()
    TEXT = auto()
    JSON = auto()
    ENUM = auto()
    SET = auto()
    BYTES = auto()
    PADDED = auto()  # bytes of a fixed length, stored without trailing zeros
    ADDRESS = auto()  # the same, but shown as text
    BIT = auto()
    OPAQUE = auto()  # bytes with their own rules of comparison


@dataclass(frozen=True, slots=True)
class SqlType:
    """An SQL type. ``also``: its other names, and the names for its other sizes.

    ``unsigned``: the column type of UNSIGNED, if it is another. ``size``: the bytes of an ADDRESS. ``is_blob``: whether
    ``binlog_row_image=NOBLOB`` may leave it out. ``is_national``: whether its character set is independent of the
    table's.
    """

    name: str
    kind: ColumnKind
    form: Form
    also: tuple[str, ...] = ()
    unsigned: str = ""
    size: int = 0
    is_blob: bool = False
    is_national: bool = False

    @property
    def told(self) -> str:
        """Its name, if the column type does not imply it: a text may be a date, a time 0 the zero TIMESTAMP."""
        return self.name if self.form in (Form.TIME, Form.TIMESTAMP, Form.JSON) else ""

    def carried(self, *, unsigned: bool = False, precision: int = 0, scale: int = 0) -> str:
        if self.kind is ColumnKind.DECIMAL:
            return f"decimal({precision},{scale})"
        return (unsigned and self.unsigned) or str(self.kind)


_SHAPES = ("point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection")
_TYPES = (
    SqlType("tinyint", ColumnKind.INT, Form.INTEGER, ("int1", "bool", "boolean")),
    SqlType("smallint", ColumnKind.INT, Form.INTEGER, ("int2",)),
    SqlType("mediumint", ColumnKind.INT, Form.INTEGER, ("int3", "middleint")),
    SqlType("int", ColumnKind.INT, Form.INTEGER, ("integer", "int4"), unsigned="long"),
    SqlType("bigint", ColumnKind.LONG, Form.INTEGER, ("int8",), unsigned="decimal(20,0)"),
    SqlType("year", ColumnKind.INT, Form.INTEGER),
    SqlType("decimal", ColumnKind.DECIMAL, Form.DECIMAL, ("numeric", "dec", "fixed")),
    SqlType("float", ColumnKind.FLOAT, Form.FLOAT, ("float4",)),
    SqlType("double", ColumnKind.DOUBLE, Form.DOUBLE, ("float8",)),  # REAL is a FLOAT in some sessions
    SqlType("date", ColumnKind.STRING, Form.TIME),
    SqlType("datetime", ColumnKind.STRING, Form.TIME),
    SqlType("time", ColumnKind.STRING, Form.TIME),
    SqlType("timestamp", ColumnKind.TIMESTAMP, Form.TIMESTAMP),
    SqlType("char", ColumnKind.STRING, Form.TEXT, ("character",)),
    SqlType("varchar", ColumnKind.STRING, Form.TEXT, ("varcharacter",)),
    SqlType("nchar", ColumnKind.STRING, Form.TEXT, ("nvarchar", "national"), is_national=True),
    SqlType("text", ColumnKind.STRING, Form.TEXT, ("tinytext", "mediumtext", "longtext"), is_blob=True),
    SqlType("json", ColumnKind.STRING, Form.JSON, is_blob=True),
    SqlType("enum", ColumnKind.STRING, Form.ENUM),
    SqlType("set", ColumnKind.SET, Form.SET),
    SqlType("binary", ColumnKind.BYTES, Form.PADDED),
    SqlType("varbinary", ColumnKind.BYTES, Form.BYTES),
    SqlType("blob", ColumnKind.BYTES, Form.BYTES, ("tinyblob", "mediumblob", "longblob"), is_blob=True),
    SqlType("bit", ColumnKind.BYTES, Form.BIT),
    SqlType("uuid", ColumnKind.BYTES, Form.ADDRESS, size=16),
    SqlType("inet4", ColumnKind.BYTES, Form.ADDRESS, size=4),
    SqlType("inet6", ColumnKind.BYTES, Form.ADDRESS, size=16),
    SqlType("geometry", ColumnKind.BYTES, Form.OPAQUE, (*_SHAPES, "geomcollection"), is_blob=True),
    SqlType("vector", ColumnKind.BYTES, Form.OPAQUE, is_blob=True),
)
TYPES = {name: each for each in _TYPES for name in (each.name, *each.also)}
"""The SQL types by name, in lower case."""


def detail_of(
    kind: SqlType, *, unsigned: bool = False, decimals: int = 0, bits: int = 0, members: Sequence[str] = ()
) -> str:
    """Return what the type that carries a column does not say: ``smallint unsigned``, ``datetime(3)``, ``enum(a,b)``.

    The same from a binlog, from VStream and from ``information_schema``; empty if there is nothing else to say.
    """
    match kind.form:
        case Form.INTEGER:
            return f"{kind.name} unsigned" if unsigned and kind.name != "year" else kind.name
        case Form.TIME | Form.TIMESTAMP if kind.name != "date":
            return f"{kind.name}({decimals})"
        case Form.ENUM | Form.SET:
            return f"{kind.name}({','.join(each.replace(',', chr(92) + ',') for each in members)})"
        case Form.BIT:
            return f"bit({bits})"
        case Form.OPAQUE:
            return kind.name
    return ""


_DEFINITION = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?([^()]*)", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class Defined:
    """A type in a column's definition. ``inside``: the text in its parentheses. ``attributes``: the words after it."""

    type: SqlType
    inside: str
    attributes: str

    @property
    def carried(self) -> str:
        """The column type that carries it. Raises ValueError if its digits are not numbers."""
        precision, _, scale = self.inside.partition(",") if self.type.kind is ColumnKind.DECIMAL else ("", "", "")
        unsigned = "unsigned" in self.attributes.split()
        return self.type.carried(unsigned=unsigned, precision=int(precision or 10), scale=int(scale or 0))


def named(name: str) -> SqlType:
    """Return the SQL type with this name in lower case. Raises ValueError for a type that cannot be carried."""
    if (found := TYPES.get(name)) is not None:
        return found
    raise ValueError(
        f"columns of type {name} cannot be carried: list the tables to relay in `tables`, without this one"
    )


def defined(definition: str) -> Defined:
    """Read a column type such as ``decimal(10,2) unsigned``. Raises ValueError for a type that cannot be carried."""
    match = _DEFINITION.fullmatch(definition)
    if match is None:
        raise ValueError(f"cannot read the column type {definition!r}")
    return Defined(named(match[1].lower()), match[2] or "", match[3].strip().lower())
