"""Streams a table with PyMySQL and sends each row's text with a bare idempotent producer; prints how fast.

Arguments: port, user, password, database, table, rows, brokers, topic.
"""

from __future__ import annotations

import json
import sys
import time

import pymysql
from confluent_kafka import Producer
from pymysql.cursors import SSCursor

_FIRST = 1000  # rows after which the measurement begins
_ENVELOPE = b" " * 120  # about what a change has beside its row


def main(port: str, user: str, password: str, database: str, table: str, rows: str, brokers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 5})
    connection = pymysql.connect(host="127.0.0.1", port=int(port), user=user, password=password, database=database)
    seen, begun, cpu = 0, 0.0, 0.0
    with connection.cursor(SSCursor) as cursor:
        cursor.execute(f"select * from {table} order by id")
        for row in cursor:
            seen += 1
            if seen == _FIRST:
                begun, cpu = time.monotonic(), time.process_time()
            value = ",".join(map(str, row)).encode() + _ENVELOPE
            while True:
                try:
                    producer.produce(topic, value, str(row[0]).encode())
                    break
                except BufferError:
                    producer.poll(0.05)
    left = producer.flush(60)
    seconds, used = time.monotonic() - begun, time.process_time() - cpu
    print(json.dumps({"rows": seen - left, "seconds": seconds * seen / (seen - _FIRST), "cpu": used}))
    assert seen == int(rows)


main(*sys.argv[1:])
