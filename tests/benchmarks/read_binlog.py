"""Counts rows with our binlog reader. Arguments and output are those of ``yardstick_binlog.py``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import closing

import orjson

from relay.gtid import parse
from relay.mysql.binlog.events import Rows
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import connect
from relay.mysql_dialect.tables import Table, lay_out
from relay.table import Column


def main(port: str, user: str, password: str, database: str, gtid: str, expected: str) -> None:
    def layout(_database: str, name: str, columns: Sequence[Column], primary: Sequence[str]) -> Table:
        return lay_out("s", name, columns, primary)

    server = connect("127.0.0.1", int(port), user, password)
    rows, wanted, begun, cpu = 0, int(expected), 0.0, 0.0
    start = parse(f"MariaDB/{gtid}")
    with closing(server), closing(BinlogEvents(server, start, layout, lambda where, _: where == database)) as stream:
        while rows < wanted:
            for event in stream.read(10.0):
                if isinstance(event, Rows):
                    begun = begun or time.perf_counter()
                    cpu = cpu or time.process_time()
                    rows += len(event.changes)
    taken = {"rows": rows, "seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
    print(orjson.dumps(taken).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
