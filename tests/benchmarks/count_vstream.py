"""Counts the rows of a VStream with the relay's own HTTP/2 client, in the same loop as ``yardstick_vstream.py``.

``python count_vstream.py VTGATE KEYSPACE SHARD GTID TABLE EXPECTED`` prints ``{"rows", "seconds", "cpu"}``.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing

import orjson

from relay.vitess.client import Vtgate
from relay.vitess.proto import vtgate_pb2 as pb

_ROW = 12


def main(vtgate: str, keyspace: str, shard: str, gtid: str, table: str, expected: str) -> None:
    rows, wanted, begun, cpu = 0, int(expected), 0.0, 0.0
    with closing(Vtgate(vtgate)) as gate:
        call = gate.vstream(
            [pb.ShardGtid(keyspace=keyspace, shard=shard, gtid=gtid)],
            {table: f"select * from {table}"},
            tablet_type="PRIMARY",
        )
        while rows < wanted:
            for answer in call.take(1.0):
                begun = begun or time.perf_counter()
                cpu = cpu or time.process_time()
                for event in pb.VStreamResponse.FromString(answer).events:
                    if event.type == _ROW:
                        rows += len(event.row_event.row_changes)
    taken = {"rows": rows, "seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
    print(orjson.dumps(taken).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
