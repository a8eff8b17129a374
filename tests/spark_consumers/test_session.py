"""What a Spark of our own needs before it is started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.jvm.java import find_java
from spark_consumers import open_session, session
from tests.spark_consumers.spark_process import SparkProcess


def test_a_folder_in_which_spark_could_not_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    access = os.access
    # Root may write everywhere but on a read-only file system.
    monkeypatch.setattr(os, "access", lambda path, mode, **more: Path(path) != tmp_path and access(path, mode, **more))

    def start(*_: Any) -> None:
        pytest.fail("Spark is started")

    monkeypatch.setattr("spark_consumers.spark_internals.launch_gateway", start)
    with pytest.raises(Unavailable, match=f"`artifacts` where it is started, and {tmp_path} cannot be written to"):
        open_session("test", delta=False)


def test_java_has_as_much_room_for_the_code_that_spark_compiles_as_by_its_defaults() -> None:
    """I10: with fewer compilers it has a fifth, and once that is full, the consumers end."""

    def reserved(*options: str) -> int:
        command = [str(find_java()), *options, "-XX:+PrintFlagsFinal", "-version"]
        flags = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
        found = re.search(r"ReservedCodeCacheSize += (\d+)", flags)
        assert found is not None
        return int(found[1])

    assert reserved(*session._JAVA_OPTIONS) >= reserved()


SECRETS = """
import pathlib
from relay.config import SparkConfig
from relay.errors import ConfigError
from spark_consumers.session import _started, close_session, open_session

KEY, LAKE = "spark.hadoop.fs.s3a.secret.key", "spark.sql.catalog.lake"
OF_KAFKA = ["kafka.ssl.keystore.key", "kafka.sasl.jaas.config", "my.pin"]
OF_CATALOGS = [f"{LAKE}.{name}" for name in ("credential", "header.Authorization", "adls.sas-token.account")]
URL = f"{LAKE}.uri"
conf = {KEY: "hunter2", "spark.redaction.regex": "pin$", "spark.app.id": "shown", URL: "http://me:hunter2@catalog"}
conf |= dict.fromkeys(OF_CATALOGS, "hunter2")
session = open_session("secrets", delta=False, spark=SparkConfig(conf=conf))
command = pathlib.Path(f"/proc/{_started[session][0].proc.pid}/cmdline").read_bytes()
assert b"spark.app.id=shown" in command
assert b"hunter2" not in command
assert session.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == "hunter2"
options = {**dict.fromkeys([*OF_KAFKA, *OF_CATALOGS], "hunter2"), URL: conf[URL]}
options = session._jvm.PythonUtils.toScalaMap(options)
assert "hunter2" not in session._jsparkSession.sessionState().conf().redactOptions(options).toString()
for key in [*OF_CATALOGS, URL]:
    try:
        open_session("another", delta=False, spark=SparkConfig(conf={key: f"{conf[key]}://x:hunter2@y"}))
    except ConfigError as error:
        assert key in str(error) and "***" in str(error) and "hunter2" not in str(error), error
    else:
        raise AssertionError(key)
close_session(session)
"""


@pytest.mark.services
def test_no_secret_is_in_the_command_that_starts_java_and_none_of_kafka_in_a_plan() -> None:
    """All users of the machine can read the command, and a PEM key is in a setting that Spark takes for no secret."""
    ran = subprocess.run([sys.executable, "-c", SECRETS], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr


CACHED = """
from tests.spark_consumers.local_spark import spark

with spark() as session:
    frame = session.range(3).persist()
    cached = frame._jdf.queryExecution().withCachedData().cacheBuilder().cachedPlan().session()
    print(cached.equals(session._jsparkSession))
    frame.unpersist()
"""


def test_a_cached_batch_is_in_the_consumers_session_and_not_in_one_that_spark_never_frees(
    spark_process: SparkProcess,
) -> None:
    """I11: each batch of a copy of a hundred columns kept 1.8 MB of the driver's heap."""
    assert spark_process.run(CACHED).strip() == "True"
