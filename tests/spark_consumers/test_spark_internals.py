"""What is not promised by Spark is named in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_consumers
from relay.errors import ConfigError, Unavailable
from spark_consumers import open_session
from spark_consumers.session import refuse_unsupported

CODE = Path(spark_consumers.__path__[0])
_HANDLES = re.compile(r"\._(?:jvm|jdf|jc|jsc|jsparkSession|gateway)\b|pyspark\.(?:java_gateway|serializers)\b")
_CLASSES = re.compile(r"org\.apache\.spark\.sql\.(?:catalyst|classic|delta|execution|internal)\.[\w.$]+\w")
# Names in settings and of loggers, and the rows of Spark's plans.
_ELSEWHERE = {
    "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "org.apache.spark.sql.catalyst.InternalRow",
    "org.apache.spark.sql.catalyst.expressions.GenericInternalRow",
    "org.apache.spark.sql.catalyst.expressions.SpecializedGetters",
    "org.apache.spark.sql.catalyst.expressions.XXH64",
    "org.apache.spark.sql.catalyst.util.ArrayData",
}


def test_internal_names_of_spark_are_in_one_module() -> None:
    internals = {"spark_internals.py", "SparkInternals.java"}
    found = {}
    for path in sorted(each for suffix in ("*.py", "*.java") for each in CODE.rglob(suffix)):
        text = path.read_text(encoding="utf-8")
        names = {*_HANDLES.findall(text), *(set(_CLASSES.findall(text)) - _ELSEWHERE)}
        if names and path.name not in internals:
            found[path.name] = names
    assert found == {}


def test_a_session_of_spark_connect_is_refused_before_it_is_used() -> None:
    with pytest.raises(ConfigError, match=r"uses Spark Connect, which has no JVM .* --master URL` and spark-submit"):
        refuse_unsupported(object())


def test_a_server_of_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    with pytest.raises(
        ConfigError, match=r"SPARK_REMOTE names a Spark Connect server, .* spark-submit start it; and unset it"
    ):
        open_session("test", delta=False)


def test_an_untested_spark_is_refused_before_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_consumers.session.installed_spark", lambda: "4.9.0")
    with pytest.raises(Unavailable, match=r"Spark 4\.9\.0 is not supported: .*no connectors"):
        open_session("test", delta=False)


def test_a_session_of_an_untested_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """I8: also one that was started elsewhere, such as by spark-submit on a cluster of another version."""
    monkeypatch.setattr(SparkSession, "version", "3.5.6")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: object.__new__(SparkSession))
    with pytest.raises(Unavailable, match=r"Spark 3\.5\.6 is not supported: .*no connectors .* also on the cluster"):
        open_session("test", delta=False)
