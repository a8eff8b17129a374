"""The scenarios of a table of the copy, in each target."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_consumers.fold import VerdictCounts
from spark_consumers.sinks.delta_table import DeltaTable
from spark_consumers.sinks.postgres import PostgresDatabase, quoted
from spark_consumers.sinks.postgres_table import PostgresTable
from tests.spark_consumers.batches import Published, play
from tests.spark_consumers.scenarios import SCENARIOS, comparable
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


class InPostgres:
    def __init__(self, url: str) -> None:
        self.database = PostgresDatabase(url)
        self.table = PostgresTable(self.database, "shop", "orders")

    def play(self, layouts: Any, *changes: Published) -> VerdictCounts:
        return play(self.table, layouts, *changes)

    def rows(self, *columns: str, deleted: bool = False) -> list[tuple[Any, ...]]:
        statement = f"SELECT {', '.join(map(quoted, columns))} FROM shop.orders WHERE {deleted} OR NOT _relay_deleted"
        with self.database.transaction() as connection:
            found = connection.execute(f"{statement} ORDER BY 1".encode()).fetchall()
        return [tuple(map(comparable, row)) for row in found]


class InDelta:
    def __init__(self, session: SparkSession, folder: str) -> None:
        self.session, self.path = session, f"{folder}/shop/orders"
        self.table = DeltaTable(folder, "shop", "orders")

    def play(self, layouts: Any, *changes: Published) -> VerdictCounts:
        return play(self.table, layouts, *changes, session=self.session)

    def rows(self, *columns: str, deleted: bool = False) -> list[tuple[Any, ...]]:
        found = self.session.read.format("delta").load(self.path)
        found = found if deleted else found.where("NOT _relay_deleted")
        kinds = dict(found.dtypes)
        # As text, since Python has no time of the year 1 in a zone west of Greenwich.
        named = [f"CAST(`{name}` AS STRING)" if kinds[name] == "timestamp" else f"`{name}`" for name in columns]
        rows = found.selectExpr(*named).orderBy(F.expr(named[0])).collect()
        times = [kinds[name] == "timestamp" for name in columns]
        return [tuple(map(_value, row, times)) for row in rows]


def _value(value: Any, is_time: bool) -> Any:
    return datetime.fromisoformat(f"{value}+00:00") if is_time and value is not None else comparable(value)


@pytest.fixture
def in_postgres(database_url: str) -> Iterator[InPostgres]:
    found = InPostgres(database_url)
    yield found
    found.database.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_postgres(name: str, in_postgres: InPostgres) -> None:
    SCENARIOS[name](in_postgres)


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_delta(name: str, tmp_path: Path, spark_process: SparkProcess) -> None:
    script = f"""
from relay.demo.tables import spark
from tests.spark_consumers.scenarios import SCENARIOS
from tests.spark_consumers.test_scenarios import InDelta

with spark() as session:
    SCENARIOS[{name!r}](InDelta(session, {str(tmp_path)!r}))
"""
    spark_process.run(script)


EARLIER = """
import pytest
from relay.demo.tables import spark
from relay.errors import RelayError
from tests.spark_consumers.batches import change, layout
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.test_scenarios import InDelta

columns = "item string, _relay_token string, _relay_deleted boolean, _relay_event_id string, _relay_incomplete boolean"
columns += ", _relay_updated_at timestamp, _relay_read_as_of long, _relay_partition int"
with spark() as session:
    table = InDelta(session, FOLDER)
    session.sql(f"CREATE TABLE delta.`{table.path}` (id string, {columns}) USING DELTA")
    row = "'a', '{}', null, false, 'e', false, current_timestamp(), 0, 0"
    session.sql(f"INSERT INTO delta.`{table.path}` VALUES ({row})")
    with pytest.raises(RelayError, match="an earlier version made this copy.*another `copy.url`"):
        table.play(ORDERS, order(1, 1, "a"))
    table.play(layout({"id": "string"}, None), change(2, ["b"], {"id": {"S": "b"}}))
    assert table.rows("id", "item") == [("a", "{}"), ("b", '{"id": {"S": "b"}}')]
"""


def test_a_copy_of_an_earlier_version_is_continued_as_json_and_else_refused(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    spark_process.run(EARLIER.replace("FOLDER", repr(str(tmp_path))))
