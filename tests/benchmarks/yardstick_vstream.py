"""The yardstick of VStream: gRPC's stub and protobuf's classes, in a plain loop that only counts rows.

``python yardstick_vstream.py VTGATE KEYSPACE SHARD GTID TABLE EXPECTED`` prints ``{"rows", "seconds", "cpu"}``: from
the first answer to the one with the last of the expected rows; ``cpu`` is in seconds of the process.
"""

from __future__ import annotations

import sys
import time

import grpc
import orjson

from relay.vitess.proto import vtgate_pb2 as pb

_ROW = 12


def main(vtgate: str, keyspace: str, shard: str, gtid: str, table: str, expected: str) -> None:
    channel = grpc.insecure_channel(vtgate, [("grpc.max_receive_message_length", -1)])
    stream = channel.unary_stream(
        "/vtgateservice.Vitess/VStream",
        request_serializer=pb.VStreamRequest.SerializeToString,
        response_deserializer=pb.VStreamResponse.FromString,
    )
    request = pb.VStreamRequest(
        tablet_type=1,
        vgtid=pb.VGtid(shard_gtids=[pb.ShardGtid(keyspace=keyspace, shard=shard, gtid=gtid)]),
        filter=pb.Filter(rules=[pb.Rule(match=table, filter=f"select * from {table}")]),
        flags=pb.VStreamFlags(exclude_keyspace_from_table_name=True),
    )
    rows, wanted, begun, cpu = 0, int(expected), 0.0, 0.0
    for response in stream(request):
        begun = begun or time.perf_counter()
        cpu = cpu or time.process_time()
        for event in response.events:
            if event.type == _ROW:
                rows += len(event.row_event.row_changes)
        if rows >= wanted:
            break
    taken = {"rows": rows, "seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
    print(orjson.dumps(taken).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
