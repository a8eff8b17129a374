"""A keyspace as a source: its shards and tables, and tables that are created while it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.change import Operation
from relay.config import VitessConfig
from relay.errors import ConfigError, RelayError, Unavailable
from relay.records import ShardCheckpoint, ShardState, SnapshotPart
from relay.services.vitess import Vitess, database
from relay.source import Opening
from relay.vitess.call import Call
from relay.vitess.client import EventKind, Vtgate, events_of
from relay.vitess.kind import KIND
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.source import VitessSource
from relay.vitess.tablets import select_all
from tests import needs
from tests.vitess.reading import copied_rows, until_changes

pytestmark = pytest.mark.services

_VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {"orders": {"column_vindexes": [{"column": "customer", "name": "hash"}]}},
}
_LOOKUP = {"type": "consistent_lookup_unique", "params": {"table": "plain.orders", "from": "line", "to": "keyspace_id"}}
_PACKED = {
    "sharded": True,
    "vindexes": {"order_of": _LOOKUP},
    "tables": {"packets": {"column_vindexes": [{"column": "order_number", "name": "order_of"}]}},
}
_ORDERS = "create table orders (customer bigint not null, line int not null, v int, primary key (line, customer))"
_PACKETS = "create table packets (order_number bigint, number int, primary key (number, order_number))"
_BARE = "create table bare (a int, b int)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    """A cluster that has only these tables."""
    needs.vitess()
    keyspaces = {"shop": ["-80", "80-"], "plain": ["0"], "packed": ["-80", "80-"]}
    schemas = {"shop": (f"{_ORDERS}; {_BARE}", _VSCHEMA), "packed": (_PACKETS, _PACKED)}
    with Vitess(keyspaces=keyspaces, schemas=schemas) as own:
        yield own


@pytest.fixture
def make(cluster: Vitess) -> Iterator[Callable[..., VitessSource]]:
    made: list[VitessSource] = []

    def source(**settings: Any) -> VitessSource:
        made.append(VitessSource(entry(cluster, **settings)))
        return made[-1]

    yield source
    for each in made:
        each.close()


def entry(cluster: Vitess, **settings: Any) -> VitessConfig:
    return VitessConfig.model_validate(
        {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "shop", **settings}
    )


def test_a_table_is_keyed_by_the_columns_of_its_primary_vindex_first(make: Callable[..., VitessSource]) -> None:
    source = make(tables=["orders"])
    source.connect()
    (table,) = source.tables()
    assert [column.name for column in table.key] == ["customer", "line"]
    assert table.hash_columns == 1


def test_a_table_that_is_sharded_by_a_lookup_is_keyed_by_its_column_and_has_no_keyspace_ids(
    make: Callable[..., VitessSource], caplog: pytest.LogCaptureFixture
) -> None:
    """I2: what a lookup says about a row may change, and then its changes would go to two readers of ranges."""
    source = make(tables=["packets"], keyspace="packed")
    source.connect()
    (table,) = source.tables()
    assert [column.name for column in table.key] == ["order_number", "number"]
    layout = source.layout("packets", table.row or (), ["number", "order_number"])
    assert layout is not None
    assert layout.keyspace_id is None
    assert "the changes of packets have no keyspace ids" in caplog.text
    assert (
        "The primary vindex of the table is order_of: vindex consistent_lookup_unique looks up keyspace ids in a "
        "table, where they may change under a row"
    ) in caplog.text


def test_a_key_without_the_columns_that_a_table_is_sharded_by_is_warned_of(
    make: Callable[..., VitessSource], caplog: pytest.LogCaptureFixture
) -> None:
    """I2, I7: a row may be deleted in one shard and inserted in another, in either order."""
    for key in (["line", "customer"], ["customer"]):
        make(tables=["orders"], key={"orders": key}).connect()
    assert "not ordered" not in caplog.text
    make(tables=["orders"], key={"orders": ["line"]}).connect()
    assert "if a row of orders moves to another shard, its changes are not ordered" in caplog.text
    assert "add customer to the `key`" in caplog.text


def test_a_primary_key_keeps_its_own_order_which_the_stream_does_not_have(
    cluster: Vitess, make: Callable[..., VitessSource], unique: str
) -> None:
    """I2: otherwise the plan would key a table in one way, and its changes in another."""
    source = make(keyspace="plain")
    cluster.execute(f"create table {unique} (a int, b int, c int, primary key (c, a, b))", "plain")
    source.connect()
    (table,) = source.tables()
    assert [column.name for column in table.key] == ["c", "a", "b"]
    layout = source.layout(unique, table.row or (), ["a", "b", "c"])
    assert layout is not None
    assert layout.schema == table
    later = f"{unique}_later"
    cluster.execute(f"create table {later} (a int, b int, c int, primary key (c, b, a))", "plain")
    found = source.layout(later, table.row or (), ["a", "b", "c"])
    assert found is not None
    assert [column.name for column in found.schema.key] == ["c", "b", "a"]


@pytest.mark.parametrize("name", ["_orders_old", "_0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f_20240101000000_gho"])
def test_a_table_that_vitess_leaves_out_of_streams_is_skipped_with_a_warning_or_refused_if_named(
    cluster: Vitess, make: Callable[..., VitessSource], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """I1: it is named like a table of an online schema change: a copy would have its rows, but never their changes."""
    below = cluster.mariadb.connect(database=database("plain", "0"), autocommit=True)
    with closing(below) as connection, connection.cursor() as cursor:
        cursor.execute(f"create table {name} (id bigint primary key)")
        try:
            source = make(keyspace="plain")
            source.connect()
            assert name not in [table.table for table in source.tables()]
            assert f"changes of plain.{name} are not relayed: the table has a name like a table of" in caplog.text
            with pytest.raises(ConfigError, match=f"the table {name} has a name like a table of an online"):
                make(keyspace="plain", tables=[name]).connect()
            (shard,) = source.shards()
            start = source.starting_points([shard]).shards["0"]
            cursor.execute(f"insert into {name} values (1)")  # which Vitess really does not send
            with closing(Vtgate(cluster.vtgate)) as vtgate:
                at = pb.ShardGtid(keyspace="plain", shard="0", gtid=start["gtid"])
                with closing(vtgate.vstream([at], {name: select_all(name)})) as stream:
                    kinds = {event.type for answer in _until_committed(stream) for event in events_of(answer)}
            assert EventKind.ROW not in kinds
        finally:
            cursor.execute(f"drop table {name}")


def _until_committed(stream: Call) -> Iterator[bytes]:
    for _ in range(100):
        for answer in stream.take(0.5):
            yield answer
            if any(event.type == EventKind.COMMIT for event in events_of(answer)):
                return


def test_tables_without_a_key_are_skipped_with_a_warning_or_refused_if_named(
    cluster: Vitess, make: Callable[..., VitessSource], caplog: pytest.LogCaptureFixture
) -> None:
    """I1"""
    source = make()
    source.connect()
    assert [table.table for table in source.tables()] == ["orders"]
    assert "changes of shop.bare are not relayed" in caplog.text
    assert KIND.find_tables(entry(cluster)) == ["orders"]
    with pytest.raises(ConfigError, match="the table bare has no primary key"):
        make(tables=["bare"]).connect()
    keyed = make(tables=["bare"], key={"bare": ["a", "b"]})
    keyed.connect()
    assert [column.name for column in keyed.tables()[0].key] == ["a", "b"]


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"keyspace": "shops"}, Unavailable, "has no keyspace 'shops': its keyspaces are packed, plain, shop"),
        ({"keyrange": "-40"}, ConfigError, "key range -40 covers only a part of -80"),
        ({"vtgate": "127.0.0.1:1"}, Unavailable, "vtgate 127.0.0.1:1 does not answer"),
    ],
)
def test_a_wrong_keyspace_key_range_table_or_vtgate_is_named(
    make: Callable[..., VitessSource], settings: dict[str, Any], error: type[RelayError], said: str
) -> None:
    with pytest.raises(error, match=said):
        make(**settings).connect()


def test_a_table_that_does_not_exist_is_refused_where_reading_begins(make: Callable[..., VitessSource]) -> None:
    """I1: where it continues, the table may have been dropped since, and its changes are relayed up to that."""
    source = make(tables=["nothing"])
    source.connect()
    with pytest.raises(Unavailable, match="keyspace shop has no table nothing: create it, or remove it"):
        source.starting_points(source.shards())


def test_checkpoints_of_another_keyspace_are_refused(make: Callable[..., VitessSource]) -> None:
    with pytest.raises(ConfigError, match="its checkpoints belong to the keyspace other, not to shop"):
        make().connect("other")


def test_shards_whose_database_logs_partial_rows_are_refused(
    cluster: Vitess, make: Callable[..., VitessSource]
) -> None:
    """I1"""
    with closing(cluster.mariadb.connect(autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("set global binlog_row_image = 'NOBLOB'")
        try:
            with pytest.raises(
                Unavailable, match=r"binlog_row_image of shard -80 is NOBLOB; .* of shard 80- is NOBLOB"
            ):
                make().connect()
        finally:
            cursor.execute("set global binlog_row_image = 'FULL'")
    make().connect()


def test_a_start_must_name_every_shard(make: Callable[..., VitessSource]) -> None:
    source = make(start={"vgtid": [{"shard": "-80", "gtid": "MariaDB/0-1-5"}]})
    source.connect()
    with pytest.raises(ConfigError, match="`start` names the shards -80, but key range - has -80, 80-"):
        source.starting_points(source.shards())


def test_the_start_current_becomes_a_position(make: Callable[..., VitessSource]) -> None:
    """I4"""
    source = make(keyrange="80-")
    source.connect()
    starts = source.starting_points(source.shards()).shards
    assert list(starts) == ["80-"]
    assert starts["80-"]["gtid"].startswith("MariaDB/0-")


def test_a_table_created_while_all_are_read_is_read_and_keyed_like_the_others(
    cluster: Vitess, make: Callable[..., VitessSource], unique: str
) -> None:
    """I1, I2: 1 is 166b40b44aba4bd6 under hash, so it is in the first shard."""
    source = make()
    source.connect()
    named = next(each for each in source.shards() if each.id == "-80")
    start = source.starting_points([named]).shards["-80"]
    for statement in (
        f"create table {unique} (id bigint not null, owner bigint not null, primary key (id, owner))",
        f"alter vschema on {unique} add vindex hash(owner) using hash",
        f"insert into {unique} (id, owner) values (5, 1)",
        f"truncate table {unique}",
    ):
        cluster.execute(statement, "shop")
    with closing(source.open(Opening(named, start))) as reader:
        pages = list(until_changes(reader, 2))
    inserted, truncated = [change for page in pages for change in page.changes]
    assert (inserted.table, inserted.key, inserted.keyspace_id) == (
        unique,
        {"owner": 1, "id": 5},
        bytes.fromhex("166b40b44aba4bd6"),
    )
    assert truncated.operation is Operation.TRUNCATE
    schemas = {table.table: table for page in pages for table in page.tables}
    assert schemas[unique].hash_columns == 1
    cluster.execute(f"drop table {unique}", "shop")


@pytest.mark.parametrize(("charset", "text"), [("gbk", "模"), ("big5", "一"), ("tis620", "ไทย"), ("utf8mb4", "模")])
def test_text_is_carried_also_in_character_sets_that_vitess_does_not_know(
    cluster: Vitess, make: Callable[..., VitessSource], unique: str, charset: str, text: str
) -> None:
    """I8: it does not name them, and their bytes may be UTF-8 of another text, as those of the first one."""
    columns = f"id bigint primary key, v varchar(9) character set {charset}, e enum('{text}') character set {charset}"
    below = cluster.mariadb.connect(database=database("plain", "0"), autocommit=True, charset="utf8mb4")
    with closing(below) as connection, connection.cursor() as cursor:
        cursor.execute(f"create table {unique} ({columns})")
        source = make(keyspace="plain", tables=[unique])
        source.connect()
        (shard,) = source.shards()
        start = source.starting_points([shard]).shards["0"]
        cursor.execute(f"insert into {unique} values (1, '{text}', '{text}')")
        with closing(source.open(Opening(shard, start))) as reader:
            streamed = [change for page in until_changes(reader, 1) for change in page.changes]
        copied = copied_rows(source, [SnapshotPart("0", unique)], {"0": ShardCheckpoint(ShardState.READING, start)})
        cursor.execute(f"drop table {unique}")
    assert [change.new for change in (*streamed, *copied)] == [{"id": 1, "v": text, "e": text}] * 2


def test_text_is_carried_after_its_column_got_another_character_set_that_vitess_does_not_know(
    cluster: Vitess, make: Callable[..., VitessSource], unique: str
) -> None:
    """I8: Vitess describes the column as before, and bytes of the one are other text in the other."""
    below = cluster.mariadb.connect(database=database("plain", "0"), autocommit=True, charset="utf8mb4")
    with closing(below) as connection, connection.cursor() as cursor:
        cursor.execute(f"create table {unique} (id bigint primary key, v varchar(9) character set gbk)")
        source = make(keyspace="plain", tables=[unique])
        source.connect()
        (shard,) = source.shards()
        start = source.starting_points([shard]).shards["0"]
        cursor.execute(f"insert into {unique} values (1, '一')")
        with closing(source.open(Opening(shard, start))) as reader:
            changes = [change for page in until_changes(reader, 1) for change in page.changes]
            cursor.execute(f"alter table {unique} modify v varchar(9) character set big5")
            cursor.execute(f"insert into {unique} values (2, '一')")
            changes += [change for page in until_changes(reader, 1) for change in page.changes]
        cursor.execute(f"drop table {unique}")
    assert [change.new for change in changes] == [{"id": 1, "v": "一"}, {"id": 2, "v": "一"}]


def test_a_snapshot_has_each_table_of_each_shard_and_also_those_created_after_the_start(
    cluster: Vitess, make: Callable[..., VitessSource], unique: str
) -> None:
    """I1"""
    source = make(start="copy")
    source.connect()
    for statement in (
        "insert into orders (customer, line, v) values (1, 1, 1), (1, 2, 1), (4, 1, 1)",
        f"create table {unique} (id bigint not null primary key)",
        f"alter vschema on {unique} add vindex hash(id) using hash",
        f"insert into {unique} (id) values (1)",
    ):
        cluster.execute(statement, "shop")
    shards = source.shards()
    starts = source.starting_points(shards).shards
    published = {shard.id: ShardCheckpoint(ShardState.READING, starts[shard.id]) for shard in shards}
    measured = source.snapshots.measure(published)
    parts = {(part.shard, part.table) for part in measured.parts}
    assert parts == {(shard, table) for shard in ("-80", "80-") for table in ("orders", unique)}
    assert measured.segments == 4
    assert measured.parts[0] == SnapshotPart("-80", "orders")  # the largest is read first
    assert unique in {table.table for table in source.tables()}  # it is marked, too
    one = source.snapshots.measure(published, ["orders"])
    assert [part.table for part in one.parts] == ["orders", "orders"]
    read = copied_rows(source, measured.parts, published)
    assert all(change.operation is Operation.READ for change in read)
    found = sorted((change.table == unique, change.new["customer" if change.table == "orders" else "id"])
                   for change in read if change.new)  # fmt: skip
    assert found == [(False, 1), (False, 1), (False, 4), (True, 1)]
    cluster.execute(f"drop table {unique}", "shop")
    cluster.execute("delete from orders", "shop")


def test_a_snapshot_waits_until_each_shard_is_read(make: Callable[..., VitessSource]) -> None:
    """I1: the rows of a shard that was just made by a reshard would be left out."""
    source = make()
    source.connect()
    position = {"gtid": "MariaDB/0-1-1"}
    reading, ended = ShardCheckpoint(ShardState.READING, position), ShardCheckpoint(ShardState.FINISHED, position)
    for shards in (
        {},
        {"-80": reading},
        {"-80": reading, "80-": ended},
        {"-80": reading, "80-": ended, "80-c0": reading},
    ):
        with pytest.raises(Unavailable, match="not all shards are being read yet"):
            source.snapshots.measure(shards)
    assert source.snapshots.measure({"-80": reading, "80-": ended, "80-@2": reading}).segments == 2


def test_a_table_with_a_column_that_a_copy_would_round_is_refused_before_it_begins(
    cluster: Vitess, make: Callable[..., VitessSource], unique: str
) -> None:
    """I8"""
    cluster.execute(f"create table {unique} (id bigint primary key, v float)", "plain")
    source = make(keyspace="plain")
    source.connect()
    with pytest.raises(RelayError, match=f"table {unique} cannot be copied exactly, .* FLOAT column v"):
        source.snapshots.measure({"0": ShardCheckpoint(ShardState.READING, {"gtid": "MariaDB/0-1-1"})})
    cluster.execute(f"drop table {unique}", "plain")
