"""The kinds of records on a topic of changes, and the layout of the table whose change one carries. No Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from relay.avro.schema import source_name, unescape
from relay.types.columns import REST


class DecodeStatus(StrEnum):
    """The result of decoding a record. The driver handles all of these one by one, except CHANGE and TOMBSTONE."""

    CHANGE = "change"
    TOMBSTONE = "tombstone"  # a null value for Kafka's log compaction; the DELETE before it says the same
    GAP = "gap"  # a record of the relay's gaps topic
    STATEMENT = "statement"  # a record of the relay's topic of statements
    FRAMING = "framing"  # starts with no known framing: dead letter
    SCHEMA = "schema"  # names a schema that is not known yet: retry
    FOREIGN = "foreign"  # names a schema that did not appear in time: dead letter
    DAMAGED = "damaged"  # does not match its schema: dead letter
    REFUSED = "refused"  # a change whose row the table refuses: dead letter


@dataclass(frozen=True, slots=True)
class RecordField:
    """A field of a key or row record: its Avro name, its name at the source, its Avro type and its column type.

    ``column``: ``N`` for a numeric DynamoDB key column, otherwise None. ``sql``: see `KeyColumn`; may be empty.
    """

    avro: str
    name: str
    type: Any
    column: str | None = None
    has_decimals: bool = False
    sql: str = ""

    @property
    def kind(self) -> str:
        """The column type; for DynamoDB's other key columns, the type of their Avro values."""
        return self.column or ("bytes" if self.type == "bytes" else "string")

    @property
    def is_padded(self) -> bool:
        """Whether equal values have texts of different lengths: DECIMAL(5,2) has ``1.50``, DECIMAL(6,3) ``1.500``."""
        return self.has_decimals or self.kind.startswith("decimal")


@dataclass(frozen=True, slots=True)
class Layout:
    """The table of one writer schema. ``row``: None if images are DynamoDB-typed JSON."""

    source: str
    table: str
    key: tuple[RecordField, ...]
    row: tuple[RecordField, ...] | None

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self:
        types = {field["name"]: field["type"] for field in schema["fields"]}
        key, row = types["key"][1], types["old"][1]
        _, source, table = key["namespace"].split(".")
        return cls(unescape(source), unescape(table), _fields(key), None if row == "string" else _fields(row))

    @property
    def has_key_only(self) -> bool:
        """Whether it has no column outside the key, like the layout for the TRUNCATE of a dropped table."""
        return self.row is not None and len(self.row) == len(self.key)

    @property
    def columns(self) -> frozenset[str] | None:
        """All columns of the table, or None if its items may have any."""
        if self.row is None or self.rest is not None:
            return None
        return frozenset(field.name for field in (*self.key, *self.row))

    @property
    def rest(self) -> RecordField | None:
        """The field of a typed DynamoDB row that holds the undeclared attributes as JSON."""
        return next((field for field in self.row or () if field.column == REST), None)


def _fields(record: Mapping[str, Any]) -> tuple[RecordField, ...]:
    def bare(kind: Any) -> Any:
        return next(each for each in kind if each != "null") if isinstance(kind, list) else kind

    return tuple(
        RecordField(
            f["name"],
            source_name(f),
            bare(f["type"]),
            f.get("relay.type") or f.get("dynamodb"),
            has_decimals=f.get("decimals", False),
            sql=f.get("relay.sql", ""),
        )
        for f in record["fields"]
    )
