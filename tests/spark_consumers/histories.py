"""Random histories of a table, with all that makes an order hard to tell, and what the rule makes of them."""

from __future__ import annotations

import random
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from relay.change import REDRIVEN, Images, Operation
from relay.token import EventToken, OriginToken
from spark_consumers.fold import ChangeHead, StoredRow, VerdictCounts, fold, group_by_item
from spark_consumers.sinks.target import STATE, state
from tests.spark_consumers.batches import Published, change, layout, read
from tests.spark_consumers.scenarios import CopyInTest

LAYOUTS = {
    0: layout({"id": "string", "part": "int"}, {"id": "string", "part": "int", "note": "string"}),
    1: layout({"id": "string", "part": "int"}, {"id": "string", "part": "int", "note": "string", "more": "string"}),
}
KEYS = [(text, str(number)) for text in ("a", "Ä\t\\", "z'\n\"$") for number in (-5, 9, 10)]
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
POSITIONS = {
    "dynamodb": "DynamoDB/{}".format,
    "mariadb": "MariaDB/0-1-{}".format,
    "mariadb of two domains": "MariaDB/0-1-7,1-2-{}".format,
    "mysql": f"MySQL56/{UUID}:1-{{}}".format,
    "mysql with a hole": f"MySQL56/{UUID}:1-3:5-{{}}".format,
    "mysql, one number beside another": f"MySQL56/{UUID}:1:{{}}".format,
}
ODD = ("stub", "redriven", "nul", "origin", "no timestamp", "shard", "read", "server", "same transaction", "topic")


@dataclass
class History:
    """``oddity``: how many of a hundred changes have no plain token, or none that ascends."""

    chance: random.Random
    oddity: int
    number: int = 8
    shard: int = 0
    offsets: list[int] = field(default_factory=lambda: [0, 0])
    published: list[Published] = field(default_factory=list)

    def read_all(self) -> None:
        """Publish all rows, as an initial snapshot has read them. They have no token."""
        for key in KEYS:
            self.number += 1
            image = {"id": key[0], "part": int(key[1]), "note": f"read {self.number}", "more": None}
            placed = self._placed(read(self.number, key, image, as_of=999), "")
            self.published.append(replace(placed, layout=1))

    def publish(self, changes: int) -> None:
        position = POSITIONS[self.chance.choice(sorted(POSITIONS))]
        for _ in range(changes):
            self.number += self.chance.choice([1, 1, 95])
            odd = self.chance.choice(ODD) if self.chance.randrange(100) < self.oddity else ""
            self.published.append(self._placed(self._change(position(self.number), odd), odd))

    def _change(self, position: str, odd: str) -> Published:
        key: tuple[str, ...] = self.chance.choice(KEYS)
        text = self.chance.choice(["", "tab\t", "line\nback\\slash", "\\N", "quote'\"", "ü\r"]) + str(self.number)
        image: dict[str, Any] | None = {"id": key[0], "part": int(key[1]), "note": text}
        numbered = self.chance.choice([0, 1])
        if numbered == 1 and image is not None:
            image["more"] = self.chance.choice([None, f"more {self.number}"])
        operation = self.chance.choice([Operation.INSERT, Operation.UPDATE, Operation.UPDATE, Operation.DELETE])
        self.shard += odd == "shard"
        token = EventToken(1000 + self.number // 100, f"shop/shop/{self.shard}", position)
        if operation is Operation.DELETE or odd == "stub":
            image = None
        if odd == "nul" and image is not None:
            image["note"] = "a\0b"
        if odd == "origin":
            token = replace(token, origin=OriginToken(token.timestamp, "shop/shop/old", "MariaDB/0-1-1"))
        if odd == "no timestamp":
            token = replace(token, timestamp=0)
        if odd == "server":
            token = replace(token, position=f"MariaDB/0-9-{self.number}")
        if odd == "same transaction" and self.published and self.published[-1].head.token is not None:
            token = self.published[-1].head.token
        if odd == "read" and image is not None:
            return read(self.number, key, image, as_of=1000 + self.number // 100)
        if odd == "redriven" and image is not None and self.published:
            stub = self.chance.choice(self.published).head
            key, token = stub.key, stub.token or token
            image |= {"id": key[0], "part": int(key[1])}
            more: dict[str, Any] = {"token": token, "event_id": stub.event_id, "attributes": {REDRIVEN: "true"}}
            return change(self.number, key, image, operation, layout=numbered, **more)
        images = Images.OMITTED if odd == "stub" else Images.NEW_AND_OLD
        operation = Operation.UPDATE if odd == "stub" else operation
        return change(self.number, key, image, operation, layout=numbered, token=token, images=images)

    def _placed(self, each: Published, odd: str) -> Published:
        """Give a change its place on the topic: an item has one partition."""
        topic = "other.orders" if odd == "topic" else "shop.orders"
        partition = KEYS.index((each.head.key[0], each.head.key[1])) % 2
        self.offsets[partition] += 1
        place = replace(each.head.place, topic=topic, partition=partition, offset=self.offsets[partition])
        new = None if each.image is None else (partition, place.offset)
        layout = each.layout if each.head.operation is not Operation.READ else 0
        return replace(each, head=replace(each.head, place=place, new=new), layout=layout)


def batches(seed: int, *, changes: int = 100, oddity: int = 12) -> list[list[Published]]:
    """Return batches in which changes come again as after restarts, and some at new offsets, as after a reset."""
    chance = random.Random(seed)
    history = History(chance, oddity)
    history.read_all()
    found, begin = [list(history.published)], len(history.published)
    changes += begin
    while len(history.published) < changes:
        history.publish(chance.randint(20, 50))
    while begin < changes:
        end = begin + chance.randint(5, 50)
        found.append(history.published[begin:end])
        # A driver that was killed, or is behind, starts again at an earlier change.
        begin = chance.choice([end, end, max(0, end - chance.randint(1, 30))])
    again = history.published[-20:]
    placed = [history._placed(replace(each), "") for each in again]
    behind = history.published[-40:-20]
    return [*(batch for batch in found if batch), behind, [*again, *placed]]


def by_the_rule(of_seed: list[list[Published]]) -> list[tuple[VerdictCounts, list[tuple[Any, ...]]]]:
    """Return the counts of each batch, and the rows after it."""
    rows: dict[tuple[str, ...], StoredRow | None] = {}
    found = []
    for batch in of_seed:
        counts = VerdictCounts()
        heads = [_with_image(each) for each in batch]
        for topic in sorted({head.place.topic for head in heads}):  # one after another, as `copy.apply` takes them
            for key, heads_of in group_by_item([head for head in heads if head.place.topic == topic]).items():
                rows[key] = fold(rows.get(key), heads_of, counts)
        found.append((counts, sorted(_row(key, row) for key, row in rows.items() if row is not None)))
    return found


def _with_image(each: Published) -> ChangeHead:
    """Return the head with the image in the place of where it is, since the rule keeps it as it is."""
    image: Any = None if each.image is None else tuple(each.image.items())
    return replace(each.head, new=image)


def _row(key: tuple[str, ...], row: StoredRow) -> tuple[Any, ...]:
    image = dict(row.item or ())
    return (key[0], int(key[1]), repr(image.get("note")), repr(image.get("more")), *map(repr, state(row)))


def rows_in(table: CopyInTest) -> list[tuple[Any, ...]]:
    found = table.rows("id", "part", "note", "more", *STATE, deleted=True)
    return sorted((row[0], row[1], *map(repr, row[2:])) for row in found)


def compare_with_the_rule(table: CopyInTest, seed: int, *, keeps_nul: bool = True, **more: int) -> None:
    """Play a history into an empty table. AssertionError at the first batch after which table and rule differ.

    ``keeps_nul``: whether it keeps texts with a NUL character in their column. ``more``: of ``batches``.
    """
    of_seed = batches(seed, **more)
    for number, (batch, (counts, rows)) in enumerate(zip(of_seed, by_the_rule(of_seed), strict=True)):
        of_batch = f"seed {seed}, batch {number}: {[astuple(each.head) for each in batch]}"
        assert table.play(LAYOUTS, *batch) == counts, of_batch
        expected = rows if keeps_nul else sorted((*row[:2], _without_nul(row[2]), *row[3:]) for row in rows)
        assert rows_in(table) == expected, of_batch


def _without_nul(shown: str) -> str:
    return repr(None) if r"\x00" in shown else shown
