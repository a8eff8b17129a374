"""The yardstick of Bloop 3.1.1: its coordinator, without the object mapper, which would only add time."""

from __future__ import annotations

from bloop.session import SessionWrapper
from bloop.stream.coordinator import Coordinator
from yardstick_sink import Sink, arguments, client


def main() -> None:
    url, arn, servers, topic, expected = arguments()
    sink = Sink(servers, topic)
    session = SessionWrapper(dynamodb=client("dynamodb", url), dynamodbstreams=client("dynamodbstreams", url))
    coordinator = Coordinator(session=session, stream_arn=arn)
    coordinator.move_to("trim_horizon")
    left = expected
    while left:
        record = next(coordinator)
        if record is None:
            continue
        left -= 1
        event = record["meta"]["event"]
        sink.send(
            event["type"],
            "",
            record["meta"]["sequence_number"],
            int(record["meta"]["created_at"].timestamp()),
            record["key"],
            record["old"],
            record["new"],
        )
    sink.close()


if __name__ == "__main__":
    main()
