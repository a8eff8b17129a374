"""Consumers in a session of the user's own, which is used as it is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.log_lines import log_lines
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

pytestmark = pytest.mark.services

OWN = """
import json, pathlib, sys
import pytest
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark
from relay.errors import ConfigError
from tests.spark_consumers.topic import copied

OTHER = {
    "spark.sql.session.timeZone": "Pacific/Auckland",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.databricks.delta.snapshotPartitions": "2",  # or each table takes ten seconds
}

def another(session):
    own = session.newSession()
    for key, value in OTHER.items():
        own.conf.set(key, value)
    return own
"""


def test_the_types_of_a_copy_do_not_depend_on_the_session(spark_process: SparkProcess) -> None:
    """I8: another time zone, and casts that return null where ANSI mode would fail."""
    script = f"""{OWN}
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from spark_consumers.sinks.delta_values import is_ansi, text_of, value_of

TIMES = ["0001-01-01T00:00:00.000000Z", "1969-12-31T23:59:59.999999Z", "2024-04-06T14:30:00.000001Z"]

with spark() as session:
    texts = another(session).createDataFrame([(time,) for time in TIMES], "text string")
    stored = texts.select("text", value_of(F.col("text"), "timestamp", is_ansi(texts)).alias("time"))
    found = stored.select(text_of(F.col("time"), "timestamp"), F.unix_micros("time"), "text").collect()
    assert [row[0] for row in found] == [row[2] for row in found]
    assert [row[1] for row in found][1:] == [-1, 1712413800000001]
    with pytest.raises(PySparkException, match="a value of type int is expected, not 0001-01-01"):
        texts.limit(1).select(value_of(F.col("text"), "int", is_ansi(texts))).collect()
"""
    spark_process.run(script, compiled=True)


def test_a_session_of_ones_own_is_used_as_it_is(
    tmp_path: Path, unique: str, kafka: Any, redis_server: Any, spark_process: SparkProcess
) -> None:
    """The changes are of an hour that is another day in its time zone. The checkpoints and the log are in a file system
    of Hadoop that Python's functions for files do not know. It has a name of its own, as Hadoop keeps a file system by
    its name for as long as a JVM runs.
    """
    mounted = f"viewfs://{unique}/relay"
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)
    changes = [change(customer, version) for version in (1, 2) for customer in ("ada", "bob")]
    for one in changes:
        one.committed_at = 1_700_000_000_000_000  # 2023-11-14 22:13 in UTC
    topic.set_log_path(f"{mounted}/logged")
    topic.publish(changes)
    script = f"""{OWN}
ALL = ["cache", "log", "copy"]
config, folder = load(pathlib.Path({str(topic.path)!r})), pathlib.Path({str(tmp_path / "checkpoints")!r})
with spark() as session:
    own = another(session)
    own.conf.set("fs.viewfs.mounttable.{unique}.link./relay", {tmp_path.as_uri()!r})
    for start in ("earliest", None):
        spark_consumers.run(ALL, config, until_caught_up=True, checkpoint="{mounted}/c/", start=start, spark=own)
    with pytest.raises(ConfigError, match="--from latest only applies to a new checkpoint, but {mounted}/c/log"):
        spark_consumers.run("log", config, checkpoint="{mounted}/c/log", start="latest", spark=own)
    assert {{key: own.conf.get(key) for key in OTHER}} == OTHER
    without_zone = another(session)
    without_zone.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    with pytest.raises(ConfigError, match="spark.sql.timestampType of the given Spark session is TIMESTAMP_NTZ"):
        spark_consumers.run("log", config, checkpoint=folder / "other", spark=without_zone)
    away = config.model_copy(update={{"spark": config.spark.overridden("spark://elsewhere:7077", [])}})
    with pytest.raises(ConfigError, match="spark.master is spark://elsewhere:7077 in the config, but local"):
        spark_consumers.run("log", away, checkpoint=folder / "away", spark=session)
    log = session.read.format("delta").load("{tmp_path}/logged").selectExpr("event_id", "CAST(day AS STRING)")
    found = {{"copy": copied(config, "orders"), "log": sorted(map(tuple, log.collect()))}}
json.dump(found, sys.stdout)
"""
    log = tmp_path / "consumers.log"
    found = json.loads(spark_process.run(script, log=log, compiled=True).splitlines()[-1])
    assert Counter(each["consumer"] for each in log_lines(log, "batch")) == {"cache": 1, "log": 1, "copy": 1}
    assert f'"location": "{mounted}/logged", "error": "nothing here prevents a second driver' in log.read_text()
    assert found["copy"] == {"ada": 2, "bob": 2}
    assert found["log"] == sorted([one.event_id, "2023-11-14"] for one in changes)
