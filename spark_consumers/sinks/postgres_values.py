"""The kinds of the columns of a copy in PostgreSQL, and the SQL of their values and texts."""

import orjson

from relay.types.columns import TYPES, ColumnKind
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, postgres
from spark_consumers.sinks.columns import CopiedColumn, Naming
from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.postgres import Connection, execute, quoted

UNFIT = "_relay_unfit"
"""The column of the values that PostgreSQL cannot store in their own, as JSON."""

JSONB = "jsonb"
"""The kind of JSON that PostgreSQL has taken apart."""

OURS = {
    UNFIT: "json",
    "_relay_token": "text",
    "_relay_deleted": "boolean NOT NULL",
    "_relay_event_id": "text NOT NULL",
    "_relay_incomplete": "boolean NOT NULL",
    "_relay_updated_at": "timestamp with time zone NOT NULL",
    "_relay_read_as_of": "bigint NOT NULL",
    "_relay_partition": "integer",
    "_relay_topic": "text",
    "_relay_offset": "bigint",
}
_OF_EVERY_TABLE = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""The columns that PostgreSQL gives each table itself."""

# Decimals without digits are numbers.
_TYPES = {
    **{columns.NUMBER if each.kind is ColumnKind.DECIMAL else each.kind.value: each.postgres for each in TYPES},
    JSONB: "jsonb",
}
_KINDS = {sql: kind for kind, sql in reversed(_TYPES.items())}
_NUL = "\\u0000"  # as JSON writes it


def naming(json: str) -> Naming:
    """Return what PostgreSQL makes of names and kinds. ``json``: the kind that holds JSON."""
    return Naming(
        reserved=_OF_EVERY_TABLE | OURS.keys(),
        shown=postgres.identifier,
        same=str,
        kind=lambda kind: json if kind == ColumnKind.JSON else kind,
        digits=1000,
    )


def sql_type(kind: str) -> str:
    return _TYPES.get(kind) or kind.replace("decimal", "numeric")


def kind_of(sql: str) -> str:
    """Return the kind of a column by its SQL type; if the copy did not make the column, the SQL type itself."""
    return _KINDS.get(sql) or sql.replace("numeric", "decimal")


def stored_types(connection: Connection, table: str) -> dict[str, str]:
    """Return the SQL types of the columns of a table that are not ours, by name; none if there is no table.

    Raises ``TableFault`` if it is somebody else's.
    """
    rows = execute(
        connection,
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
        " ORDER BY attnum",
        [table],
    ).fetchall()
    types: dict[str, str] = dict(rows)
    if types and (lacking := [name for name in OURS if name not in types]):
        raise TableFault(
            f"the table {table} is not one of the copy, since it has no column {lacking[0]}: rename it, or keep the "
            "copy at another `copy.url`"
        )
    return {name: sql for name, sql in types.items() if name not in OURS}


def primary_key(connection: Connection, table: str) -> list[str]:
    """Return the columns of a table's primary key in their order; none if it has no primary key."""
    rows = execute(
        connection,
        "SELECT attname::text FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)"
        " WHERE indisprimary AND indrelid = to_regclass($1) ORDER BY array_position(indkey::int2[], attnum)",
        [table],
    ).fetchall()
    return [name for (name,) in rows]


def value_of(text: str, kind: str) -> str:
    """Return the SQL of a value of this kind, made of the SQL of its text as the consumers write it."""
    if kind == ColumnKind.STRING:
        return text
    if kind == ColumnKind.BYTES:
        return f"decode({text}, 'base64')"
    if kind == ColumnKind.SET:
        return f"CASE WHEN {text} IS NOT NULL THEN ARRAY(SELECT json_array_elements_text({text}::json)) END"
    return f"{text}::{sql_type(kind)}"


def text_of(value: str, kind: str) -> str:
    """Return the SQL of the text of a value."""
    if kind == ColumnKind.BYTES:
        return f"translate(encode({value}, 'base64'), E'\\n', '')"
    if kind == ColumnKind.TIMESTAMP:
        return f"""to_char({value} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
    return f"array_to_json({value})::text" if kind == ColumnKind.SET else f"{value}::text"


def from_image(column: CopiedColumn) -> str:
    """Return the SQL of a column's value in a staged row ``s``, whose image has the fields ``r``."""
    if not column.sources:
        return f"NULL::{sql_type(column.kind)}"
    # Evaluated only for those layouts: a field may have another type in others.
    cases = "".join(
        f" WHEN s.layout IN ({', '.join(map(str, numbers))}) THEN "
        + ("s.image" if name is None else f"r.{quoted(postgres.identifier(name))}")
        for name, numbers in column.layouts.items()
    )
    return value_of(f"(CASE{cases} END)", column.kind)


def fitted(image: str, layout: Layout, *, is_jsonb: bool) -> tuple[str | None, str | None]:
    """Return an image that PostgreSQL can take apart, and the JSON of the values that it cannot store (I8).

    These are texts with a NUL character. In JSON, PostgreSQL stores it, but not in jsonb.
    """
    if layout.row is None:
        if is_jsonb and _NUL in image and has_nul(orjson.loads(image)):
            return None, f'{{"{columns.ITEM}":{image}}}'
        return image, None
    shown = {field.name: postgres.identifier(field.name) for field in layout.row}
    if _NUL not in image and all(name == short for name, short in shown.items()):
        return image, None
    values = orjson.loads(image)
    in_json = {field.name for field in layout.row if is_jsonb and field.column in (ColumnKind.JSON, ColumnKind.REST)}
    unfit = {name: value for name, value in values.items() if has_nul(value, is_json=name in in_json)}
    fit = {shown.get(name, name): value for name, value in values.items() if name not in unfit}
    return orjson.dumps(fit).decode(), orjson.dumps(unfit).decode() if unfit else None


def has_nul(value: object, *, is_json: bool = False) -> bool:
    """Whether a NUL character is in a value. ``is_json``: the value is the text of JSON that may have one."""
    if isinstance(value, (dict, list, tuple)):
        return any(map(has_nul, [*value, *value.values()] if isinstance(value, dict) else value))
    if is_json and isinstance(value, str):
        return _NUL in value and has_nul(orjson.loads(value))
    return isinstance(value, str) and "\0" in value
