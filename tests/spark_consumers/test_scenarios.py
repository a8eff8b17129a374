"""The scenarios of a table of the copy, in each target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark_consumers.batches import change, layout
from tests.spark_consumers.scenarios import SCENARIOS, items_are_taken_apart
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.targets import InPostgres

pytestmark = pytest.mark.services


@pytest.fixture
def in_postgres(database_url: str) -> Iterator[InPostgres]:
    found = InPostgres(database_url)
    yield found
    found.database.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_postgres(name: str, in_postgres: InPostgres) -> None:
    SCENARIOS[name](in_postgres)


# Spark compiles the queries of these, as it does for users; that takes it half of the CPU.
OF_VALUES = {
    "values_are_exact",
    "keys_of_every_type_are_found_again",
    "a_wider_column_is_widened",
    "a_column_of_another_type_continues_beside_the_earlier_one",
}


# The rule is the same in PostgreSQL; what a lake makes of the rule is in test_newest.py too.
OF_THE_RULE = {
    "rows_are_inserted_updated_and_deleted_with_their_tokens",
    "a_column_of_another_type_continues_beside_the_earlier_one",
    "a_key_called_item_is_beside_the_items",
    "items_without_declared_columns_stay_json_when_columns_are_declared",
    "a_table_that_is_truncated_shard_by_shard_is_empty",
}
ELSEWHERE = pytest.mark.faults("the rule in PostgreSQL: test_in_postgres; a lake's statements: the other scenarios")
# Without one whose batches test_newest.py has in longer histories, and compares row by row.
OF_LAKES = [
    pytest.param(name, marks=ELSEWHERE if name in OF_THE_RULE else ())
    for name in SCENARIOS
    if not name.startswith("batches_of_any_size")
]


@pytest.mark.parametrize("name", OF_LAKES)
def test_in_delta(name: str, tmp_path: Path, spark_process: SparkProcess) -> None:
    _play(name, "delta", tmp_path, spark_process)


SAME_STATEMENTS = pytest.mark.faults(
    "the statements of both lakes have one maker: test_in_delta; values in Iceberg: here"
)
OF_ICEBERG = [
    pytest.param(name, marks=() if name in OF_VALUES - OF_THE_RULE else SAME_STATEMENTS)
    for name in SCENARIOS
    if not name.startswith("batches_of_any_size")
]


@pytest.mark.parametrize("name", OF_ICEBERG)
def test_in_iceberg(name: str, tmp_path: Path, spark_process: SparkProcess) -> None:
    _play(name, "iceberg", tmp_path, spark_process)


def _play(name: str, kind: str, tmp_path: Path, spark_process: SparkProcess) -> None:
    script = f"""
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import SCENARIOS
from tests.spark_consumers.targets import in_lake

with spark() as session:
    SCENARIOS[{name!r}](in_lake({kind!r}, session, {str(tmp_path)!r}))
"""
    spark_process.run(script, compiled=name in OF_VALUES)


def test_items_are_taken_apart_in_postgres(database_url: str) -> None:
    table, of_text = InPostgres(database_url, "variant"), InPostgres(database_url)
    items_are_taken_apart(table, of_text)
    with_nul = {"id": {"S": "e"}, "note": {"S": "a\0b"}}
    typed = layout({"id": "string"}, {"id": "string", "more": "json"})
    image = {"id": "f", "more": '{"S":"a\\u0000b"}'}
    items = {0: layout({"id": "string"}, None), 1: typed}
    table.play(items, change(9, ["e"], with_nul), change(10, ["f"], image, layout=1))
    stored = [tuple(map(json.loads, filter(None, row))) for row in table.rows("item", "more", "_relay_unfit")]
    assert stored.count(({"item": with_nul},)) == stored.count(({"more": '{"S":"a\\u0000b"}'},)) == 1
    for each in (table, of_text):
        each.database.close()


def test_items_are_taken_apart_in_delta(tmp_path: Path, spark_process: SparkProcess) -> None:
    spark_process.run(VARIANT.replace("FOLDER", repr(str(tmp_path))), compiled=True)


def test_a_text_of_any_length_is_kept_in_delta(tmp_path: Path, spark_process: SparkProcess) -> None:
    """I8: by default Spark makes null of an object with a text of more than 20 million characters."""
    spark_process.run(LONG.replace("FOLDER", repr(str(tmp_path))), compiled=True)


LONG = """
from pyspark.sql import functions as F
from tests.spark_consumers.local_spark import spark
from spark_consumers.copy import TableCopies
from spark_consumers.table_consumer import TableBatch
from tests.spark_consumers.batches import FOREVER, in_spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InDelta

SIZE = 20_000_001
with spark() as session:
    table = InDelta(session, FOLDER)
    image = F.expr(f"concat('{{\\"id\\":1,\\"note\\":\\"', repeat('x', {SIZE}), '\\"}}')")
    batch = in_spark(session, [order(1, 1, "short")]).withColumn("new", image)
    plan = TableCopies(lambda source, name: table.table, FOREVER).plan(TableBatch(batch, [ORDERS], {}, {}))
    plan.write([])
    plan.close()
    assert table.rows("id", "note") == [(1, "x" * SIZE)]
"""

VARIANT = """
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import items_are_taken_apart
from tests.spark_consumers.targets import InDelta

with spark() as session:
    table = InDelta(session, FOLDER, items="variant")
    items_are_taken_apart(table, InDelta(session, FOLDER))
    total = "variant_get(item, '$.total.N', 'string')"
    found = session.sql(f"SELECT {total} FROM delta.`{table.path}` WHERE id = 'a'").collect()
    assert found[0][0] == "1E+100", found
"""

OTHER_FORMAT = """
import pytest
from tests.spark_consumers.local_spark import spark
from relay.errors import RelayError
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InDelta

with spark() as session:
    cases = ("a", "", "'relay.format' = '2'"), ("b", "/_relay_rows", "'relay.format' = '1'"), ("c", "", "'other' = '1'")
    for name, place, properties in cases:
        table = InDelta(session, FOLDER + "/" + name)
        session.sql(f"CREATE TABLE delta.`{table.path}{place}` (id string) USING DELTA TBLPROPERTIES ({properties})")
        with pytest.raises(RelayError, match="is not a copy that this version can continue.*another `copy.url`"):
            table.play(ORDERS, order(1, 1, "a"))
"""


def test_a_table_in_another_format_is_refused(tmp_path: Path, spark_process: SparkProcess) -> None:
    """I7: also one that is not a copy."""
    spark_process.run(OTHER_FORMAT.replace("FOLDER", repr(str(tmp_path))))
