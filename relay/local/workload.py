"""A workload whose every write is known: the ground truth that the demo and the fault tests compare with.

Each item belongs to one writer, so the order of its versions is known for certain; hash keys are shared by all
writers. A version is written once, so every write is one stream record.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

HASH_KEY, RANGE_KEY = "customer", "order_id"

Item = tuple[str, str]
"""Hash and range key."""


@dataclass(frozen=True, slots=True)
class Write:
    """One acknowledged write: ``version`` None is a delete. ``begun``, ``acknowledged``: epoch seconds."""

    item: Item
    version: int | None
    begun: float
    acknowledged: float
    warm_up: bool = False


def create_table(client: DynamoDBClient, table: str) -> None:
    """Create ``table`` with hash and range key and a stream of both images, and wait for it."""
    client.create_table(
        TableName=table,
        KeySchema=[
            {"AttributeName": HASH_KEY, "KeyType": "HASH"},
            {"AttributeName": RANGE_KEY, "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": HASH_KEY, "AttributeType": "S"},
            {"AttributeName": RANGE_KEY, "AttributeType": "N"},
        ],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    client.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1})


class Writer(threading.Thread):
    """Writes to items of its own: put, update, delete, batch-write and transact-write."""

    def __init__(
        self, client: DynamoDBClient, table: str, number: int, *, customers: int, orders: int, pause: float, seed: int
    ) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.client = client
        self.table = table
        self.pause = pause
        self.random = random.Random(f"{seed}-{number}")
        # Order ids of different writers never meet.
        self.items: list[Item] = [
            (f"customer-{c:03}", str(number * 1_000_000 + o)) for c in range(customers) for o in range(orders)
        ]
        self.writes: list[Write] = []
        self.failure: BaseException | None = None
        self._next: dict[Item, int] = defaultdict(int)
        self._alive: set[Item] = set()
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._write_once()
                if self.pause:
                    self._stopping.wait(self.random.expovariate(1 / self.pause))
        except BaseException as error:  # reported by Workload.stop
            self.failure = error

    def warm_up(self) -> None:
        """Write once to every item, in the caller's thread."""
        for item in self.items:
            self._single("put", item)
        self.writes = [replace(write, warm_up=True) for write in self.writes]

    def _write_once(self) -> None:
        kind = self.random.choices(("put", "update", "delete", "batch", "transact"), (40, 30, 12, 10, 8))[0]
        if kind == "batch":
            self._batch(self.random.sample(self.items, min(len(self.items), self.random.randint(2, 10))))
        elif kind == "transact":
            self._transact(self.random.sample(self.items, min(len(self.items), self.random.randint(2, 5))))
        else:
            self._single(kind, self.random.choice(self.items))

    def _single(self, kind: str, item: Item) -> None:
        begun = time.time()
        if kind == "delete" and item in self._alive:
            self.client.delete_item(TableName=self.table, Key=_key(item))
            self._wrote(item, None, begun)
            return
        version = self._version(item)
        if kind == "put":
            self.client.put_item(TableName=self.table, Item=self._image(item, version))
        else:
            image = self._image(item, version)
            self.client.update_item(
                TableName=self.table,
                Key=_key(item),
                UpdateExpression="SET version = :v, payload = :p, amount = :t, tags = :g",
                ExpressionAttributeValues={
                    ":v": image["version"],
                    ":p": image["payload"],
                    ":t": image["amount"],
                    ":g": image["tags"],
                },
            )
        self._wrote(item, version, begun)

    def _batch(self, items: list[Item]) -> None:
        requests: list[Any] = []
        done: list[tuple[Item, int | None]] = []
        for item in items:
            if item in self._alive and self.random.random() < 0.2:
                requests.append({"DeleteRequest": {"Key": _key(item)}})
                done.append((item, None))
            else:
                version = self._version(item)
                requests.append({"PutRequest": {"Item": self._image(item, version)}})
                done.append((item, version))
        begun = time.time()
        waiting: dict[str, Any] = {self.table: requests}
        while waiting:
            waiting = dict(self.client.batch_write_item(RequestItems=waiting).get("UnprocessedItems") or {})
        for item, written in done:
            self._wrote(item, written, begun)

    def _transact(self, items: list[Item]) -> None:
        actions: list[Any] = []
        done: list[tuple[Item, int | None]] = []
        for item in items:
            if item in self._alive and self.random.random() < 0.2:
                actions.append({"Delete": {"TableName": self.table, "Key": _key(item)}})
                done.append((item, None))
            else:
                version = self._version(item)
                actions.append({"Put": {"TableName": self.table, "Item": self._image(item, version)}})
                done.append((item, version))
        begun = time.time()
        self.client.transact_write_items(TransactItems=actions)
        for item, written in done:
            self._wrote(item, written, begun)

    def _version(self, item: Item) -> int:
        self._next[item] += 1
        return self._next[item]

    def _wrote(self, item: Item, version: int | None, begun: float) -> None:
        self.writes.append(Write(item, version, begun, time.time()))
        if version is None:
            self._alive.discard(item)
        else:
            self._alive.add(item)

    def _image(self, item: Item, version: int) -> dict[str, Any]:
        return {
            **_key(item),
            "version": {"N": str(version)},
            "amount": {"N": f"{self.random.randint(1, 10**12)}.{self.random.randint(1, 9)}"},
            "tags": {"SS": [f"t{n}" for n in sorted(self.random.sample(range(100), 3))]},
            "payload": {"S": "".join(self.random.choices("abcdefghijklmnopqrstuvwxyz ", k=80))},
        }


class Workload:
    """Several writers at once. ``pause``: mean seconds between two writes of one writer."""

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        *,
        writers: int = 4,
        customers: int = 25,
        orders: int = 4,
        pause: float = 0.03,
        seed: int = 1,
    ) -> None:
        self.writers = [
            Writer(client, table, n, customers=customers, orders=orders, pause=pause, seed=seed) for n in range(writers)
        ]

    @property
    def items(self) -> list[Item]:
        return [item for writer in self.writers for item in writer.items]

    def start(self) -> None:
        for writer in self.writers:
            writer.start()

    def warm_up(self) -> None:
        """Write every item once, before ``start``, so that all parts have something to begin with."""
        for writer in self.writers:
            writer.warm_up()

    def count(self) -> int:
        return sum(len(writer.writes) for writer in self.writers)

    def stop(self) -> dict[Item, list[Write]]:
        """Stop, and return the acknowledged writes of every item, in order. Raises a writer's failure."""
        for writer in self.writers:
            writer.stop()
        history: dict[Item, list[Write]] = {}
        for writer in self.writers:
            writer.join()
            if writer.failure is not None:
                raise writer.failure
            for write in writer.writes:
                history.setdefault(write.item, []).append(write)
        return history


def _key(item: Item) -> dict[str, Any]:
    return {HASH_KEY: {"S": item[0]}, RANGE_KEY: {"N": item[1]}}


CACHE_KEY = f"order:{{{HASH_KEY}}}:{{{RANGE_KEY}}}"
"""The cache key's template, over the table's columns."""


def cache_key(item: Item) -> str:
    return CACHE_KEY.format(**{HASH_KEY: item[0], RANGE_KEY: item[1]})


def primary_key(key: str) -> dict[str, Any]:
    """Return the primary key behind a cache key."""
    _, customer, order = key.split(":")
    return _key((customer, order))
