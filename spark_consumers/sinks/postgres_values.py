"""The kinds of the columns of a copy in PostgreSQL, and the SQL of their values and texts."""

from collections.abc import Mapping, Sequence

import orjson

from relay.types.columns import TYPES, ColumnKind
from spark_consumers.records import Layout
from spark_consumers.sinks import columns, postgres
from spark_consumers.sinks.columns import AS_TEXT, UNFIT, CopiedColumn, Naming
from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.postgres import Connection, execute, quoted

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

TIMES = {"date": "date", "datetime": "timestamp without time zone", "time": "time without time zone"}
"""The types of what SQL calls so. In a key they are texts: rows may differ in what no such type holds."""

_LONGEST = {"date": 10, "datetime": 26, "time": 17}

# Decimals without digits are numbers.
_TYPES = {
    **{columns.NUMBER if each.kind is ColumnKind.DECIMAL else each.kind.value: each.postgres for each in TYPES},
    JSONB: "jsonb",
    **TIMES,
    **{f"{kind}{AS_TEXT}": f"character varying({length})" for kind, length in _LONGEST.items()},
}
_KINDS = {sql: kind for kind, sql in reversed(_TYPES.items())}
_NUL = "\\u0000"  # as JSON writes it


def naming(json: str) -> Naming:
    """Return how PostgreSQL treats names and kinds. ``json``: the kind that holds JSON."""
    return Naming(
        reserved=_OF_EVERY_TABLE | OURS.keys(),
        shown=postgres.identifier,
        same=str,
        kind=lambda kind: json if kind == ColumnKind.JSON else kind,
        digits=1000,
        times=TIMES,
    )


def sql_type(kind: str) -> str:
    return _TYPES.get(kind) or kind.replace("decimal", "numeric")


def kind_of(sql: str) -> str:
    """Return the kind of a column by its SQL type; if the copy did not create the column, the SQL type itself."""
    return _KINDS.get(sql) or sql.replace("numeric", "decimal")


def stored_types(connection: Connection, table: str) -> dict[str, str]:
    """Return the SQL types of the source's columns by name; none without a table. Raises ``TableFault`` if not ours."""
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
            f"the table {table} does not belong to the copy, since it has no column {lacking[0]}: rename it, or keep "
            "the copy at another `copy.url`"
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
    """Return the SQL of a value of this kind, built from the SQL of its text as the consumers write it."""
    if kind == ColumnKind.STRING or kind.endswith(AS_TEXT):
        return text
    if kind in TIMES:
        return f"CASE WHEN {fits(text, kind)} THEN {_made(text, kind)} END"
    if kind == ColumnKind.BYTES:
        return f"decode({text}, 'base64')"
    if kind == ColumnKind.SET:
        return f"CASE WHEN {text} IS NOT NULL THEN ARRAY(SELECT json_array_elements_text({text}::json)) END"
    return f"{text}::{sql_type(kind)}"


def shown(name: str, kind: str) -> str:
    """Return the SQL of the value that a column has at the source."""
    time = kind.removesuffix(AS_TEXT)
    return quoted(name) if time == kind else value_of(quoted(name), time)


def fits(text: str, kind: str) -> str:
    """Return the condition that the type of a time holds its text, as SQL prints it. Others would be wrong, or no time.

    Without a pattern, which would take ten times as long.
    """
    if kind == ColumnKind.TIMESTAMP:
        return f"{text} <> {_ZERO}"
    if kind == "time":
        return f"({text} LIKE '__:%' AND {text} < '24')"
    last = f"make_date({_part(text, 1, 4)}, {_part(text, 6, 2)}, 1) + interval '1 month -1 day'"
    return (
        f"CASE WHEN {text} LIKE '0000%' OR {text} LIKE '%-00%' THEN false WHEN substr({text}, 9, 2) < '29' THEN true"
        f" ELSE {_part(text, 9, 2)} <= extract(day FROM {last}) END"
    )


_ZERO = "'1970-01-01T00:00:00.000000Z'"
"""The zero TIMESTAMP: no other SQL TIMESTAMP has this text."""


def _part(text: str, at: int, length: int) -> str:
    return f"substr({text}, {at}, {length})::integer"


def _made(text: str, kind: str) -> str:
    """Return SQL as `value_of` does, which no setting of a session changes, so that it can be in an index."""
    date = f"make_date({_part(text, 1, 4)}, {_part(text, 6, 2)}, {_part(text, 9, 2)})"
    at = 12 if kind == "datetime" else 1
    seconds = f"substr({text}, {at + 6})::double precision"
    time = f"make_time({_part(text, at, 2)}, {_part(text, at + 3, 2)}, {seconds})"
    return {"date": date, "time": time, "datetime": f"{date} + {time}"}[kind]


def text_of(value: str, kind: str) -> str:
    if kind == ColumnKind.BYTES:
        return f"translate(encode({value}, 'base64'), E'\\n', '')"
    if kind == ColumnKind.TIMESTAMP:
        return f"""to_char({value} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
    if kind in ("date", "datetime"):  # whatever the DateStyle is
        return f"to_char({value}, 'YYYY-MM-DD{' HH24:MI:SS.US' if kind == 'datetime' else ''}')"
    return f"array_to_json({value})::text" if kind == ColumnKind.SET else f"{value}::text"


def row_of(row: Sequence[CopiedColumn], layouts: Mapping[int, Layout], unfit: str) -> dict[str, str]:
    """Return, by column, the SQL of what a staged row ``s`` sets, whose image has the fields ``r``.

    ``layouts``: layouts by number. ``unfit``: the SQL of JSON as `fitted` returns it; the times that do not fit join
    it.
    """
    stamps = {field.name for each in layouts.values() for field in each.row or () if field.sql == "timestamp"}
    found, misfits = {}, []
    for column in row:
        # Evaluated only for those layouts: a field may have a different type in others.
        texts = {
            name: f"CASE WHEN s.layout IN ({', '.join(map(str, numbers))}) THEN "
            + ("s.image END" if name is None else f"r.{quoted(postgres.identifier(name))} END")
            for name, numbers in column.layouts.items()
        }
        text = f"coalesce({', '.join(texts.values())})"
        value = value_of(text, column.kind) if texts else f"NULL::{sql_type(column.kind)}"
        is_stamp = column.kind == ColumnKind.TIMESTAMP and not stamps.isdisjoint(texts)
        if texts and (is_stamp or column.kind in TIMES):
            misfits += [
                (str(name), f"CASE WHEN NOT {fits(each, column.kind)} THEN {each} END") for name, each in texts.items()
            ]
            value = f"CASE WHEN {fits(text, column.kind)} THEN {value} END" if is_stamp else value
        found[quoted(column.name)] = value
    return {**found, UNFIT: f"({_joined(unfit, misfits)})::json"}  # I8


def _joined(unfit: str, misfits: Sequence[tuple[str, str]]) -> str:
    """Return SQL that adds to the JSON of ``unfit`` the texts that are not null."""
    if not misfits:
        return unfit
    names, texts = (
        ", ".join(each) for each in zip(*((postgres.literal(name), text) for name, text in misfits), strict=True)
    )
    found = f"json_strip_nulls(json_object(ARRAY[{names}], ARRAY[{texts}]))::text"
    found = f"CASE WHEN coalesce({texts}) IS NOT NULL THEN {found} END"
    both = f"left({unfit}, -1) || coalesce(',' || substr({found}, 2), '}}')"
    return f"CASE WHEN {unfit} IS NULL THEN {found} ELSE {both} END"


def fitted(image: str, layout: Layout) -> tuple[str | None, str | None]:
    """Return an image that PostgreSQL can take apart, and the JSON of the values that it cannot store (I8).

    These are texts with a NUL character: no function reads JSON that has one.
    """
    if layout.row is None:
        if _NUL in image and has_nul(orjson.loads(image)):
            return None, f'{{"{columns.ITEM}":{image}}}'
        return image, None
    shown = {field.name: postgres.identifier(field.name) for field in layout.row}
    if _NUL not in image and all(name == short for name, short in shown.items()):
        return image, None
    values = orjson.loads(image)
    in_json = {field.name for field in layout.row if {field.column, field.sql} & {ColumnKind.JSON, ColumnKind.REST}}
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
