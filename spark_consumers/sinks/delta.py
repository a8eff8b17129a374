"""Delta tables by path: the SQL to name them, to type them and to merge into them, and times in it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import orjson
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from relay.errors import ConfigError
from relay.types.columns import TYPES, ColumnKind
from spark_consumers.causes import cause, is_refused, sql_state
from spark_consumers.sinks.columns import AS_TEXT
from spark_consumers.sinks.faults import RowFault, TableFault
from spark_consumers.spark_internals import text_frame

TIMES = {"date": "date", "datetime": "timestamp_ntz"}
"""The types of what SQL calls so. Delta has none for a time without a date."""

# Spark has decimals under the same names.
_TYPES = {each.kind.value: each.spark for each in TYPES if each.kind is not ColumnKind.DECIMAL}
_TYPES |= {**TIMES, **dict.fromkeys((f"{kind}{AS_TEXT}" for kind in TIMES), "string")}
_KINDS = {sql: kind for kind, sql in reversed(_TYPES.items())}

_DAY = 86_400_000_000  # microseconds
_ABSENT = (
    *("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND"),
    "DELTA_INVALID_PARTITION_PATH",  # for a folder inside another table's folder
)

MISFIT = "a value of type"
"""Begins the error of `value_of` about a value."""

# By the SQLSTATE, or its first two characters: Kafka's records are gone, other writers, no resources, a file system,
# an executor that is gone with its blocks, a cancelled call, what cannot be read now, the table has just changed, an
# error inside Spark, and what we raise.
_TRIED_AGAIN = frozenset({"", "08", "22000", "25", "2D", "40", "42KD5", "53", "56000", "58", "HY", "KD", "P0", "XX"})
_OF_ROWS = frozenset({"22", "23", "44"})


def quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def refuse_replaced(session: SparkSession, names: Iterable[str]) -> None:
    """Raise ``ConfigError`` for a name of which Spark would replace a part in SQL, by its settings (I8)."""
    replaced = next((name for name in names if "${" in name), None)
    if replaced is not None and session.conf.get("spark.sql.variable.substitute") != "false":
        raise ConfigError(
            f"Spark would take a part of the name {replaced} for a variable: use a session with "
            "spark.sql.variable.substitute=false"
        )


def sql_type(kind: str) -> str:
    return _TYPES.get(kind, kind)


def kind_of(found: DataType) -> str:
    """Return the kind of a column by its type, or the type's name if the copy did not create the column."""
    sql = found.simpleString()
    return _KINDS.get(sql, sql)


def literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    # Spark replaces ${...} by its settings, in literals, too.
    escaped = escaped.replace("$", "\\u0024")
    return f"'{escaped}'"


def table(path: str) -> str:
    return f"delta.{quoted(path)}"


def schema_of(session: SparkSession, name: str, absent: Collection[str] = _ABSENT) -> StructType | None:
    """Return the columns of a table by its SQL name, or None for an error in ``absent``: it is not there."""
    try:
        return session.table(name).schema
    except AnalysisException as error:
        if error.getCondition() not in absent:
            raise
        return None


def properties_of(session: SparkSession, name: str) -> dict[str, str]:
    # SHOW TBLPROPERTIES hides values that look like secrets to Spark, such as one that names a table `tokens`.
    (row,) = session.sql(f"DESCRIBE DETAIL {name}").collect()
    return dict(row["properties"])


def assigned(properties: Mapping[str, str]) -> str:
    """Return table properties as SQL lists them."""
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())


def without_dictionaries(columns: Iterable[str]) -> dict[str, str]:
    """Return properties of a table for columns whose values differ: to look each up takes a quarter of a write."""
    return {f"parquet.enable.dictionary#{name}": "false" for name in columns}


def local_frame(session: SparkSession, rows: Iterable[Sequence[object]], columns: Mapping[str, str]) -> DataFrame:
    """Return rows of plain values as a frame. ``columns``: SQL types by name.

    Spark knows its size, and needs no Python worker to read it, as it does to read what ``createDataFrame`` returns.
    """
    lines = b"\n".join(orjson.dumps(dict(zip(columns, row, strict=True))) for row in rows)
    typed = ", ".join(f"{name} {sql}" for name, sql in columns.items())
    return text_frame(session, lines).select(F.from_json("value", typed).alias("row")).select("row.*")


def utc_day(time: Column) -> Column:
    """Return the date in UTC of a timestamp, whatever the time zone of the session is."""
    of_epoch = F.unix_micros(time)
    days = _quotient(of_epoch - F.pmod(of_epoch, F.lit(_DAY)), _DAY)
    return F.date_add(F.lit("1970-01-01").cast("date"), days.cast("int"))


def iso_utc(time: Column) -> Column:
    """Return a timestamp as ISO text in UTC, whatever the time zone of the session is."""
    of_day = F.pmod(F.unix_micros(time), F.lit(_DAY))
    seconds = _quotient(of_day, 1_000_000)
    parts = [_quotient(seconds, 3600), _quotient(seconds, 60) % 60, seconds % 60, of_day % 1_000_000]
    return F.concat(utc_day(time).cast("string"), F.format_string("T%02d:%02d:%02d.%06dZ", *parts))


def _quotient(number: Column, by: int) -> Column:
    return F.call_function("div", number, F.lit(by).cast("bigint"))


@contextmanager
def faults(*, writes_rows: bool = False) -> Iterator[None]:
    """Raise ``TableFault``, or ``RowFault`` if this ``writes_rows``, for errors that another attempt would meet."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        state = sql_state(error)
        kinds, is_misfit = {state, state[:2]}, state == "P0001" and MISFIT in str(error)
        if kinds & _TRIED_AGAIN and not is_misfit and not is_refused(error):  # I12
            raise
        raise (RowFault if writes_rows and (is_misfit or kinds & _OF_ROWS) else TableFault)(cause(error)) from error


def merge(session: SparkSession, statement: str) -> tuple[int, int]:
    """Run a MERGE; return how many rows it changed or inserted, and how many of them it inserted.

    Raises ``RowFault`` and ``TableFault``.
    """
    with faults(writes_rows=True):
        row = session.sql(statement).collect()[0]
    return row["num_affected_rows"], row["num_inserted_rows"]
