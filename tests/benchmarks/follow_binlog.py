"""Follows a MariaDB with our binlog reader alone, and prints how old rows are when they are read, in ms.

Arguments: port, user, password, database, the GTID to begin at, how many rows to read, and how many not to count.
"""

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

EVERY = 20


def main(port: str, user: str, password: str, database: str, gtid: str, expected: str, warm_up: str) -> None:
    def layout(_database: str, name: str, columns: Sequence[Column], primary: Sequence[str]) -> Table:
        return lay_out("s", name, columns, primary)

    server = connect("127.0.0.1", int(port), user, password)
    rows, ages = 0, []
    start = parse(f"MariaDB/{gtid}")
    with closing(server), closing(BinlogEvents(server, start, layout, lambda where, _: where == database)) as stream:
        while rows < int(expected):
            for event in stream.read(10.0):
                if not isinstance(event, Rows):
                    continue
                now = time.time() * 1000
                for _, new in event.changes:
                    rows += 1
                    if rows > int(warm_up) and rows % EVERY == 0 and new is not None:
                        ages.append(now - new[1] / 1000)
    print(orjson.dumps(ages).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
