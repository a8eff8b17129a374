"""The Spark session of a consumer, with its own driver or in an existing one. A user's settings always hold."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkConf
from pyspark.sql import SparkSession

from relay.config import SparkConfig
from relay.config.hidden import HIDDEN, is_secret, redacted
from relay.errors import ConfigError, Unavailable
from relay.jvm.connectors import connectors_of, iceberg_of, installed_spark
from relay.jvm.jars import CENTRAL, fetched
from relay.jvm.java import find_java
from spark_consumers.executors import our_code
from spark_consumers.java_stderr import java_stderr
from spark_consumers.spark_internals import checkpoint_class, forget_spark, start_spark

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
ICEBERG_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_CATALOG = re.compile(r"spark\.sql\.catalog\.\w+")
_NO_CONNECT = (
    "which has no JVM for the consumers' own classes: pass a session with a driver in this process, as "
    "`relay consume --master URL` and spark-submit start it"
)

_INSTALLED = "installed"
_EXIT_TIMEOUT = 15.0  # seconds for the JVM to end


# By the session that `open_session` returned: the gateway to its JVM, and the folder of the executors' code, if any.
# Used by the main thread only.
_started: dict[SparkSession, tuple[Any, tempfile.TemporaryDirectory[str] | None]] = {}

_JAVA_OPTIONS = (
    # With the optimising compiler, batches take 1.5 times as long at p50 in the first minutes, on few cores.
    "-XX:TieredStopAtLevel=1",
    # With one compiler Java reserves 48 MB, which the code of Spark's queries fills within minutes, and then Java ends.
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+UseSerialGC",
    f"-Dlog4j2.configurationFile={Path(__file__).absolute().with_name('log4j2.properties').as_uri()}",
)

_SQL = {
    # Columns have their source's names, and for DynamoDB Id and id differ.
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    # I8: a column or a folder may have a name such as ${env:HOME}.
    "spark.sql.variable.substitute": "false",
    "spark.sql.shuffle.partitions": "2",
    # Re-planning between stages costs more than it saves in batches of this size.
    "spark.sql.adaptive.enabled": "false",
    # With either of these, Spark caches each DataFrame in a copy of the session, and Spark 4.0 never frees a session,
    # since its own cleaner refers to it (I11). Without re-planning, and without buckets, they change nothing.
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations": "false",
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # With the default of 10 ms between polls, an idle consumer takes a tenth of a core, and the broker as much.
    "spark.sql.streaming.pollingDelay": "20ms",
}

_MEANINGS = {"spark.sql.timestampType": "TIMESTAMP_LTZ", "spark.sql.parser.escapedStringLiterals": "false"}

# Settings with several values, to which ours are added.
_JOINED = {
    "spark.jars": ",",
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.redaction.regex": "|",
}

_DELTA_SQL = {
    # By default, times have a type of Spark's own, which other readers take for a time without a zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The partitions of a table's state. With the default of 50 the first MERGE takes 12 s.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A batch always has the same rows: it is cached, and Kafka's records are those between two offsets.
    "spark.databricks.delta.merge.materializeSource": "none",
    # The tasks that list a table's files for VACUUM. With the default of 10,000 it takes minutes for any table.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # A MERGE that may insert rows need not sort the table's rows, if the batch is small enough to be in memory.
    "spark.sql.join.preferSortMergeJoin": "false",
    # A task that writes rows and tombstones need not sort them.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.databricks.delta.autoCompact.minNumFiles": "30",
}


def open_session(
    name: str,
    *,
    delta: bool,
    spark: SparkConfig | None = None,
    functions: bool = False,
    keep_open: Sequence[int] = (),
    memory: str = "1g",
) -> SparkSession:
    """Return a session called ``name`` that can read Kafka and Avro, and Delta if ``delta``.

    ``spark``: the config of where it runs, by default on this machine. ``functions``: whether a new one can have the
    functions of the log, and so only reads what is in Iceberg. ``keep_open``: file descriptors that a new JVM
    keeps open until it ends. ``memory``: how large the driver's heap may be, as Java takes it. Raises ``Unavailable``
    if Java, PySpark or a jar is missing, or the working folder is read-only; ``ConfigError`` if the session that exists
    lacks Delta, or contradicts ``spark``.
    """
    settings = spark or SparkConfig()
    existing = existing_session()
    if existing is not None:
        refuse_contradiction(existing, settings)
        session = another_session(existing, delta=delta)
    else:
        session = _start(name, delta, settings, functions, keep_open, memory)
        _configure(session, delta)
    refuse_lack_of_delta(session, delta)
    return session


def another_session(session: SparkSession, *, delta: bool) -> SparkSession:
    """Return a session in the same JVM, with separate SQL settings and temporary views."""
    found = session.newSession()
    _configure(found, delta)
    return found


def refuse_contradiction(session: SparkSession, settings: SparkConfig) -> None:
    running = dict(session.sparkContext.getConf().getAll())
    wanted = settings.conf | ({"spark.master": settings.master} if "master" in settings.model_fields_set else {})
    for key, value in wanted.items():
        found = session.conf.get(key, None) if key.startswith("spark.sql.") else running.get(key)
        if found != value:
            name = "spark.master" if key == "spark.master" else f"spark.conf.{key}"
            ours, theirs = (HIDDEN if each and is_secret(key) else redacted(each) for each in (value, found))
            raise ConfigError(
                f"{name} is {ours} in the config, but {theirs or 'not set'} in the Spark session of this process, "
                "which is already running: pass it to spark-submit, or to the program that started the session, or "
                "remove it here"
            )


def refuse_other_meanings(session: SparkSession) -> None:
    """Raise ``ConfigError`` for a session in which SQL types or literals mean something else than for us."""
    for key, wanted in _MEANINGS.items():
        if (found := session.conf.get(key, wanted)) != wanted:
            raise ConfigError(
                f"{key} of the given Spark session is {found}, but the consumers need {wanted}: pass another session, "
                "such as spark.newSession()"
            )


def refuse_lack_of_delta(session: SparkSession, delta: bool) -> None:
    if delta and DELTA_EXTENSION not in str(session.conf.get("spark.sql.extensions", "")):
        raise ConfigError(
            "the Spark session of this process was created without Delta: submit with "
            f"--conf spark.sql.extensions={DELTA_EXTENSION} "
            f"--conf spark.sql.catalog.spark_catalog={DELTA_CATALOG}"
        )


def _configure(session: SparkSession, delta: bool) -> None:
    ours = _SQL | (_DELTA_SQL if delta else {})
    if is_cluster(session.sparkContext.master):
        # As many tasks as the cluster runs at once.
        ours = {**ours, "spark.sql.shuffle.partitions": str(max(2, session.sparkContext.defaultParallelism))}
    _set(session, ours)


def use_local_checkpoint(session: SparkSession) -> None:
    # The default manager forks a process to set the permissions of a file: 20 ms for each of two files a batch.
    ours = checkpoint_class(session, "FileSystemBasedCheckpointFileManager")
    _set(session, {"spark.sql.streaming.checkpointFileManagerClass": ours})


def _set(session: SparkSession, ours: Mapping[str, str]) -> None:
    """Set what the user has not."""
    given = dict(session.sparkContext.getConf().getAll())
    for key in ours.keys() - given.keys():
        session.conf.set(key, ours[key])


def close_session(session: SparkSession) -> None:
    """End the JVM that ``open_session`` started for this session. Does nothing for other sessions."""
    gateway, code = _started.pop(session, (None, None))
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
    forget_spark()
    if code is not None:
        code.cleanup()


@contextmanager
def delta_session(spark: SparkConfig, *, functions: bool = False) -> Iterator[SparkSession]:
    """Open a session that can read Delta, and close it. For ``functions`` and errors, see ``open_session``."""
    session = open_session("relay", delta=True, spark=spark, functions=functions)
    try:
        yield session
    finally:
        close_session(session)


def is_cluster(master: str | None) -> bool:
    """Whether Spark's tasks may run on machines other than this one."""
    return not str(master).startswith("local")


def existing_session(given: SparkSession | None = None) -> SparkSession | None:
    """Return the ``given`` session, or that of this process or its ``spark-submit``. Raises as `refuse_unsupported`."""
    active = given or SparkSession.getActiveSession()
    if active is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        active = SparkSession.builder.getOrCreate()
    if active is not None:
        refuse_unsupported(active)
    return active


def refuse_unsupported(session: object) -> None:
    """Raise ``ConfigError`` for a session of Spark Connect, and ``Unavailable`` for an untested version of Spark."""
    if not isinstance(session, SparkSession):
        raise ConfigError(f"the given session uses Spark Connect, {_NO_CONNECT}")
    connectors_of(session.version)


def _start(
    name: str, delta: bool, spark: SparkConfig, functions: bool, keep_open: Sequence[int], memory: str
) -> SparkSession:
    java = find_java()
    if "SPARK_REMOTE" in os.environ:
        raise ConfigError(f"SPARK_REMOTE names a Spark Connect server, {_NO_CONNECT}; and unset it")
    if not os.access(Path.cwd(), os.W_OK):
        raise Unavailable(
            f"Spark creates a folder `artifacts` where it is started, and {Path.cwd()} cannot be written to: start the "
            "consumer in another folder"
        )
    # Spark's start script finds Java only by this variable.
    os.environ["JAVA_HOME"] = str(java.resolve().parent.parent)
    if not is_cluster(spark.master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "spark.pyspark.python" in spark.conf:
        os.environ["PYSPARK_PYTHON"] = spark.conf["spark.pyspark.python"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise the python3 on the PATH
    given = _settings(name, delta, spark, functions, memory)
    conf = SparkConf(loadDefaults=False).setAll(list(given.items()))
    # All users of this machine can read Java's command line.
    hidden = {key for key, value in given.items() if is_secret(key)}
    hidden |= {key for key, value in given.items() if _CATALOG.match(key) and redacted(value) != value}
    shown = SparkConf(loadDefaults=False).setAll([(key, value) for key, value in given.items() if key not in hidden])
    options: dict[str, Any] = {
        # Signals to our process group are for us alone: we drain, then end the JVM. If we are killed, the JVM ends
        # because its standard input does.
        "start_new_session": True,
        "pass_fds": tuple(keep_open),
    }
    with java_stderr() as stderr:
        session, gateway = start_spark(conf, shown, options | {"stderr": stderr})
    code = None
    if is_cluster(spark.master):
        code = tempfile.TemporaryDirectory(prefix="relay-code-")
        session.sparkContext.addPyFile(str(our_code(Path(code.name))))
    _started[session] = gateway, code
    return session


def _settings(name: str, delta: bool, spark: SparkConfig, functions: bool, memory: str) -> dict[str, str]:
    iceberg = "org.apache.iceberg.spark."
    catalogs = [key for key, value in spark.conf.items() if _CATALOG.fullmatch(key) and value.startswith(iceberg)]
    settings = {
        "spark.app.name": name,
        "spark.master": spark.master,
        "spark.jars": ",".join(map(str, connectors(spark.connectors, delta=delta, iceberg=bool(catalogs)))),
        "spark.driver.memory": memory,
        # Consumers of one session take turns on the cores.
        "spark.scheduler.mode": "FAIR",
        "spark.driver.extraJavaOptions": " ".join(_JAVA_OPTIONS),
        # PySpark records the Python line of each expression, which takes a third of the time of building a query.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.enabled": "false",
        # Of finished queries: with Spark's defaults, each batch of a copy of a wide table takes 2.4 MB of heap.
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        # What it hides: its own pattern, names of Kafka's and the catalogs' settings, and URLs with a password.
        "spark.redaction.regex": (
            "(?i)secret|password|token|access[.]?key|jaas|keystore[.]key|credential|authorization|connection-string"
            "|://[^/\\s:]*:[^/\\s]+@"
        ),
        "spark.ui.showConsoleProgress": "false",
        # Classes compiled for queries. A batch of the log and of the copy of one table takes 160: with the default of
        # 100 each batch compiles them again, which is a third of a small one's CPU.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # Hadoop sets the permissions of files itself, whatever the umask is.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "relay-spark-warehouse"),
    }
    if not is_cluster(spark.master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if delta:
        settings |= {"spark.sql.extensions": DELTA_EXTENSION, "spark.sql.catalog.spark_catalog": DELTA_CATALOG}
    if catalogs:
        if not functions and ICEBERG_EXTENSION not in spark.conf.get("spark.sql.extensions", ""):
            extensions = [settings.get("spark.sql.extensions"), ICEBERG_EXTENSION]
            settings["spark.sql.extensions"] = ",".join(filter(None, extensions))
        # I7: a session that keeps tables for a while does not see what another driver has written to them.
        settings |= {f"{catalog}.cache-enabled": "false" for catalog in catalogs}
    joined = {
        key: f"{settings[key]}{separator}{spark.conf[key]}"
        for key, separator in _JOINED.items()
        if settings.get(key) and spark.conf.get(key)
    }
    return settings | spark.conf | joined


def connectors(source: str | None, *, delta: bool, iceberg: bool = False) -> list[Path]:
    """Return the jars for Kafka, Avro and lakes, from ``source``, as in ``spark.connectors``; none if Spark has them.

    Raises ``ConfigError`` if a folder lacks one, ``Unavailable`` if one cannot be fetched, or does not exist.
    """
    version = installed_spark()
    wanted = [connectors_of(version).spark]
    if source == _INSTALLED:
        return []
    if iceberg:
        wanted.append(iceberg_of(version))
    if source is None or source.startswith(("http://", "https://")):
        return [jar for each in wanted for jar in fetched(each, source or CENTRAL)]
    folder = Path(source)
    found = sorted(folder.glob("*.jar"))
    for jar_set, artifact in ((each, artifact) for each in wanted for artifact in each.artifacts):
        needed = delta or "delta" not in artifact.name
        if needed and not any(jar.name.startswith(f"{artifact.name}-{artifact.version}") for jar in found):
            raise ConfigError(
                f"spark.connectors: the folder {folder.absolute()} has no {artifact.name}-{artifact.version}.jar: copy "
                f"all files of {jar_set.folder} there from a machine on which `relay consume` has run"
            )
    return found
