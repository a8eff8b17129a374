"""The yardstick of ``models_load``: Bloop 3.1.1, with the same class, as ``load_models`` has it."""

from __future__ import annotations

import gc
import os
import sys
import time
from typing import Any

import boto3
from bloop import BaseModel, Column, Engine, Integer, Number, Set, String
from botocore.config import Config


class Order(BaseModel):  # type: ignore[misc]
    class Meta:
        table_name = "orders"

    customer = Column(String, hash_key=True)
    number = Column(Integer, range_key=True)
    version = Column(Integer)
    total = Column(Number)
    note = Column(String)
    tags = Column(Set(String))


def main(url: str) -> None:
    os.sched_setaffinity(0, {0})
    settings: Any = {"region_name": "us-east-1", "aws_access_key_id": "bench", "aws_secret_access_key": "bench"}
    clients = [
        boto3.client(name, endpoint_url=url, config=Config(retries={"total_max_attempts": 1}), **settings)
        for name in ("dynamodb", "dynamodbstreams")
    ]
    engine = Engine(dynamodb=clients[0], dynamodbstreams=clients[1])
    engine.bind(Order, skip_table_setup=True)
    for line in sys.stdin:
        distinct = int(line) // 4
        objects = [
            Order(customer=f"customer-{number % 5000:05}", number=number)
            for _ in range(4)
            for number in range(distinct)
        ]
        gc.collect()
        begun = time.process_time()
        engine.load(*objects)
        taken = time.process_time() - begun
        print(taken, sum(each.version for each in objects), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
