"""The Spark session of a consumer: in a JVM of its own on this machine, or in the one that ``spark-submit`` started.

In an existing JVM the consumer gets a session of its own, whose SQL settings do not affect the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from relay.errors import ConfigError
from relay.jvm.jars import jars
from relay.jvm.java import find_java

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

# Bytes of one Avro string or bytes value. Without a limit, damaged bytes that decode to a huge length end in an
# OutOfMemoryError, which stops the JVM instead of sending the record to the dead letters.
_LONGEST_VALUE = 32 << 20

_EXIT_TIMEOUT = 15.0  # seconds for the JVM to end

# The JVMs that `open_session` started, by the session it returned. Used by the main thread only.
_started: dict[SparkSession, Any] = {}

_JAVA_OPTIONS = (
    # On few cores the optimising compiler takes CPU from the batches of the first minutes: with it a batch of the cache
    # takes 1.5 times as long at p50, and twice as long at p95.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    f"-Dorg.apache.avro.limits.string.maxLength={_LONGEST_VALUE}",
    f"-Dorg.apache.avro.limits.bytes.maxLength={_LONGEST_VALUE}",
    f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}",
)

_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Columns have their source's names, and for DynamoDB Id and id differ.
    "spark.sql.caseSensitive": "true",
    "spark.sql.shuffle.partitions": "2",
    # Re-planning between stages costs more than it saves in batches of this size.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}

# The default manager forks a process to set the permissions of a file: 20 ms for each of two files a batch.
_LOCAL_CHECKPOINT = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    )
}

_DELTA_SQL = {
    # The partitions of a table's state. With the default of 50 the first MERGE takes 12 s.
    "spark.databricks.delta.snapshotPartitions": "2",
    # The tasks by which VACUUM lists a table's files. With the default of 10,000 it takes minutes for any table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.databricks.delta.autoCompact.minNumFiles": "30",
}


def open_session(name: str, *, delta: bool, keep_open: Sequence[int] = (), memory: str = "1g") -> SparkSession:
    """Return a session called ``name`` that can read Kafka and Avro, and Delta if ``delta``.

    ``keep_open``: file descriptors that a new JVM keeps open until it ends. ``memory``: of its heap, as Java takes it.
    Raises ``Unavailable`` if Java, PySpark or a jar is missing, ``ConfigError`` if the existing session lacks Delta.
    """
    existing = _existing()
    session = another_session(existing, delta=delta) if existing else _start(name, delta, keep_open, memory)
    _configure(session, delta)
    if delta and DELTA_EXTENSION not in str(session.conf.get("spark.sql.extensions", "")):
        raise ConfigError(
            "the Spark session of this process was created without Delta: submit with "
            f"--conf spark.sql.extensions={DELTA_EXTENSION} "
            f"--conf spark.sql.catalog.spark_catalog={DELTA_CATALOG}"
        )
    return session


def another_session(session: SparkSession, *, delta: bool) -> SparkSession:
    """Return a session in the same JVM, with SQL settings and temporary views of its own."""
    found = session.newSession()
    _configure(found, delta)
    return found


def _configure(session: SparkSession, delta: bool) -> None:
    for key, value in (_SQL | _LOCAL_CHECKPOINT | (_DELTA_SQL if delta else {})).items():
        session.conf.set(key, value)


def close_session(session: SparkSession) -> None:
    """End the JVM that ``open_session`` started for this session. Does nothing for other sessions."""
    gateway = _started.pop(session, None)
    if gateway is None:
        return
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    # Else PySpark would go on using it.
    SparkContext._gateway = SparkContext._jvm = None


def is_cluster(session: SparkSession) -> bool:
    """Whether Spark's tasks may run on other machines."""
    return not str(session.sparkContext.master).startswith("local")


def _existing() -> SparkSession | None:
    """Return the session of this process, or of the ``spark-submit`` that started it."""
    active = SparkSession.getActiveSession()
    if active is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        active = SparkSession.builder.getOrCreate()
    return active


def _start(name: str, delta: bool, keep_open: Sequence[int], memory: str) -> SparkSession:
    java = find_java()
    # Spark's start script finds Java only by this variable.
    os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else whatever python3 is on the PATH
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(_settings(name, delta, memory).items()))
    options: dict[str, Any] = {
        # Signals to our process group are for us alone: we drain, then end the JVM. If we are killed, the JVM ends
        # because its standard input does.
        "start_new_session": True,
        "pass_fds": tuple(keep_open),
    }
    gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
    session = SparkSession(SparkContext(conf=conf, gateway=gateway))
    _started[session] = gateway
    return session


def _settings(name: str, delta: bool, memory: str) -> dict[str, str]:
    settings = {
        "spark.app.name": name,
        "spark.master": "local[*]",
        "spark.jars": ",".join(map(str, jars("spark"))),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": memory,
        # Consumers of one session share the cores by turns.
        "spark.scheduler.mode": "FAIR",
        "spark.driver.extraJavaOptions": " ".join(_JAVA_OPTIONS),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "relay-spark-warehouse"),
    }
    if delta:
        settings |= {
            "spark.sql.extensions": DELTA_EXTENSION,
            "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        }
    return settings
