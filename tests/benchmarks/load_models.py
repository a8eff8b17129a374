"""The contender of ``models_load``: reads a number of objects from stdin, loads as many, and prints time and sum."""

from __future__ import annotations

import gc
import os
import sys
import time
from decimal import Decimal

import boto3
from botocore.config import Config

from relay.dynamodb.models import Attribute, Engine, Model, hash_key, range_key


class Order(Model, table="orders"):
    customer: Attribute[str] = hash_key()
    number: Attribute[int] = range_key()
    version: Attribute[int]
    total: Attribute[Decimal]
    note: Attribute[str | None]
    tags: Attribute[set[str]]


def main(url: str) -> None:
    os.sched_setaffinity(0, {0})
    client = boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="bench",
        aws_secret_access_key="bench",
        config=Config(retries={"total_max_attempts": 1}),
    )
    engine = Engine(client)
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
