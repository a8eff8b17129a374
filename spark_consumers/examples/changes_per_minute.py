"""Counts the changes of each table a minute, in a streaming query.

python -m spark_consumers.examples.changes_per_minute relay.yaml FOLDER
"""

import sys
from pathlib import Path

from pyspark.sql import functions as F

import spark_consumers
from relay.config import load


def main(config: Path, folder: Path) -> None:
    """Write counts as JSON to ``folder``/counts until everything that is on Kafka now is counted."""
    # On a cluster: SparkSession.builder with the packages that deploy/docs/how_to/read.md names.
    spark = spark_consumers.open_session("changes per minute", delta=False)
    changes = spark_consumers.read_changes(spark, load(config))
    # Changes are late by how far the relay is behind, so give the watermark some time.
    counts = (
        changes.withWatermark("committed_at", "10 minutes")
        .groupBy(F.window("committed_at", "1 minute").alias("minute"), "table", "operation")
        .count()
        .select(F.col("minute.start").alias("minute"), "table", "operation", "count")
    )

    def write(batch: object, number: int) -> None:
        # In mode `update` a minute comes again whenever its count has changed; the newest is right.
        batch.write.mode("overwrite").json(str(folder / "counts" / f"batch={number}"))  # type: ignore[attr-defined]

    query = counts.writeStream.outputMode("update").foreachBatch(write)
    query = query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    spark_consumers.close_session(spark)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
