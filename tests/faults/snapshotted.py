"""A table of MariaDB or MySQL with rows from before the relay, whose snapshots are compared with it."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from relay.config import load
from relay.services.mariadb import MariaDB
from tests.faults.replicated import DATABASE, Replicated
from tests.faults.world import World
from tests.mysql.reading import NUMBERS, position_of

ROWS = 6_000
PACE = {"snapshot_rows_per_second": 2000}


class Snapshotted(World):
    """A primary with a replica, both listed in the config, with rows from before the relay runs.

    They are in the binlog after the position where it starts, unless ``source`` says otherwise.
    """

    def __init__(self, folder: Path, servers: str, name: str, primary: Any, replica: Any, **source: Any) -> None:
        self.servers = Replicated(primary, replica)
        self.name = name
        entry = self.servers.source("legacy") | {"start": {"gtid": {"-": position_of(primary)}}} | source
        seed = int(os.environ.get("RELAY_SEED") or 7)
        super().__init__(
            folder, servers, name, seed, connect=self.servers.connect, place=lambda _: DATABASE, source=entry
        )
        # Customers that nobody writes to, and all lines of those that the writers do.
        self.execute(f"insert items select n + 1000, 1, 1, 'before' from {NUMBERS.format(ROWS, '')} t")
        self.execute(f"insert items select n div 12, n mod 12, 1, 'before' from {NUMBERS.format(700, '')} t")
        replica.wait_for(primary.gtid)

    def execute(self, statement: str) -> Any:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"use {DATABASE}")
            recursion = (
                "max_recursive_iterations" if isinstance(self.servers.primary, MariaDB) else "cte_max_recursion_depth"
            )
            cursor.execute(f"set {recursion} = 100000")
            # Long ago, so that a snapshot does not have to wait for what was published.
            cursor.execute(f"set timestamp = {int(time.time()) - 3600}")
            cursor.execute("set @copying = 1")
            cursor.execute(statement)
            rows = cursor.fetchall()
            connection.commit()
            return rows

    def rows(self) -> dict[tuple[int, int], tuple[int, str]]:
        found = self.execute("select customer, line, version, note from items")
        return {(customer, line): (version, note) for customer, line, version, note in found}

    def check_that_one_snapshot_read_each_row_once(self) -> None:
        """I3, I7: whatever was killed meanwhile, and the copy is what the table is."""
        assert self.copy() == self.rows()
        reads = Counter((read["key"]["customer"], read["key"]["line"]) for read in self.reads())
        assert set(reads.values()) == {1}
        assert sum(customer > 1000 for customer, _ in reads) == ROWS
        partitions = load(self.path).kafka.partitions
        assert self.marks() == {"begin": partitions, "end": partitions}
