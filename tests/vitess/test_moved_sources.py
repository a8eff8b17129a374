"""A keyspace as a source when MoveTables has taken one of its tables to another keyspace, from a real vtgate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.change import Snapshot
from relay.config import VitessConfig
from relay.errors import Unavailable
from relay.records import Plan, Shard, ShardCheckpoint, ShardState
from relay.services.vitess import Vitess
from relay.source import Opening, Page, Segment
from relay.stream.journals import check_participants, shards_of
from relay.stream.planning import key_of
from relay.vitess.source import VitessSource
from tests import needs
from tests.vitess.reading import is_at_head, until

pytestmark = pytest.mark.services

_VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {
        "customer": {"column_vindexes": [{"column": "town", "name": "hash"}]},
        "other": {"column_vindexes": [{"column": "id", "name": "hash"}]},
    },
}
CUSTOMER = "create table customer (id bigint, town bigint, v int, primary key (id, town))"
OTHER = "create table other (id bigint primary key)"
HERE, THERE = "here", "there"
SHARDS = ["-80", "80-"]


@pytest.fixture
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    with Vitess(
        keyspaces={HERE: SHARDS, THERE: ["0"]},
        schemas={HERE: (f"{CUSTOMER}; {OTHER}", _VSCHEMA), THERE: (CUSTOMER, {"tables": {"customer": {}}})},
    ) as own:
        yield own


def connected(cluster: Vitess, label: str | None = None, **settings: Any) -> VitessSource:
    source = VitessSource(
        VitessConfig.model_validate(
            {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": HERE, **settings}
        )
    )
    source.connect(label)
    return source


class Followed:
    """The plan and the checkpoints of a source, as a relay keeps them."""

    def __init__(self, source: VitessSource) -> None:
        shards = source.shards()
        points = source.starting_points(shards)
        keys = {table.table: key_of(table) for table in source.tables()}
        hashed = {table.table: table.hash_columns for table in source.tables()}
        self.plan = Plan("current", 0.0, dict(points.shards), keys, hashed=hashed)
        self.checkpoints: dict[str, ShardCheckpoint] = {}

    def shard(self, name: str) -> Shard:
        """Return the newest shard with a name."""
        return [each for each in shards_of(self.plan, self.checkpoints) if each.name == name][-1]

    def read(self, source: VitessSource, name: str) -> list[tuple[str, str, Any]]:
        """Read the newest shard with a name to its end, or to its head, and return its changes."""
        shard = self.shard(name)
        opening = Opening(
            shard,
            self.plan.start_of(shard),
            self.checkpoints.get(shard.id),
            keys=self.plan.keys,
            hashed=self.plan.hashed,
        )
        with closing(source.open(opening)) as reader:
            pages = until(reader, lambda page: page.finished or is_at_head(page))
        journal = pages[-1].journal
        if journal:
            check_participants(journal, shard, self.plan, self.checkpoints)
        self.checkpoints[shard.id] = ShardCheckpoint(
            ShardState.FINISHED if journal else ShardState.READING,
            pages[-1].position,
            parents=shard.parents,
            start=opening.start,
            journal=journal,
        )
        return changes(pages)


def changes(pages: list[Page]) -> list[tuple[str, str, Any]]:
    return [
        (change.operation.value, change.table, change.key and [*change.key.values()])
        for page in pages
        for change in page.changes
    ]


@pytest.mark.parametrize("tables", [None, ["customer", "other"], ["customer"]])
def test_a_table_is_followed_to_another_keyspace_with_its_key_and_its_snapshots(
    cluster: Vitess, tables: list[str] | None
) -> None:
    """I2, I3, I7: the other keyspace has no vindex for it. Its removal from the first one empties no copy."""
    others = tables != ["customer"]
    source = connected(cluster, tables=tables)
    with closing(source):
        followed = Followed(source)
        cluster.execute("insert into customer (id, town, v) values (1, 1, 1), (2, 4, 1)", HERE)
        cluster.journal([(HERE, shard) for shard in SHARDS], [(THERE, "0")], ["customer"])
        cluster.execute("insert into customer (id, town, v) values (3, 1, 1)", THERE)
        cluster.execute("insert into customer (id, town, v) values (3, 1, 1)", HERE)  # replicated back
        cluster.execute("insert into other (id) values (1)", HERE)
        assert followed.read(source, "-80") == [("INSERT", "customer", [1, 1])]
        assert followed.read(source, "80-") == [("INSERT", "customer", [4, 2])]
        for statement in ("drop table customer", "alter vschema drop table customer"):  # as Complete does
            cluster.execute(statement, HERE)
        cluster.execute("insert into other (id) values (2)", HERE)
    again = connected(cluster, HERE, tables=tables)  # it no longer has the table
    with closing(again):
        rest = [("INSERT", "other", [1]), ("INSERT", "other", [2])]
        assert followed.read(again, "-80") == (rest if others else [])
        assert followed.read(again, "80-") == []
        with pytest.raises(
            Unavailable, match="the snapshot has to wait until the relay has begun to read shard there/0"
        ):
            again.snapshots.measure(followed.checkpoints)
        assert followed.read(again, "there/0") == [("INSERT", "customer", [1, 3])]
        measured = again.snapshots.measure(followed.checkpoints)
        assert measured.left_out == []
        parts = {(Shard(part.shard).name, part.table) for part in measured.parts}
        assert parts == {("there/0", "customer"), *[("-80", "other"), ("80-", "other")] * others}
        part = next(part for part in measured.parts if part.table == "customer")
        segment = Segment(Shard("s/0"), Snapshot("s", 1), 0, 1, part=part, published=lambda: followed.checkpoints)
        with closing(again.snapshots.open(segment)) as reader:
            assert changes(until(reader, lambda page: page.finished)) == [("READ", "customer", [1, 3])]
