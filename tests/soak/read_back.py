"""Reads log and copy with Spark, as any user of Delta would: ``python -m tests.soak.read_back CONFIG FOLDER``.

The folder gets ``log``, eight bytes of the event id of each row, and a file for each table of the copy, with its rows
as lines of JSON.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

import orjson

from relay.config import load
from tests.soak.topic import digest
from tests.spark_consumers.local_spark import spark


def main(path: Path, folder: Path) -> None:
    config = load(path)
    assert config.copy_ is not None
    assert config.log is not None
    copies = Path(config.copy_.url.removeprefix("delta://"))
    with spark() as session:
        ids = session.read.format("delta").load(config.log.path).select("event_id")
        logged = array("Q", (digest(row[0]) for row in ids.toLocalIterator(prefetchPartitions=True)))
        (folder / "log").write_bytes(logged.tobytes())
        for table in (log.parent for log in copies.glob("*/*/_delta_log")):
            rows = session.read.format("delta").load(str(table))
            found = [orjson.dumps(row.asDict(), default=str) for row in rows.collect()]
            (folder / table.name).write_bytes(b"\n".join(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
