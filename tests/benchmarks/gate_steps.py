"""Prints the CPU time a record of each hot path of the tree that is imported, and its records: see ``gate``."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import orjson

from relay.avro.decode import decode
from relay.avro.framing import fingerprint, single_object_header
from relay.change import Change, ChangeParts
from relay.kafka.topic_writer import TopicWriter
from tests.benchmarks.changes import finished
from tests.benchmarks.cpu_profile import PARTITIONS, Steps
from tests.benchmarks.cpu_sources import ROWS, fed
from tests.benchmarks.harness import pin

ROUNDS = 5


class Schemas:
    """A registry that keeps its schemas in this process."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}

    def register(self, topic: str, schema: Any) -> bytes:
        header = single_object_header(fingerprint(schema))
        self._known[header] = schema
        return header

    def lookup(self, header: bytes) -> Any:
        return self._known.get(header)


def costs() -> dict[str, tuple[float, int]]:
    """Return microseconds of CPU a record, and the records: from a source's bytes to records, and back to changes."""
    gc.set_threshold(50_000, 20, 20)  # as a worker does
    pin(os.getpid(), 0)
    found = {}
    for source in fed():
        schemas, steps = Schemas(), Steps()
        writer = TopicWriter(source.table, "bench", PARTITIONS, "hash", schemas)
        for _ in range(ROUNDS):
            answer = steps.run("parse", source.parse)
            read: list[Change] | ChangeParts = steps.run("change", source.change, answer)
            values = [value for value, *_ in steps.run("records", finished, writer, read)]
            steps.run("decode", _decode, schemas, values)
        publish = sum(steps.seconds[step] for step in ("parse", "change", "records"))
        found[f"publish_{source.name}"] = publish / ROWS * 1e6, len(values)
        found[f"decode_{source.name}"] = steps.seconds["decode"] / ROWS * 1e6, len(values)
    return found


def _decode(schemas: Schemas, values: list[bytes]) -> None:
    for value in values:
        decode(schemas, value)


if __name__ == "__main__":
    sys.stdout.write(orjson.dumps(costs()).decode())
