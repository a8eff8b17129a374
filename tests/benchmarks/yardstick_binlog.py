"""The yardstick of binlogs: python-mysql-replication in a plain loop that only counts rows.

``python yardstick_binlog.py PORT USER PASSWORD DATABASE GTID EXPECTED`` prints ``{"rows", "seconds", "cpu"}``: from the
first rows to the last of the expected ones. Its environment does not have the relay, so it must not import it.
"""

from __future__ import annotations

import json
import sys
import time

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent


def main(port: str, user: str, password: str, database: str, gtid: str, expected: str) -> None:
    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": int(port), "user": user, "passwd": password},
        server_id=4242,
        only_events=[WriteRowsEvent],
        only_schemas=[database],
        auto_position=gtid,
        is_mariadb=True,
        blocking=True,
    )
    rows, wanted, begun, cpu = 0, int(expected), 0.0, 0.0
    for event in stream:
        begun = begun or time.perf_counter()
        cpu = cpu or time.process_time()
        rows += len(event.rows)
        if rows >= wanted:
            break
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}))


if __name__ == "__main__":
    main(*sys.argv[1:])
