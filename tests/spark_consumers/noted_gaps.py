"""Gaps on the topic of a relay, and those that a copy notes beside its tables."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import Producer
from deltalake import DeltaTable

from relay.config import load
from relay.services.postgres import execute
from tests.spark_consumers.topic import Topic


def noted_gaps(path: Path, source: str, table: str) -> list[str]:
    """Return the reasons of the gaps that are noted at a table of the copy of a config. The table has to be there."""
    copy = load(path).copy_
    assert copy is not None
    if copy.url.startswith("postgresql"):
        assert execute(copy.url, "SELECT to_regclass(%s)", [f"{source}.{table}"]) != [(None,)]
        noted = f"SELECT value FROM {source}._relay_properties WHERE name = 'relay.gaps' AND relation = %s"
        texts = [text for (text,) in execute(copy.url, noted, [table])]
    else:
        properties = (
            DeltaTable(f"{copy.url.removeprefix('delta://')}/{source}/{table}/_relay_rows").metadata().configuration
        )
        texts = [properties.get("relay.gaps", "[]")]
    return [gap["reason"] for text in texts for gap in json.loads(text)]


def publish_records(topic: Topic, *gaps: bytes) -> None:
    producer = Producer(topic.config.kafka.client())
    for gap in gaps:
        producer.produce(topic.config.internal("gaps"), gap, partition=0)
    assert producer.flush(30) == 0
