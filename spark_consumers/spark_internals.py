"""The internals of Spark, Delta and Iceberg that the consumers use where there is no public interface.

The Java classes of this folder also use `InternalRow`, what it consists of, and `XXH64`.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark import RDD, SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType

from relay.jvm.connectors import minor


def start_spark(conf: SparkConf, shown: SparkConf, process: Mapping[str, Any]) -> tuple[SparkSession, Any]:
    """Return a session in a JVM of its own, and the gateway to it.

    ``shown``: the settings of ``conf`` that may be in its command line. ``process``: how `subprocess` starts it.
    """
    gateway = launch_gateway(shown, dict(process))  # type: ignore[no-untyped-call]
    return SparkSession(SparkContext(conf=conf, gateway=gateway)), gateway


def forget_spark() -> None:
    """Let the next session have a JVM of its own: PySpark would continue to use the one that has ended."""
    SparkContext._gateway = SparkContext._jvm = None


def jvm_of(context: SparkContext) -> Any:
    return context._jvm


def gateway_of(context: SparkContext) -> Any:
    return context._gateway


def let_java_call(context: SparkContext) -> None:
    """Let the JVM call objects of this process."""
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]


def add_jar(context: SparkContext, jar: str) -> None:
    context._jsc.addJar(jar)


def java_type(context: SparkContext, kind: DataType) -> Any:
    return jvm_of(context).org.apache.spark.sql.types.DataType.fromJson(kind.json())


def applied(context: SparkContext, function: Any, column: Column) -> Column:
    """Return a column to which a `UserDefinedFunction` of Java is applied."""
    return Column(function.apply(jvm_of(context).PythonUtils.toSeq([column._jc])))


def rows_of(frame: DataFrame) -> Any:
    """Return the rows of a frame as Spark has them, as a Java RDD. Each may be the same object."""
    return frame._jdf.queryExecution().toRdd().toJavaRDD()


def frame_of(internals: Any, session: SparkSession, rows: Any, kind: DataType, size: int) -> DataFrame:
    """Return Spark's rows as a frame. ``internals``: a Java `SparkInternals`. ``size``: bytes that Spark assumes."""
    found = internals.frame(session._jsparkSession, rows, java_type(session.sparkContext, kind), size)
    return DataFrame(found, session)


def text_frame(session: SparkSession, lines: bytes) -> DataFrame:
    """Return lines of UTF-8 as a frame with the column ``value``. Unlike another, it needs no Python worker."""
    jvm = jvm_of(session.sparkContext)
    listed = jvm.org.apache.commons.io.IOUtils.readLines(jvm.java.io.ByteArrayInputStream(lines), "UTF-8")
    strings = jvm.org.apache.spark.sql.Encoders.STRING()
    return DataFrame(session._jsparkSession.createDataset(listed, strings).toDF(), session)


def bytes_of(context: SparkContext, arrays: Any) -> RDD[bytes]:
    """Return a Java RDD of arrays of bytes as one of Python."""
    return RDD(arrays, context, NoOpSerializer())


def checkpoint_class(session: SparkSession, name: str) -> str:
    """Return the full name of a class of Spark's checkpoints."""
    moved = "" if minor(session.version) == "4.0" else "checkpointing."
    return f"org.apache.spark.sql.execution.streaming.{moved}{name}"


def checkpoint_files(session: SparkSession, path: Any) -> Any:
    """Return what reads and writes files of checkpoints below a `Path` of Hadoop."""
    names = checkpoint_class(session, "CheckpointFileManager$.MODULE$").split(".")
    conf = session._jsparkSession.sessionState().newHadoopConf()  # of Hadoop, with what only this session has
    return reduce(getattr, names, jvm_of(session.sparkContext)).create(path, conf)


def delta_log(session: SparkSession, path: str) -> Any:
    return _delta_logs(session).forTable(session._jsparkSession, path)


def forget_delta_logs(session: SparkSession) -> None:
    _delta_logs(session).clearCache()


def _delta_logs(session: SparkSession) -> Any:
    return jvm_of(session.sparkContext).org.apache.spark.sql.delta.DeltaLog


def iceberg_table(session: SparkSession, name: str) -> Any:
    """Return the table as Iceberg's own library has it."""
    jvm = jvm_of(session.sparkContext)
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)
