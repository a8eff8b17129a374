"""A change log made up row by row, beside the table that it is the log of."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from relay.token import EventToken

START = 1_700_000_000
SHARDS = ("-80", "80-")


@dataclass
class LoggedTable:
    """A table in two shards, and its log. ``rows``: by id, the value of each row.

    ``unsure``: the ids of rows whose last change is a stub. ``moments``: what the table had at times in seconds.
    """

    name: str
    rows: dict[int, str] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    log: list[dict[str, Any]] = field(default_factory=list)
    now: float = START
    position: int = 9
    offsets: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    moments: list[tuple[float, dict[str, tuple[str, bool]]]] = field(default_factory=list)
    lost: bool = False

    def change(self, operation: str, id: int, value: str | None, *, stub: bool = False) -> None:
        """Log a change of a row. ``stub``: without its images."""
        if stub and operation != "DELETE":
            self.unsure.add(id)
        elif operation == "DELETE":
            self.rows.pop(id, None)
            self.unsure.discard(id)
        else:
            self.rows[id] = value or ""
            self.unsure.discard(id)
        self.add(operation, id, None if stub else value, partition=id % 2, stub=stub)

    def lose(self, id: int) -> None:
        """Delete a row in a gap."""
        self.rows.pop(id, None)
        self.unsure.discard(id)
        self.lost = True

    def truncate(self) -> None:
        """Empty all shards: each logs it, in one of the partitions."""
        for shard in SHARDS:
            self.add("TRUNCATE", None, None, partition=random.Random(self.position).randint(0, 1), shard=shard)
        self.rows.clear()
        self.unsure.clear()

    def snapshot(self) -> None:
        """Read all rows, some of which change meanwhile."""
        snapshot = {"snapshot_id": f"s{self.position}", "snapshot_as_of": int(self.now)}
        self.add("READ", None, None, partition=0, attributes={"snapshot": "begin"}, **snapshot)
        for id in sorted(self.rows):
            self.now += 0.3
            if id % 3 == 0:
                self.change("UPDATE", id, f"during {self.position}")
            self.add("READ", id, self.rows[id], partition=id % 2, **{**snapshot, "snapshot_as_of": int(self.now)})
        self.add("READ", None, None, partition=1, attributes={"snapshot": "end"}, **snapshot)
        self.unsure.clear()
        self.lost = False

    def remember(self) -> None:
        """Note what the table has now, and let time pass."""
        if not self.lost:
            there = {id: (value, id in self.unsure) for id, value in self.rows.items()}
            self.moments.append((self.now, {f'{{"id":{id}}}': row for id, row in there.items()}))

    def add(self, operation: str, id: int | None, value: str | None, *, partition: int = 0, **more: Any) -> None:
        """Log something. ``more``: columns of the row, its ``shard``, and whether it is a ``stub``."""
        self.position += 1
        self.offsets[partition] += 1
        shard = more.pop("shard", SHARDS[(id or 0) % 2])
        stub = more.pop("stub", False)
        at = f"MariaDB/0-1-{self.position}"
        token = EventToken(int(self.now), f"shop/shop/{shard}", at) if operation != "READ" else None
        time = datetime.fromtimestamp(self.now, UTC)
        row = {
            "day": time.date(),
            "source": "shop",
            "table": self.name,
            "committed_at": time,
            "event_id": f"e{self.position}",
            "operation": operation,
            "key": None if id is None else f'{{"id":{id}}}',
            "topic": "shop.orders",
            "partition": partition,
            "offset": self.offsets[partition],
            "images": "OMITTED" if stub else "NEW_AND_OLD",
            "new": None if value is None else json.dumps({"id": id, "value": value}),
            "attributes": {},
        }
        if token is not None:
            row |= {"token_timestamp": token.timestamp, "token_shard": token.shard, "token_position": token.position}
            row["token"] = token.to_json()
        self.log.append(row | more)


def random_table(seed: int, steps: int) -> LoggedTable:
    """Return a table after changes of all kinds, many in one second."""
    chance, table = random.Random(seed), LoggedTable(f"random_{seed}")
    for step in range(steps):
        table.now += chance.choice([0.001, 0.2, 3.0])
        id, kind = chance.randint(1, 6), chance.random()
        if id in table.unsure and kind < 0.5:
            table.change("UPDATE", id, f"v{step}")
        elif kind < 0.03:
            table.now += 300  # a snapshot may read rows past a TRUNCATE that comes sooner
            table.truncate()
        elif kind < 0.08 and not table.unsure:
            table.now += 2
            table.snapshot()
            table.now += 2
        elif kind < 0.12 and id in table.rows and not table.lost:
            table.lose(id)
        elif id not in table.rows:
            table.change("INSERT", id, f"v{step}")
        elif kind < 0.4:
            table.change("DELETE", id, None)
        else:
            table.change("UPDATE", id, f"v{step}", stub=kind > 0.9)
        table.remember()
    return table


def special_table() -> LoggedTable:
    """Return a table with what the random ones do not have."""
    table = LoggedTable("special")
    table.add("INSERT", 1, "a", shard="-")
    table.add("UPDATE", 1, "late", shard="-", key='{"id":"1"}')  # BIGINT has become BIGINT UNSIGNED
    table.add("INSERT", 2, "before the reshard", shard="-")
    table.add("INSERT", 3, "of another shard", shard="80-")
    table.add("READ", 4, "read shortly before", snapshot_id="s", snapshot_as_of=START)
    table.now += 10
    table.add("UPDATE", 1, "b", shard="-")
    # The relay was reset, and this one had been lost before.
    table.add("UPDATE", 1, "c", shard="-", token_timestamp=START + 1)
    table.now += 10
    table.add("TRUNCATE", None, None, shard="-80")
    table.add("INSERT", 5, "in the second of the TRUNCATE", shard="-80", partition=1)
    return table


AT_THE_END = {
    '{"id":1}': ("b", True),
    '{"id":2}': ("before the reshard", True),
    '{"id":3}': ("of another shard", False),
    '{"id":4}': ("read shortly before", True),
    '{"id":5}': ("in the second of the TRUNCATE", False),
}
"""The rows of `special_table`: of three the TRUNCATE of one shard leaves it open whether they are there."""

TABLES = [special_table(), *(random_table(seed, 60) for seed in range(20))]
