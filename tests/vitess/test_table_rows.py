"""The rows that a table has now are read through vtgate, all of them and by their keys, for ``relay verify``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from pymysql.err import MySQLError

from relay.config import VitessConfig
from relay.config.protection import MASK
from relay.errors import RelayError, Unavailable
from relay.operations.compared_rows import ComparedTable
from relay.records import Shard
from relay.services.vitess import Vitess, database
from relay.source import Opening
from relay.vitess.source import VitessSource
from relay.vitess.table_rows import VitessTableRows
from tests import needs
from tests.mysql.key_types import KEYS
from tests.vitess.column_values import COLUMNS
from tests.waiting import wait_until

pytestmark = pytest.mark.services

TRANSACTIONS = 4  # that a tablet has room for
_TYPES = ", ".join(f"`{name}` {kind}" for name, (kind, _, _) in COLUMNS.items())
_FLOATS = "create table rounded (id bigint primary key, v float, w double(10, 2))"
_BY_KEYS = {name: columns for name, (columns, _) in KEYS.items() if name != "several"}  # a SET as a key is refused


def _create(name: str, columns: str) -> str:
    key = ", ".join(part.split()[0] for part in columns.split(", "))
    return f"create table by_{name} ({columns}, v int default 7, primary key ({key}))"


_ONE = "; ".join(
    [f"create table types (id bigint primary key, {_TYPES})", _FLOATS, *map(_create, _BY_KEYS, _BY_KEYS.values())]
)
_SPLIT = "create table orders (region varchar(9), id bigint, name text, card text, primary key (region, id))"
_VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {"orders": {"column_vindexes": [{"column": "id", "name": "hash"}]}},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    tables = ["types", "rounded", *(f"by_{name}" for name in _BY_KEYS)]
    unsharded = {"sharded": False, "tables": {name: {} for name in tables}}
    with Vitess(
        keyspaces={"one": ["0"], "split": ["-80", "80-"]},
        schemas={"one": (_ONE, unsharded), "split": (_SPLIT, _VSCHEMA)},
        flags={"queryserver-config-transaction-cap": TRANSACTIONS, "queryserver-config-txpool-timeout": "1s"},
    ) as vitess:
        yield vitess


@pytest.fixture
def below(cluster: Vitess) -> Iterator[Callable[[str], None]]:
    """Return what runs a statement in the database of the shard ``one/0``, in UTC."""
    with (
        closing(cluster.mariadb.connect(database=database("one", "0"), autocommit=True)) as connection,
        connection.cursor() as cursor,
    ):

        def run(statement: str) -> None:
            cursor.execute(statement)

        run("set sql_mode = '', time_zone = '+00:00'")
        yield run


@pytest.fixture
def rows(cluster: Vitess) -> Iterator[Callable[..., VitessTableRows]]:
    """Return what opens the rows of a table."""
    made: list[Any] = []

    def opened(
        table: str, keyspace: str = "one", shards: tuple[str | Opening, ...] = ("0",), **rules: Any
    ) -> VitessTableRows:
        entry = {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": keyspace, "tables": [table]}
        source = VitessSource(VitessConfig.model_validate({**entry, **rules}))
        made.append(source)
        source.connect()
        openings = [Opening(Shard(each), {}) if isinstance(each, str) else each for each in shards]
        return VitessTableRows(source, openings, table)

    yield opened
    for each in made:
        each.close()


def _zone(cluster: Vitess) -> str | None:
    """Return the zone of the tablet's sessions, or None while it connects again."""
    try:
        ((zone,),) = cluster.execute("select @@session.time_zone", "one:0@primary")
    except MySQLError:
        return None
    return str(zone)


@pytest.mark.parametrize("zone", ["+00:00", "-07:30"])
def test_every_type_is_as_in_the_stream_whatever_the_zone_of_the_server(
    cluster: Vitess, below: Callable[[str], None], rows: Callable[..., VitessTableRows], zone: str
) -> None:
    below(f"replace types values (1, {', '.join(literal for _, literal, _ in COLUMNS.values())})")
    cluster.mariadb.execute(f"set global time_zone = '{zone}'")
    cluster.mariadb.execute("kill user vt_dba")  # a connection keeps the zone that it began with
    wait_until(lambda: _zone(cluster) == zone)
    ((key, image),) = rows("types").all()
    assert key == {"id": 1}
    assert image == {"id": 1} | {name: value for name, (_, _, value) in COLUMNS.items()}


def test_numbers_that_select_rounds_are_exact(
    below: Callable[[str], None], rows: Callable[..., VitessTableRows]
) -> None:
    below("replace rounded values (1, 3.99, 0.05), (2, 16777215, 12345678.25), (3, 0.123456789, null), (4, 1e-40, 0)")
    found = {key["id"]: (image["v"], image["w"]) for key, image in rows("rounded").all()}
    assert found == {1: (3.99, 0.05), 2: (16777215.0, 12345678.25), 3: (0.12345679, None), 4: (1e-40, 0.0)}


@pytest.mark.parametrize("name", _BY_KEYS)
def test_rows_are_found_by_keys_of_every_type(
    below: Callable[[str], None], rows: Callable[..., VitessTableRows], name: str
) -> None:
    columns, values = KEYS[name]
    names = ", ".join(part.split()[0] for part in columns.split(", "))
    below(f"insert by_{name} ({names}) values {values}")
    found = rows(f"by_{name}")
    compared = ComparedTable(found.schema)
    every = [compared.of_source(*row) for row in found.all()]
    keys = [row.key for row in every]
    assert len(set(keys)) == len(every) == values.count("),(") + 1
    assert {row.values for row in every} == {("7",)}
    assert {compared.of_source(*row) for row in found.of(keys)} == set(every)
    for key in keys:
        assert key in [compared.of_source(*row).key for row in found.of([key])]
    assert len({compared.of_source(*row).key for row in found.some(2)}) == 2


def test_rows_of_all_shards_are_as_they_are_published(cluster: Vitess, rows: Callable[..., VitessTableRows]) -> None:
    """Without those that `where` leaves out, and without the values of protected columns."""
    for number in range(1, 9):
        for region in ("eu", "us"):
            cluster.execute(
                f"insert into orders (region, id, name, card) values ('{region}', {number}, 'Ada', '4111')", "split"
            )
    rules = {"protect": {"orders": {"name": "mask", "card": "exclude"}}, "where": {"orders": {"region": "eu"}}}
    found = rows("orders", "split", ("-80", "80-"), **rules)
    published = [({"id": n, "region": "eu"}, {"region": "eu", "id": n, "name": MASK}) for n in range(1, 9)]
    every = sorted(found.all(), key=lambda row: int(row[0]["id"]))
    assert every == published
    wanted = [(str(n), region) for n in range(1, 9) for region in ("eu", "us")]
    assert sorted(found.of(wanted), key=lambda row: int(row[0]["id"])) == published
    assert len(list(found.some(99))) == 8
    assert {key["id"] for key, _ in rows("orders", "split", ("-80",), **rules).all()} < set(range(1, 9))


def test_the_rows_of_a_moved_table_are_read_where_it_is_and_those_of_the_others_where_they_stayed(
    below: Callable[[str], None], cluster: Vitess, rows: Callable[..., VitessTableRows]
) -> None:
    """After MoveTables, each stream has a portion of the tables. The keyspace has this table no longer."""
    only = {"only": ["orders"]}
    moved = Opening(Shard("split/-80"), only), Opening(Shard("split/80-"), only)
    shards = Opening(Shard("0@2"), {"without": ["orders"]}), *moved
    cluster.execute("delete from orders", "split")
    cluster.execute("insert into orders (region, id) values ('eu', 1), ('eu', 2), ('eu', 3), ('eu', 4)", "split")
    assert sorted(key["id"] for key, _ in rows("orders", shards=shards).all()) == [1, 2, 3, 4]
    below("delete from rounded")
    below("insert rounded (id) values (1), (2)")
    assert [key["id"] for key, _ in rows("rounded", shards=shards).all()] == [1, 2]
    with pytest.raises(Unavailable, match="no shard with table orders is read yet: try again later"):
        rows("orders", shards=shards[:1])


def test_the_rows_of_a_table_that_was_moved_back_are_read_once(
    below: Callable[[str], None], rows: Callable[..., VitessTableRows]
) -> None:
    """The streams of what had stayed and of what has come back are of one shard."""
    below("delete from rounded")
    below("insert rounded (id) values (1), (2)")
    shards = Opening(Shard("0@2"), {"without": ["orders"]}), Opening(Shard("0@3"), {})
    assert [key["id"] for key, _ in rows("rounded", shards=shards).all()] == [1, 2]


def test_more_rows_come_than_vtgate_answers_at_once(
    below: Callable[[str], None], rows: Callable[..., VitessTableRows]
) -> None:
    """A statement of an application may have 10,000 rows."""
    below("delete from rounded")
    below("insert rounded (id) select seq from seq_1_to_30000")
    assert [key["id"] for key, _ in rows("rounded").all()] == list(range(1, 30001))


def test_a_read_leaves_no_transaction_open(cluster: Vitess, rows: Callable[..., VitessTableRows]) -> None:
    """A tablet has room for a few, which others would wait for."""
    found = rows("rounded")
    for _ in range(TRANSACTIONS):
        list(found.all())
        next(found.some(1), None)
    cluster.execute("insert into rounded (id) values (-1)", "one")


def test_rows_of_what_cannot_be_read_are_refused_with_the_reason(
    cluster: Vitess, rows: Callable[..., VitessTableRows]
) -> None:
    with pytest.raises(RelayError, match="source s: keyspace one has no table absent") as lost:
        rows("absent")
    assert not isinstance(lost.value, Unavailable)  # another table may be there
    found = rows("rounded", shards=("80-",))
    with pytest.raises(Unavailable, match=r"the rows of shard 80- cannot be read: .*no healthy tablet"):
        list(found.all())
