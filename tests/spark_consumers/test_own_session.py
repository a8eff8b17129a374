"""Consumers in a session of the user's own, which is used as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

pytestmark = pytest.mark.services

OWN = """
import json, pathlib, sys
import pytest
import spark_consumers
from relay.config import load
from relay.demo.tables import spark
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


def test_the_types_of_a_copy_do_not_depend_on_the_session(tmp_path: Path, spark_process: SparkProcess) -> None:
    """I8: another time zone, and casts that return null where ANSI mode would fail."""
    script = f"""{OWN}
from pyspark.errors import PySparkException
from tests.spark_consumers.batches import change, layout
from tests.spark_consumers.scenarios import SCENARIOS
from tests.spark_consumers.targets import InDelta

with spark() as session:
    for name in ("keys_of_every_type_are_found_again", "values_are_exact"):
        SCENARIOS[name](InDelta(session, f"{tmp_path}/{{name}}", another(session)))
    with pytest.raises(PySparkException, match="a value of type int is expected, not x"):
        table = InDelta(session, "{tmp_path}/refused", another(session))
        table.play(layout({{"id": "int"}}, {{"id": "int", "n": "int"}}), change(1, ["1"], {{"id": 1, "n": "x"}}))
"""
    spark_process.run(script)


def test_a_session_of_ones_own_is_used_as_it_is(
    tmp_path: Path, unique: str, kafka: Any, redis_server: Any, spark_process: SparkProcess
) -> None:
    """The changes are of an hour that is another day in its time zone."""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)
    changes = [change(customer, version) for version in (1, 2) for customer in ("ada", "bob")]
    for one in changes:
        one.committed_at = 1_700_000_000_000_000  # 2023-11-14 22:13 in UTC
    topic.publish(changes)
    script = f"""{OWN}
config, folder = load(pathlib.Path({str(topic.path)!r})), pathlib.Path({str(tmp_path / "checkpoints")!r})
with spark() as session:
    own = another(session)
    spark_consumers.run(["cache", "log", "copy"], config, until_caught_up=True, checkpoint=folder / "all", spark=own)
    assert {{key: own.conf.get(key) for key in OTHER}} == OTHER
    own.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    with pytest.raises(ConfigError, match="spark.sql.timestampType of the given Spark session is TIMESTAMP_NTZ"):
        spark_consumers.run("log", config, checkpoint=folder / "other", spark=own)
    away = config.model_copy(update={{"spark": config.spark.overridden("spark://elsewhere:7077", [])}})
    with pytest.raises(ConfigError, match="spark.master is spark://elsewhere:7077 in the config, but local"):
        spark_consumers.run("log", away, checkpoint=folder / "away", spark=session)
    log = session.read.format("delta").load(config.log.path).selectExpr("event_id", "CAST(day AS STRING)")
    found = {{"copy": copied(session, config, "orders"), "log": sorted(map(tuple, log.collect()))}}
json.dump(found, sys.stdout)
"""
    found = json.loads(spark_process.run(script).splitlines()[-1])
    assert found["copy"] == {"ada": 2, "bob": 2}
    assert found["log"] == sorted([one.event_id, "2023-11-14"] for one in changes)
