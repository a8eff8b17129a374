"""The layout of a table's rows at a point of a stream: column names, column types, key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from relay.config.conditions import Conditions
from relay.config.errors import did_you_mean
from relay.config.protection import IN_KEY, ColumnRules, in_key
from relay.errors import ConfigError, RelayError
from relay.mysql_dialect.conditions import wanted_rows
from relay.mysql_dialect.protection import published_columns, replacements, rules_of
from relay.table import Column, KeyColumn, TableSchema
from relay.types.columns import column_type

if TYPE_CHECKING:
    from relay.config import MySQLConfig, VitessConfig

_WITHOUT = "list the tables to relay in `tables`, without this one"

Row = Sequence[Any]
"""The values of one row in the order of its table's columns, typed as in ``relay.types.sql``."""


class Unfit(RelayError):
    """A table cannot be relayed as it is. ``why``: also what to do, after "the table ..."; "" for several of them."""

    def __init__(self, message: str, why: str = "", *, lacks_key: bool = False) -> None:
        super().__init__(message)
        self.why = why
        self.lacks_key = lacks_key

    @classmethod
    def of(cls, source: str, table: str, why: str, *, lacks_key: bool = False) -> Unfit:
        return cls(f"source {source}: the table {table} {why}", why, lacks_key=lacks_key)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table:
    """One layout of one table. Equal layouts are the same object: see ``relay.mysql_dialect.layouts``.

    ``names``: the columns' names, in the order of a row, even of columns that ``schema.row`` lacks because they are
    excluded. ``key``: the indexes in a row of the columns of ``schema.key``. ``keyspace_id``: computes a row's,
    or None if the table's primary vindex cannot be computed. ``replaced``: by column, what makes the published text of
    a value that is not published itself. ``wanted``: whether a row is published, or None if all are. ``columns``,
    ``primary``: the table's at its source.
    """

    schema: TableSchema
    names: tuple[str, ...]
    key: tuple[int, ...]
    keyspace_id: Callable[[Row], bytes | None] | None = None
    replaced: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    wanted: Callable[[Row], bool] | None = None
    columns: tuple[Column, ...] = ()
    primary: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.schema.table


def lay_out(
    source: str,
    name: str,
    columns: Sequence[Column],
    primary: Sequence[str],
    *,
    key: Sequence[str] = (),
    hash_key: Sequence[str] = (),
    rules: ColumnRules = MappingProxyType({}),
    where: Conditions = MappingProxyType({}),
) -> Table:
    """Return the layout of a table. ``primary``: the columns of its primary key, in the key's order.

    ``key``: the columns used instead of a primary key. ``hash_key``: the columns that choose the partition (I2), by
    default the complete key; they become part of the key. ``rules``: the rules of protected columns; it may name
    others. ``where``: the values of key columns that published rows have. Raises `Unfit` for a table without a usable
    key, ``ConfigError`` for a rule of a key column and a condition on another.
    """
    by_name = {column.name: column for column in columns}
    wanted = list(key or primary)
    if not wanted:
        raise Unfit.of(
            source,
            name,
            "has no primary key: name the columns that identify a row, such as "
            f"`key: {{{name}: [{columns[0].name if columns else 'id'}]}}`, or {_WITHOUT}",
            lacks_key=True,
        )
    for column in (*wanted, *hash_key):
        if column not in by_name:
            raise Unfit.of(
                source,
                name,
                f"has no column {column!r}, which its key names; {did_you_mean(column, by_name, 'its columns are ')}",
            )
    first = [column for column in hash_key if column in wanted]
    if len(first) != len(hash_key):
        # Without these columns the key would not determine the partition.
        wanted = [*wanted, *(column for column in hash_key if column not in wanted)]
        first = list(hash_key)
    ordered = [*first, *(column for column in wanted if column not in first)]
    for column in ordered:
        if not column_type(by_name[column].type).in_keys:
            raise Unfit.of(
                source,
                name,
                f"has the column {column!r} of type {by_name[column].type} in its key, which no key can have: name "
                f"other columns that identify a row, as `key: {{{name}: [...]}}`, or {_WITHOUT}",
            )
    rules = rules_of(columns, rules)
    # The primary key too, even if it is not the key of the changes: it is in the positions of copies and snapshots.
    if (protected := in_key([*ordered, *primary], rules)) is not None:
        raise ConfigError(f"source {source}: `protect.{name}.{protected}`: {IN_KEY}")
    schema = TableSchema(
        source,
        name,
        tuple(KeyColumn(column, by_name[column].type, by_name[column].sql) for column in ordered),
        hash_columns=len(first) or len(ordered),
        row=published_columns(columns, rules),
        protected=tuple((column.name, rules[column.name].kind) for column in columns if column.name in rules),
    )
    names = tuple(column.name for column in columns)
    at = tuple(names.index(column) for column in ordered)
    shown, is_wanted = replacements(columns, rules), wanted_rows(schema, names, where)
    return Table(schema, names, at, None, shown, is_wanted, tuple(columns), tuple(primary))


def require_topic(config: MySQLConfig | VitessConfig, table: str) -> None:
    """Raise `Unfit` unless a table can have its topic, which belongs to nobody else from here on."""
    if why := config.without_topic(table):
        raise Unfit.of(config.name, table, f"cannot be published: {why}: {_WITHOUT}, or give `topics` another template")


def lay_out_keys(source: str, name: str, keys: Sequence[Sequence[str]], hashed: int | None) -> Table:
    """Return the layout of a table whose key columns alone are known, as in the plan: enough for its TRUNCATE.

    ``hashed``: how many of them choose the partition; None means all.
    """
    columns = [Column(column, type_, "".join(sql)) for column, type_, *sql in keys]
    names = [column.name for column in columns]
    return lay_out(source, name, columns, names, hash_key=names[:hashed])


def missing_tables(named: Iterable[str], found: Iterable[TableSchema]) -> list[str]:
    """Return the tables that a config names and that are not among those found."""
    there = {table.table for table in found}
    return [name for name in named if name not in there]
