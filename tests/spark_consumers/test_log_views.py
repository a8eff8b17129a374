"""The log is read with SQL: in Spark, in a session that has nothing of ours, in DuckDB, and by delta-rs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable, QueryBuilder

from relay.jvm.connectors import installed_connectors
from relay.jvm.jars import fetched
from relay.jvm.java import find_java
from spark_consumers import log_script
from tests.snippets import changed, play, programs
from tests.spark_consumers.logged import AT_THE_END, START, TABLES
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services

LOG_AND_ASK = """
import json, pathlib, sys
import spark_consumers
from relay.config import Config, LogConfig
from tests.spark_consumers.local_spark import spark
from spark_consumers.sinks.places import log_target
from tests.spark_consumers.logged import TABLES

path, questions = sys.argv[1], json.loads(sys.argv[2])
config = Config.model_construct(log=LogConfig(path=path))
with spark() as session:
    log_target(config, config.log).open().create(session)
    schema = session.read.format("delta").load(path).schema
    rows = [[row.get(name) for name in schema.names] for table in TABLES for row in table.log]
    session.createDataFrame(rows, schema).coalesce(1).write.format("delta").mode("append").save(path)
    mine = session.newSession()
    mine.conf.set("spark.sql.session.timeZone", "America/New_York")
    mine.conf.set("spark.sql.ansi.enabled", "false")
    spark_consumers.log_views(mine, config)
    answers = [[list(row) for row in mine.sql(each).collect()] for each in questions]
json.dump(answers, sys.stdout)
"""
PLAIN = """
import json, re, sys
from pyspark.sql import SparkSession

log, statements, question, jars = sys.argv[1:]
session = (
    SparkSession.builder.master("local[1]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog").getOrCreate()
)
session.sql(f"CREATE TEMPORARY VIEW relay_log AS SELECT * FROM delta.`{log}`")
for statement in re.sub("(?m)^ *--.*", "", open(statements).read()).split(";")[:-1]:
    session.sql(statement)
assert not any(name.startswith(("relay", "spark_consumers")) for name in sys.modules)
print(json.dumps([session.table("relay_log").count(), [list(row) for row in session.sql(question).collect()]]))
session.stop()
"""


def as_of(table: str, seconds: float, kind: str = "TIMESTAMP") -> str:
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ")
    return f"SELECT key, new, incomplete FROM relay_as_of('{table}', {kind} '{moment}')"


def rows_in(answer: Sequence[Sequence[Any]]) -> Mapping[str, tuple[str, bool]]:
    return {key: (json.loads(new)["value"], incomplete) for key, new, incomplete in answer}


HISTORY = """SELECT number, event_id, operation FROM relay_history('special', '{"id":1}') ORDER BY number"""
BETWEEN = f"SELECT event_id FROM relay_between({START + 10}, {START + 20}) ORDER BY source, event_id"


def test_the_log_is_read_with_sql_in_spark_and_duckdb(tmp_path: Path, spark_of_delta: SparkProcess) -> None:
    """I7: a table as of a time has the rows that it had, whatever came twice, late, or without an image."""
    path = tmp_path / "log"
    moments = [(table.name, *moment) for table in TABLES for moment in table.moments[::7]]
    questions = [as_of("special", START + 99), HISTORY, BETWEEN]
    few = moments[:: len(moments) // 5]
    script = json.dumps([*questions, *(as_of(name, at) for name, at, _ in few)])
    in_spark = json.loads(spark_of_delta.run(LOG_AND_ASK, str(path), script, compiled=True))

    # A Spark that has the jars of Delta and nothing of ours.
    delta = ",".join(str(jar) for jar in fetched(installed_connectors().spark) if jar.name.startswith("delta-"))
    arguments = [str(path), str(tmp_path / "log.sql"), questions[0], delta]
    (tmp_path / "log.sql").write_text(log_script.script("spark"))
    environment = {**os.environ, "JAVA_HOME": str(find_java().resolve().parent.parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", PLAIN, *arguments]
    plain = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=600)
    count, answer = json.loads(plain.stdout.splitlines()[-1])
    assert count == sum(len(table.log) for table in TABLES)
    assert rows_in(answer) == AT_THE_END

    # As a user has it who cannot install DuckDB's extension `delta`.
    log = DeltaTable(path)
    connection = duckdb.connect()
    connection.execute(f"CREATE VIEW relay_log AS FROM read_parquet({log.file_uris()!r}, hive_partitioning = true)")
    connection.execute(log_script.script("duckdb"))
    for_spark, for_duckdb = programs("deploy/docs/how_to/log.md")
    (tmp_path / "log.sql").write_text(log_script.script("duckdb"))
    play(for_duckdb, {"/var/lib/relay/log": str(path), "log.sql": str(tmp_path / "log.sql")})
    source = {"name": "shop", "type": "dynamodb", "table": "orders", "region": "us-east-1"}
    content = {"name": "shop", "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "sources": [source]}
    (tmp_path / "relay.yaml").write_text(json.dumps(content | {"log": {"path": path.as_uri()}}))
    spark_of_delta.run(changed(for_spark, {"relay.yaml": str(tmp_path / "relay.yaml")}), compiled=True)
    questions[0] = as_of("special", START + 99, "TIMESTAMPTZ")
    in_duckdb = [connection.execute(each).fetchall() for each in questions]

    committed = [
        row["event_id"]
        for table in TABLES
        for row in table.log
        if START + 10 <= row["committed_at"].timestamp() < START + 20 and row["operation"] != "READ"
    ]
    for special, history, between in (in_spark[:3], in_duckdb):
        assert rows_in(special) == AT_THE_END
        assert [tuple(each) for each in history] == [
            (1, "e10", "INSERT"),
            (2, "e11", "UPDATE"),
            (3, "e16", "UPDATE"),
            (4, "e15", "UPDATE"),
        ]
        assert sorted(event_id for (event_id,) in between) == sorted(committed)
    for (_, _, wanted), answer in zip(few, in_spark[3:], strict=True):
        assert rows_in(answer) == wanted
    for name, at, wanted in moments:
        assert rows_in(connection.execute(as_of(name, at, "TIMESTAMPTZ")).fetchall()) == wanted, (name, at)
    types = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE relay_log)").fetchall())
    assert types["committed_at"] == "TIMESTAMP WITH TIME ZONE"
    connection.close()


WITH_ICEBERG = """
import json, sys
from datetime import date, datetime
from pathlib import Path
from relay.config import Config, LogConfig, SparkConfig
from relay.errors import ConfigError
from spark_consumers import log_views
from spark_consumers.kept_rows import kept_rows
from spark_consumers.session import delta_session
from spark_consumers.sinks.places import log_target
from tests.spark_consumers.batches import layout
from tests.spark_consumers.iceberg_catalog import settings

spark = SparkConfig(conf={**settings(Path(sys.argv[1])), "spark.sql.shuffle.partitions": "3"})
config = Config.model_construct(log=LogConfig(path=f"{sys.argv[1]}/log"), spark=spark)
with delta_session(spark) as session:
    log_target(config, config.log).open().create(session)
    try:
        log_views(session, config)
    except ConfigError as error:
        print(error)
    inside = Config.model_construct(log=LogConfig(path="iceberg://lake/audit"), spark=spark, copy_=None)
    log = log_target(inside, inside.log).open()
    log.create(session)
    row = {
        "source": "shop", "table": "orders", "event_id": "e", "operation": "INSERT", "key": '{"id":1}',
        "new": '{"id":1}', "token_timestamp": 1, "committed_at": datetime(2026, 11, 21), "day": date(2026, 11, 21),
    }
    schema = session.table(log.name).schema
    session.createDataFrame([[row.get(name) for name in schema.names]], schema).writeTo(log.name).append()
for each in (config, inside):
    with kept_rows(each, "log") as opened:
        assert opened.args[0].args[0].conf.get("spark.sql.shuffle.partitions") == "3"
        print([row.key for row in opened(layout({"id": "long"}, {"id": "long"}), ["id"]).all()])
"""


@pytest.mark.faults("the functions in Delta: here; a log in Iceberg: test_iceberg_log.py")
def test_a_log_beside_a_copy_in_iceberg_or_itself_there_is_verified_and_has_its_functions_in_another_session(
    tmp_path: Path,
) -> None:
    """Iceberg's extension takes the parameters of functions from Spark's SQL."""
    command = [sys.executable, "-c", WITH_ICEBERG, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    refused, *rows = ran.stdout.splitlines()
    assert "without org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions in spark.sql" in refused
    assert rows == ["[]", "[(1,)]"]


COPY = """
import sys
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InDelta

with spark() as session:
    table = InDelta(session, sys.argv[1])
    table.play(ORDERS, *(order(number, number, "first") for number in range(1, 40)))
    table.play(ORDERS, order(50, 7, "second"), order(51, 8, None))
"""


def test_the_copy_with_its_deletion_vectors_is_read_by_delta_rs(tmp_path: Path, spark_of_delta: SparkProcess) -> None:
    spark_of_delta.run(COPY, str(tmp_path), compiled=True)
    table = DeltaTable(tmp_path / "shop" / "orders")
    assert list((tmp_path / "shop" / "orders" / "_relay_rows").glob("deletion_vector_*"))
    query = QueryBuilder().register("orders", table)
    rows = query.execute("SELECT id, note FROM orders ORDER BY id").read_all()
    wanted = {number: "second" if number == 7 else "first" for number in range(1, 40) if number != 8}
    assert list(zip(*(column.to_pylist() for column in rows.columns), strict=True)) == list(wanted.items())
