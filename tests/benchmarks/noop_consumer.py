"""Runs a no-op foreachBatch in stock Spark, to show the cost of micro-batches. Arguments: CONFIG CHECKPOINT.

``--tuned`` uses the consumers' own session and Kafka settings instead. ``--handover`` does, too, hands the records of
each batch to Python as the cache's consumer does, and ends at the end of the topic.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from relay.config import Config, load
from relay.jvm.connectors import installed_connectors
from relay.jvm.jars import fetched
from spark_consumers import kafka_source
from spark_consumers.checkpoint import ConsumerCheckpoint
from spark_consumers.invalidate import PackedRecords
from spark_consumers.session import open_session

_ANY = 1 << 40  # bytes of a value


def _stock() -> SparkSession:
    builder = SparkSession.builder.appName("no-op").master("local[*]")
    settings = {
        "spark.jars": ",".join(map(str, fetched(installed_connectors().spark))),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _stock_stream(session: SparkSession, config: Config, topic: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": config.kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    return session.readStream.format("kafka").options(**options).load()


def main(path: str, checkpoint: str, *flags: str) -> None:
    config = load(Path(path))
    topic = config.topic(next(iter(config.tables)))
    point = ConsumerCheckpoint(checkpoint)
    hands_over = "--handover" in flags
    if "--tuned" in flags or hands_over:
        stream = kafka_source.read(open_session("no-op", delta=False), config, "no-op", [topic], "earliest", 50_000)
    else:
        stream = _stock_stream(_stock(), config, topic)

    def batch(frame: DataFrame, number: int) -> None:
        rows = sum(1 for _ in PackedRecords(frame).by_partition(_ANY)) if hands_over else 0
        ends, now = point.end_offsets(number), time.time()
        line = {"event": "batch", "consumer": "no-op", "rows": rows, "applied_at": now, "end_offsets": ends}
        print(json.dumps(line), flush=True)

    writer = stream.writeStream.foreachBatch(batch).option("checkpointLocation", point.spark)
    (writer.trigger(availableNow=True) if hands_over else writer).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
