"""Tables as the relay sees them: key columns and row columns."""

from dataclasses import dataclass, field

WITH_DECIMALS = ("datetime", "time")
"""SQL names of column types whose texts end in fractional seconds, with as many digits as the column has."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    name: str
    type: str  # ``S``, ``N`` or ``B`` for DynamoDB, for SQL the name of a `ColumnType`
    sql: str = ""  # the SQL name of the type, if ``type`` does not imply it: see `SqlType.told`

    @property
    def has_decimals(self) -> bool:
        return self.sql in WITH_DECIMALS


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # the name of a `ColumnType`
    sql: str = ""  # as for `KeyColumn`
    # Whether drivers return its bytes as text, as they do for a UUID. A stream does not say so.
    is_address: bool = field(default=False, compare=False)
    # The rest of its SQL type, as `detail_of` writes it, for an envelope that says it.
    detail: str = field(default="", compare=False)

    @property
    def has_decimals(self) -> bool:
        return self.sql in WITH_DECIMALS


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of one table, which its changes have."""

    source: str
    table: str
    key: tuple[KeyColumn, ...]  # the full primary key, the hash key first
    hash_columns: int  # how many columns the hash key has, which chooses the partition
    row: tuple[Column, ...] | None = None  # the columns of a row image; None if it is DynamoDB-typed JSON text
    # Columns that are not published, with ``exclude``, ``mask`` or ``hash``.
    protected: tuple[tuple[str, str], ...] = ()
    details: tuple[tuple[str, str], ...] = ()  # by column, its `Column.detail`, if the envelope says it
    is_key_only: bool = False  # whether no more than the key is known, and even of that no details

    @property
    def protection(self) -> str:
        """The end of a message about the table that lists what is protected; empty if nothing is."""
        shown = ", ".join(f"{name} ({kind})" for name, kind in self.protected)
        return f"; protects {shown}" if shown else ""

    def __post_init__(self) -> None:
        if not 1 <= self.hash_columns <= len(self.key):
            raise ValueError(
                f"table {self.table}: the hash key has {self.hash_columns} of the {len(self.key)} key columns: it "
                f"needs between 1 and all of them"
            )
        for kind, columns in (("key", self.key), ("row", self.row or ())):
            names = [column.name for column in columns]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"table {self.table}: the {kind} has two columns named {twice[0]!r}")
