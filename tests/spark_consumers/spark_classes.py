"""An archive of Spark's classes, which halves the CPU that a JVM of a consumer takes until its first batch.

The tests make it once and start their JVMs with it. Java then does not load, check and link 10,000 classes
each time.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from relay.errors import Unavailable
from tests.jvm.class_archive import archive_of, making, using

_OPTIONS = "SPARK_SUBMIT_OPTS"  # what Spark's start script adds to Java's options
_TIMEOUT = 300.0  # seconds

# Uses what consumers use: Delta tables, a merge, and a stream with batches in Python.
_TRAINING = """
import sys
import spark_consumers.session
from spark_consumers.session import close_session, open_session

spark_consumers.session._EXIT_TIMEOUT = 200.0  # Java writes the archive at its end
folder = sys.argv[1]
session = open_session("training", delta=True)
session.range(10).selectExpr("id", "cast(id as string) as text").write.format("delta").save(f"{folder}/table")

def apply(batch, number):
    batch.sparkSession.conf.set("spark.sql.shuffle.partitions", "2")
    batch.createOrReplaceTempView("batch")
    batch.sparkSession.sql(
        f"MERGE INTO delta.`{folder}/copy` c USING (SELECT max(id) id, text FROM batch GROUP BY text) b ON c.id = b.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    batch.selectExpr("hash(text)", "encode(text, 'UTF-8') as bytes").collect()

session.range(5).selectExpr("id", "cast(id as string) as text").write.format("delta").save(f"{folder}/copy")
stream = session.readStream.format("delta").load(f"{folder}/table").writeStream.foreachBatch(apply)
stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
close_session(session)
"""


def use() -> None:
    """Let the JVMs of Spark that this process and its children start use the archive, if there is one."""
    if _OPTIONS not in os.environ and exists():
        os.environ[_OPTIONS] = " ".join(using(_archive()))


def with_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give the Sparks of a process these settings, where they say nothing else."""
    options = [os.environ.get(_OPTIONS, ""), *(f"-D{name}={value}" for name, value in settings.items())]
    return {_OPTIONS: " ".join(options).strip()}


def exists() -> bool:
    return _archive().exists()


def make() -> None:
    """Make the archive if there is none, about 180 MB. Raises ``Unavailable``."""
    archive = _archive()
    if exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        try:
            answer = subprocess.run(
                [sys.executable, "-c", _TRAINING, folder],
                env={**os.environ, _OPTIONS: " ".join(making(made))},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"no archive of Spark's classes was made in {_TIMEOUT:.0f} s") from None
        if not made.exists():
            raise Unavailable(f"cannot make an archive of Spark's classes:\n{answer.stdout}{answer.stderr}")
        made.rename(archive)


def _archive() -> Path:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "")
    pyspark = importlib.util.find_spec("pyspark")  # its import takes half a second
    jars = (Path(pyspark.origin).parent / "jars").glob("*.jar") if pyspark and pyspark.origin else []
    return archive_of("spark", [java.resolve(), *sorted(jars)] if java.exists() else [])
