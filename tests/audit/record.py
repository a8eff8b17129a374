"""Writes the histories that `checker` reads: of what a soak wrote, and of what is found where it should have arrived.

Topic, log and copy are read with confluent-kafka, fastavro and delta-rs, and none of the code that is examined.
"""

import io
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import fastavro
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from deltalake import DeltaTable, QueryBuilder

from tests.soak.application import ItemRead
from tests.soak.part import Part

_PATIENCE = 60.0  # seconds without a record
_BETWEEN = 5.0  # seconds between two reads of the copy


class History:
    """A file of lines of JSON in a folder, for any number of threads."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self._file = (folder / f"{name}.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, **line: Any) -> None:
        text = json.dumps(line) + "\n"
        with self._lock:
            self._file.write(text)


def record_committed(folder: Path, part: Part) -> None:
    """Write down what the source says that it committed, in order within each item."""
    times = part.times()
    with History(folder, "committed") as history:
        for item, numbers in part.history().items():
            for number in numbers:
                at = times.get((item, number), 0.0)
                history.add(table=part.table, item=_item(item), version=part.row(number), at=at)


def record_reads(folder: Path, part: Part, reads: Iterable[ItemRead]) -> None:
    """Write down what an application was given."""
    with History(folder, "reads") as history:
        for read in reads:
            times = {"invoked": read.started, "completed": read.ended}
            history.add(who="application", table=part.table, item=_item(read.item), version=read.version, **times)


def record_topic(folder: Path, brokers: str, name: str, part: Part, prefix: str) -> None:
    """Write down the topic of a table as a reader finds it who knows what `schemas/README.md` says."""
    schemas = {
        b"\xc3\x01" + bytes.fromhex((message.key() or b"").decode()): fastavro.parse_schema(
            json.loads(message.value() or b"")
        )
        for message in _committed_on(brokers, f"{name}.schemas")
    }
    with History(folder, "topic") as history:
        for message in _committed_on(brokers, f"{prefix}.{part.table}"):
            value = message.value() or b""
            change: Any = fastavro.schemaless_reader(io.BytesIO(value[10:]), schemas[value[:10]])
            history.add(
                table=part.table,
                item=list(change["key"].values()),
                partition=message.partition(),
                offset=message.offset(),
                event=change["event_id"],
                old=_version(change["old"]),
                version=_version(change["new"]),
            )


def record_gaps(folder: Path, brokers: str, name: str, tables: Mapping[str, str]) -> None:
    """Write down the gaps. ``tables``: by source. A gap names positions, so its time is any before it was found."""
    with History(folder, "gaps") as history:
        for message in _committed_on(brokers, f"{name}.gaps"):
            gap = json.loads(message.value() or b"")
            history.add(table=tables[gap["source"]], **{"from": 0.0, "to": gap["found_at"]})


def record_applied(folder: Path, log: Path, tables: Mapping[str, str]) -> None:
    """Write down what the cache's consumer says in its log that it has applied. ``tables``: by topic."""
    with History(folder, "applied") as history:
        for line in log.read_bytes().splitlines(keepends=True):
            # A kill may cut a line off.
            if not (line.startswith(b"{") and line.endswith(b"}\n") and b'"batch"' in line):
                continue
            batch = json.loads(line)
            if batch.get("event") == "batch":
                for topic in tables.keys() & batch["end_offsets"].keys():  # it reads gaps and control records too
                    ends = batch["end_offsets"][topic]
                    for partition, end in ends.items():
                        history.add(table=tables[topic], partition=int(partition), end=end, at=batch["applied_at"])


def record_log(folder: Path, path: str) -> None:
    """Write down the ids of the events in the log."""
    with History(folder, "log") as history:
        for event in _rows(path, "event_id"):
            history.add(event=event["event_id"])


class CopyReader(threading.Thread):
    """Reads the copies in ``root`` again and again, and writes down what it sees, until `end`."""

    def __init__(self, folder: Path, root: Path, parts: Sequence[Part]) -> None:
        super().__init__(name="copy-reader", daemon=True)
        self.failure: BaseException | None = None
        self._history = History(folder, "copy")
        self._root = root
        self._parts = {part.table: part for part in parts}
        self._stopping = threading.Event()
        self._reads = 0

    def run(self) -> None:
        try:
            while not self._stopping.wait(_BETWEEN):
                self._read()
        except BaseException as error:  # raised by end()
            self.failure = error

    def end(self) -> None:
        """Read once more, and end. Raises what made a read fail."""
        self._stopping.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        self._read()
        self._history.__exit__()

    def _read(self) -> None:
        self._reads += 1
        for path in self._root.glob("*/*"):
            part = self._parts.get(path.name)
            if part is None or not DeltaTable.is_deltatable(str(path)):
                continue
            rows = list(_rows(str(path), "*"))
            self._history.add(table=part.table, read=self._reads)
            for row in rows:
                item, version = part.item_in(row)
                self._history.add(table=part.table, read=self._reads, item=_item(item), version=version)


def _rows(path: str, columns: str) -> Iterator[dict[str, Any]]:
    query = QueryBuilder().register("t", DeltaTable(path))
    found = query.execute(f"SELECT {columns} FROM t").read_all()
    names = found.schema.names
    for values in zip(*(column.to_pylist() for column in found.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def _item(item: Any) -> list[Any]:
    return list(item) if isinstance(item, tuple) else [item]


def _version(image: Any) -> int | None:
    if image is None:
        return None
    return int(json.loads(image)["version"]["N"] if isinstance(image, str) else image["version"])


def _committed_on(brokers: str, topic: str) -> Iterator[Message]:
    """Yield what is committed on a topic now, each partition in its order."""
    settings = {"group.id": "audit", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": brokers, **settings, "enable.partition.eof": True})
    try:
        if (known := consumer.list_topics(timeout=_PATIENCE).topics.get(topic)) is None:
            return
        left = set(known.partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        deadline = time.monotonic() + _PATIENCE
        while left:
            for message in consumer.consume(1000, timeout=0.2):
                deadline = time.monotonic() + _PATIENCE
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise RuntimeError(f"topic {topic}: {error.str()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"topic {topic}: no record for {_PATIENCE:g} s, though partitions {left} have more")
    finally:
        consumer.close()
