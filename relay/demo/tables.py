"""Reads the log and the copy with Spark, as any user of Delta would.

``python -m relay.demo.tables CONFIG TABLE GO ANSWER`` starts Spark, and reads once the file GO is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from relay.config import Config, load
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, version_in
from relay.errors import RelayError
from relay.process.managed import ManagedProcess
from spark_consumers.locations import spark_path, table_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_copy(session: SparkSession, config: Config, table: str) -> dict[Item, int]:
    """Return the version of every row of the copy that is not deleted."""
    assert config.copy_ is not None
    path = table_folder(spark_path(config.copy_.url), config.sources[0].name, table)
    rows = session.read.format("delta").load(path).where("not _relay_deleted")
    # The rows of SQL tables have their columns, and DynamoDB's rows are items.
    image = "item" if "item" in rows.columns else "version"
    return {
        (row[HASH_KEY], str(row[RANGE_KEY])): version_in(row["item"] if image == "item" else row.asDict())
        for row in rows.select(HASH_KEY, RANGE_KEY, image).collect()
    }


def read_log(session: SparkSession, config: Config) -> list[str]:
    assert config.log is not None
    return [
        row[0] for row in session.read.format("delta").load(spark_path(config.log.path)).select("event_id").collect()
    ]


@contextmanager
def spark() -> Iterator[SparkSession]:
    """Open a session for this process, and end its JVM at the end."""
    from spark_consumers.session import close_session, open_session

    session = open_session("relay demo", delta=True)
    try:
        yield session
    finally:
        close_session(session)


class TableReader:
    """A process that reads the log and the copy, so that Spark can start while the consumers still work.

    ``config``: the file. ``stop`` ends the process at any time.
    """

    def __init__(self, config: Path, table: str) -> None:
        self._go, self._answer = config.with_name("read-tables"), config.with_name("tables.json")
        command = [sys.executable, "-m", "relay.demo.tables", str(config), table, str(self._go), str(self._answer)]
        self._process = ManagedProcess(command, config.with_name("tables.log"))
        self._process.start()

    def read(self) -> tuple[dict[Item, int], list[str]]:
        """Return the versions in the copy, and the event ids in the log. Raises ``RelayError``."""
        self._go.touch()
        self._process.process.wait()
        if self._process.returncode:
            raise RelayError(f"the log and the copy cannot be read:\n{self._process.log_tail()}")
        found = orjson.loads(self._answer.read_bytes())
        return {(customer, order): version for customer, order, version in found["copy"]}, found["log"]

    def stop(self) -> None:
        self._process.stop(1.0)


def main() -> None:
    path, table, go, answer = sys.argv[1:]
    config = load(Path(path))
    with spark() as session:
        while not Path(go).exists():
            time.sleep(0.05)
        copied, logged = read_copy(session, config, table), read_log(session, config)
        found = {"copy": [(*item, version) for item, version in copied.items()], "log": logged}
        Path(answer).write_bytes(orjson.dumps(found))


if __name__ == "__main__":
    main()
