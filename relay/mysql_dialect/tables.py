"""The layout of a table's rows at a point of a stream: column names, column types, key."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from relay.config import MySQLConfig, VitessConfig
from relay.config.errors import did_you_mean
from relay.config.per_table import NOT_IN_KEY, Conditions
from relay.config.protection import IN_KEY, ColumnRules, in_key
from relay.errors import ConfigError, RelayError
from relay.mysql_dialect.protection import published_columns, replacements, rules_of
from relay.table import Column, KeyColumn, TableSchema
from relay.types.columns import ColumnKind, column_type
from relay.types.connect import one_name

_NUMBERS = (ColumnKind.INT, ColumnKind.LONG, ColumnKind.DECIMAL)
WITHOUT = "list the tables to relay in `tables`, without this one"

Row = Sequence[Any]  # the values of one row in the order of its table's columns, typed as in ``relay.types.sql``


class Unfit(RelayError):
    """A table cannot be relayed as it is. ``why``: follows "the table ...", with what to do; "" for several tables."""

    def __init__(self, message: str, why: str = "", *, lacks_key: bool = False) -> None:
        super().__init__(message)
        self.why = why
        self.lacks_key = lacks_key

    @classmethod
    def of(cls, source: str, table: str, why: str, *, lacks_key: bool = False) -> Self:
        return cls(f"source {source}: the table {table} {why}", why, lacks_key=lacks_key)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table:
    """One layout of one table. Equal layouts are the same object: see ``relay.mysql_dialect.layout_cache``.

    ``names``: the columns' names, in the order of a row, even of columns that ``schema.row`` lacks because they are
    excluded. ``key``: the indexes in a row of the columns of ``schema.key``. ``keyspace_id``: computes a row's, or None
    if the table's primary vindex cannot be computed. ``replaced``: by column, the function that makes the text
    published in place of a value. ``wanted``: whether a row is published, or None if all are. ``columns``, ``primary``:
    the columns and the primary key of the table at its source. ``is_strict``: whether a row that cannot be carried is
    refused when it is read.
    """

    schema: TableSchema
    names: tuple[str, ...]
    key: tuple[int, ...]
    keyspace_id: Callable[[Row], bytes | None] | None = None
    replaced: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    wanted: Callable[[Row], bool] | None = None
    columns: tuple[Column, ...] = ()
    primary: tuple[str, ...] = ()
    is_strict: bool = False

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
    """Return the layout of a table. ``key``: the columns used instead of a primary key.

    ``hash_key``: the columns that choose the partition (I2), by default the complete key; they become part of the key.
    ``rules``: the rules of protected columns, and perhaps of missing ones. ``where``: values of key columns of
    published rows. Raises `Unfit` without a usable key, ``ConfigError`` for a rule of a key column and a condition on
    another.
    """
    by_name = {column.name: column for column in columns}
    unfit = partial(Unfit.of, source, name)
    if not (wanted := list(key or primary)):
        raise unfit(
            "has no primary key: name the columns that identify a row, such as "
            f"`key: {{{name}: [{columns[0].name if columns else 'id'}]}}`, or {WITHOUT}",
            lacks_key=True,
        )
    # Without the columns of the hash key, the key would not determine the partition.
    ordered = [*hash_key, *(column for column in wanted if column not in hash_key)]
    for column in ordered:
        if column not in by_name:
            raise unfit(
                f"has no column {column!r}, although its key includes it; "
                f"{did_you_mean(column, by_name, 'its columns are ')}"
            )
        if not column_type(by_name[column].type).in_keys:
            raise unfit(
                f"has the column {column!r} of type {by_name[column].type} in its key, where that type is not "
                f"allowed: name other columns that identify a row, as `key: {{{name}: [...]}}`, or {WITHOUT}"
            )
    rules = rules_of(columns, rules)
    # Also the primary key if it is not the key of the changes: it is in the positions of copies and snapshots.
    if (protected := in_key([*ordered, *primary], rules)) is not None:
        raise ConfigError(f"source {source}: `protect.{name}.{protected}`: {IN_KEY}")
    schema = TableSchema(
        source,
        name,
        tuple(KeyColumn(column, by_name[column].type, by_name[column].sql) for column in ordered),
        hash_columns=len(hash_key) or len(ordered),
        row=published_columns(columns, rules),
        protected=tuple((column.name, rules[column.name].kind) for column in columns if column.name in rules),
    )
    at, is_wanted = tuple(map([*by_name].index, ordered)), _wanted_rows(schema, [*by_name], where)
    return Table(
        schema, tuple(by_name), at, None, replacements(columns, rules), is_wanted, tuple(columns), tuple(primary)
    )


def with_details(table: Table) -> Table:
    """Return the layout with its SQL types. Raises `Unfit` for columns that their envelope cannot tell apart."""
    schema = table.schema
    if problem := one_name([*(column.name for column in schema.key), *(each.name for each in schema.row or ())]):  # I12
        raise Unfit.of(schema.source, table.name, f"cannot be relayed: {problem}; or {WITHOUT}")
    details = tuple((column.name, column.detail) for column in table.schema.row or () if column.detail)
    return replace(table, schema=replace(table.schema, details=details))


def lay_out_by(
    config: MySQLConfig | VitessConfig,
    table: str,
    columns: Sequence[Column],
    primary: Sequence[str],
    key: Sequence[str],
    hash_key: Sequence[str] = (),
) -> Table:
    """Return the layout of a table of a source, which then owns its topic. Raises also `Unfit` if it cannot."""
    rules, where = config.rules(table), config.conditions(table)
    found = lay_out(config.name, table, columns, primary, key=key, hash_key=hash_key, rules=rules, where=where)
    if why := config.without_topic(table):
        raise Unfit.of(
            config.name, table, f"cannot be published: {why}: {WITHOUT}, or use another template in `topics`"
        )
    found = replace(found, is_strict=config.on_unencodable == "fail")  # I12
    return with_details(found) if config.is_debezium else found


def lay_out_keys(source: str, name: str, keys: Sequence[Sequence[str]], hashed: int | None) -> Table:
    """Return a table's layout from the plan's key columns, for TRUNCATE. ``hashed``: how many are, None for all."""
    columns = [Column(column, type_, "".join(sql)) for column, type_, *sql in keys]
    names = [column.name for column in columns]
    found = lay_out(source, name, columns, names, hash_key=names[:hashed])
    return replace(found, schema=replace(found.schema, is_key_only=True))


def missing_tables(named: Iterable[str], found: Iterable[TableSchema]) -> list[str]:
    there = {table.table for table in found}
    return [name for name in named if name not in there]


def _wanted_rows(table: TableSchema, names: Sequence[str], where: Conditions) -> Callable[[Sequence[Any]], bool] | None:
    """Return what says whether a row is published, or None. Raises ``ConfigError`` for an impossible condition."""
    if not where:
        return None
    key = {column.name.lower(): column for column in table.key}
    tests: list[tuple[int, Any]] = []
    for name, value in where.items():
        place = f"source {table.source}: `where.{table.table}.{name}`"
        if (column := key.get(name.lower())) is None:
            hint = did_you_mean(name, [each.name for each in table.key], "those are ")
            raise ConfigError(f"{place}: {NOT_IN_KEY}; {hint}")
        try:
            tests.append((names.index(column.name), _stored(column.type, value)))
        except (ValueError, InvalidOperation):
            raise ConfigError(f"{place}: a column of type {column.type} cannot be equal to {value!r}") from None
    return lambda row: all(row[at] == value for at, value in tests)


def _stored(kind: str, value: str | int) -> Any:
    """Return a value as a row stores it. Raises ValueError if no column of this type can have the value."""
    if kind == ColumnKind.STRING:
        return str(value)
    if column_type(kind).kind in _NUMBERS:
        return Decimal(value)  # equal to the int, and to numbers with other decimals
    raise ValueError(f"`where` cannot test columns of type {kind}")
