"""``python -m tests.dynamodb.models.counting URL PREFIX NAME GOAL``: counts by atomic saves until the total is GOAL.

Each increment also adds to the writer's own count, in the same save. So a writer that starts again, or whose save was
refused, reads what it has done from the item, whether an answer was lost or not.
"""

from __future__ import annotations

import sys

import boto3

from relay.dynamodb.models import Attribute, ConstraintViolation, Engine, Model, hash_key


class Tally(Model, table="tally"):
    id: Attribute[str] = hash_key()
    total: Attribute[int]
    of: Attribute[dict[str, int]]


def tally(engine: Engine) -> Tally:
    found = Tally(id="a")
    engine.load(found, consistent=True)
    return found


def main(url: str, prefix: str, name: str, goal: int) -> None:
    client = boto3.client("dynamodb", endpoint_url=url, region_name="us-east-1")
    engine = Engine(client, table_name=lambda table: f"{prefix}-{table}")
    counter = tally(engine)
    while counter.total < goal:
        before = counter.of.get(name, 0)
        counter.total += 1
        counter.of[name] = before + 1
        try:
            engine.save(counter, atomic=True)
        except ConstraintViolation:
            counter = tally(engine)
            print("refused", before, flush=True)
        else:
            # Only what was not refused is said to be done.
            print("done", before + 1, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
