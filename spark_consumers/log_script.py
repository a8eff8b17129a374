"""Prints the statements that query the change log, for Spark 4 and DuckDB: ``python -m spark_consumers.log_script``."""

import sys
from pathlib import Path
from typing import Literal

from spark_consumers.fold import READ_WITHIN

_TEMPLATE = Path(__file__).parent / "sql" / "log.sql"

# By the word in the template: what Spark has there, and what DuckDB has.
_WORDS = {
    "engine": ("Spark 4", "DuckDB"),
    "view": (
        "CREATE TEMPORARY VIEW relay_log AS SELECT * FROM delta.`file:///var/lib/relay/log`",
        "CREATE VIEW relay_log AS SELECT * FROM delta_scan('file:///var/lib/relay/log')",
    ),
    "moment": ("TIMESTAMP. End each statement at its semicolon", "TIMESTAMPTZ"),
    "function": ("TEMPORARY FUNCTION", "MACRO"),
    "text": (" STRING", ""),
    "seconds": (" DOUBLE", ""),
    "time": (" TIMESTAMP", ""),
    "as": ("RETURNS TABLE RETURN", "AS TABLE"),
    "offset": ("offset", '"offset"'),
    "table": ("`table`", '"table"'),
    "key": ("to_json(from_json(key, 'map<string,string>'))", """from_json(key, '"MAP(VARCHAR, VARCHAR)"')"""),
    "of_key": ("to_json(from_json(of_key, 'map<string,string>'))", """from_json(of_key, '"MAP(VARCHAR, VARCHAR)"')"""),
    "since": ("timestamp_seconds(since)", "to_timestamp(since)"),
    "until": ("timestamp_seconds(until)", "to_timestamp(until)"),
    "starts": (
        "array_sort(collect_set(inner_start))",
        "list_sort(list(DISTINCT inner_start) FILTER (inner_start IS NOT NULL))",
    ),
    "ends": (
        "array_sort(collect_set(inner_end))",
        "list_sort(list(DISTINCT inner_end) FILTER (inner_end IS NOT NULL))",
    ),
}


def script(engine: Literal["spark", "duckdb"]) -> str:
    """Return the statements for an engine, each with a semicolon at its end."""
    words = {word: in_spark if engine == "spark" else in_duckdb for word, (in_spark, in_duckdb) in _WORDS.items()}
    return _TEMPLATE.read_text(encoding="utf-8").format(**words, read_within=READ_WITHIN)


if __name__ == "__main__":
    if sys.argv[1:] not in (["spark"], ["duckdb"]):
        sys.exit("usage: python -m spark_consumers.log_script spark|duckdb")
    print(script("spark" if sys.argv[1] == "spark" else "duckdb"), end="")
