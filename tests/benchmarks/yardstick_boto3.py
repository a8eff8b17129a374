"""The yardstick of a hand-written reader: boto3, with a thread for each shard."""

from __future__ import annotations

import threading
from typing import Any

from yardstick_sink import Sink, arguments, client


def main() -> None:
    url, arn, servers, topic, _ = arguments()
    streams = client("dynamodbstreams", url)
    sink = Sink(servers, topic)
    shards = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    threads = [threading.Thread(target=_read, args=(streams, arn, shard["ShardId"], sink)) for shard in shards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()


def _read(streams: Any, arn: str, shard: str, sink: Sink) -> None:
    iterator = streams.get_shard_iterator(StreamArn=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    while iterator is not None:
        answer = streams.get_records(ShardIterator=iterator, Limit=1000)
        for record in answer["Records"]:
            data = record["dynamodb"]
            sink.send(
                record["eventName"],
                shard,
                data["SequenceNumber"],
                int(data["ApproximateCreationDateTime"].timestamp()),
                data["Keys"],
                data.get("OldImage"),
                data.get("NewImage"),
            )
        iterator = answer.get("NextShardIterator")


if __name__ == "__main__":
    main()
