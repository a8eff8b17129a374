"""Lookup vindexes of every type, owned and not, answered by a real vtgate; caches and queries that are led by them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from pymysql.err import MySQLError

from relay.cache import KeyspaceLoader, PrimaryLoader
from relay.cache.entry import UNPLACED, Tokens
from relay.errors import Unavailable
from relay.services.vitess import Vitess, database
from relay.token import EventToken
from relay.vitess import LookupVindex, NoKeyspaceId, UncomputableVindex, keyspace_id
from relay.vitess.vindex import LOOKUPS
from tests import needs
from tests.keyspace.looked_up import SHARDS, queries, tables_of

pytestmark = pytest.mark.services

KINDS = sorted(LOOKUPS)
UNIQUE = [kind for kind in KINDS if kind.endswith("_unique")]
OTHER = "consistent_lookup_unique"
COUNT = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    keyspaces = {"shop": ["-80", "80-"], "lookups": ["0"]}
    with Vitess(keyspaces=keyspaces, schemas=tables_of(KINDS)) as own:
        yield own


@pytest.fixture(scope="module")
def filled(cluster: Vitess) -> Vitess:
    for kind in KINDS:
        for number in range(COUNT):
            row = number, value_of(kind, number)
            cluster.execute(f"insert into of_{kind} (id, v) values (%s, %s)", arguments=row)
    return cluster


def value_of(kind: str, number: int) -> str:
    return f"it's {number if kind.endswith('_unique') else number % 10}"


def lookup(cluster: Vitess, name: str) -> LookupVindex:
    return LookupVindex(cluster.vtgate, "shop", name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["by", "not_own"])
def test_vtgate_answers_for_any_number_of_values_at_once(filled: Vitess, kind: str, name: str) -> None:
    expected: dict[Any, set[bytes]] = {"absent": set(), None: set()}
    for number in range(COUNT):
        expected.setdefault(value_of(kind, number), set()).add(keyspace_id("hash", number))
    with closing(lookup(filled, f"{name}_{kind}")) as vindex:
        assert (vindex.type, vindex.is_unique) == (kind, kind in UNIQUE)
        found = vindex.keyspace_ids(expected)
        assert {value: set(ids) for value, ids in found.items()} == expected
        assert sum(map(len, found.values())) == COUNT
        assert len(vindex.keyspace_ids([*expected, *(f"absent {n}" for n in range(1200))])) == 1200 + len(expected)


def test_a_value_that_is_not_text_and_the_text_of_it_have_the_same_keyspace_ids(cluster: Vitess) -> None:
    cluster.execute("insert into of_lookup_unique (id, v) values (77, '77')")
    with closing(lookup(cluster, "by_lookup_unique")) as vindex:
        found = vindex.keyspace_ids([77, "77", b"77"])
    assert list(found.values()) == [[keyspace_id("hash", 77)]] * 3


def test_what_is_not_a_lookup_vindex_is_refused_by_name(cluster: Vitess) -> None:
    """One of a type that Vitess does not have, too: it has no such vindex."""
    for name, reason in (
        ("hash", "vindex hash of keyspace shop is of type hash, which is not a lookup"),
        ("absent", "vindex absent of keyspace shop does not exist; the types of lookups are consistent_lookup"),
    ):
        with pytest.raises(UncomputableVindex, match=reason):
            lookup(cluster, name)
    with pytest.raises(MySQLError, match="lookup_made_up"):
        cluster.execute("alter vschema create vindex made_up using lookup_made_up")
    with pytest.raises(Unavailable, match=r"failed to connect to 127.0.0.1:9"):
        LookupVindex("127.0.0.1:9", "shop", "by_lookup")


def test_a_vindex_that_a_table_hides_and_one_that_is_being_filled_are_refused(cluster: Vitess) -> None:
    cluster.execute("create table hidden (id bigint primary key, keyspace_id varbinary(9))")
    cluster.execute("alter vschema on hidden add vindex hash (id)")
    settings = "table=lookups.lookup_unique_rows, from=v, to=keyspace_id"
    cluster.execute(f"alter vschema create vindex hidden using lookup_unique with {settings}")
    cluster.execute(f"alter vschema create vindex filling using lookup_unique with {settings}, write_only=true")
    with pytest.raises(UncomputableVindex, match=r"vindex hidden \(lookup_unique\): .*a table of the same name"):
        lookup(cluster, "hidden")
    with (
        closing(lookup(cluster, "filling")) as vindex,
        pytest.raises(UncomputableVindex, match=r"vindex filling \(lookup_unique\) is write-only until"),
    ):
        vindex.keyspace_ids(["a"])


def test_queries_go_to_the_shards_that_a_lookup_says(filled: Vitess) -> None:
    sql = "select v from of_{} where v = %s"
    for kind in KINDS:
        with closing(lookup(filled, f"by_{kind}")) as vindex, queries(filled, vindex) as asked:
            value = value_of(kind, 4)
            shards = {shard: answer.rows for shard, answer in
                      asked.scatter(sql.format(kind), (value,), sharding_keys=[value]).items()}  # fmt: skip
            assert all(shards.values())
            assert sum(map(len, shards.values())) == (1 if kind in UNIQUE else COUNT // 10)
            assert asked.shards_of([value]) == {value: list(shards)}
            if kind in UNIQUE:
                answer = asked.execute(sql.format(kind), (value,), sharding_key=value, include_event_token=True)
                assert answer.rows == ((value,),)
                assert answer.token is not None
                assert answer.token.shard == f"shop/shop/{asked.shard_of(value)}"
            else:
                with pytest.raises(NoKeyspaceId, match=rf"by_{kind}.* in several shards \(-80, 80-\): scatter"):
                    asked.execute(sql.format(kind), (value,), sharding_key=value)
            with pytest.raises(NoKeyspaceId, match=r"no keyspace id for 'absent' at present"):
                asked.shard_of("absent")


def test_what_a_lookup_says_may_change_under_a_row(cluster: Vitess) -> None:
    """So it gives no change a keyspace id: that of a row would be another one when the row is deleted."""
    first, second = (
        next(n for n in range(200, 300) if (keyspace_id("hash", n)[0] < 0x80) is low) for low in (False, True)
    )
    owner, other = f"of_{OTHER}", f"part_of_{OTHER}"
    cluster.execute(f"insert into {owner} (id, v) values ({first}, 'moves')")
    cluster.execute(f"insert into {other} (id, v) values (1, 'moves')")
    with closing(lookup(cluster, f"not_own_{OTHER}")) as vindex:
        assert vindex.keyspace_ids(["moves"]) == {"moves": [keyspace_id("hash", first)]}
        cluster.execute(f"delete from {owner} where id = {first}")
        cluster.execute(f"insert into {owner} (id, v) values ({second}, 'moves')")
        assert vindex.keyspace_ids(["moves"]) == {"moves": [keyspace_id("hash", second)]}
    assert cluster.execute(f"select id from {other}", "shop:80-") == ((1,),)


class Shop:
    """A loader of the values of a table that owns a lookup. ``asked``, ``reads``: what was looked up, and read."""

    def __init__(self, cluster: Vitess, vindex: LookupVindex, **settings: Any) -> None:
        self.asked: list[list[Any]] = []
        self.reads: list[list[str]] = []
        self.queries = queries(cluster, vindex)
        self.loader = KeyspaceLoader(self.queries, str, self.read, key="{v}", **settings)
        shards_of = self.queries.shards_of

        def counted(keys: Iterable[Any]) -> dict[Any, list[str]]:
            self.asked.append(list(keys))
            return shards_of(self.asked[-1])

        self.queries.shards_of = counted  # type: ignore[method-assign, assignment]

    def read(self, cursor: Any, keys: Sequence[str]) -> list[tuple[dict[str, Any], bytes]]:
        self.reads.append(sorted(keys))
        cursor.execute(f"select v, n from of_{OTHER} where v in %s", (keys,))
        return [({"v": v}, str(n).encode()) for v, n in cursor.fetchall()]

    def load(self, *keys: str, held: Tokens = MappingProxyType({})) -> list[tuple[bytes | None, bool]]:
        loaded = self.loader.load_many(dict.fromkeys(keys, held))
        return [(loaded[key].value, loaded[key].fresher) for key in keys]


@pytest.fixture
def shop(cluster: Vitess) -> Iterator[Shop]:
    cluster.execute(f"delete from of_{OTHER}")
    with closing(lookup(cluster, f"by_{OTHER}")) as vindex:
        made = Shop(cluster, vindex)
        with made.queries:
            yield made


def invalidated(shop: Shop, *shards: str) -> dict[str, EventToken | None]:
    """Return what an entry holds that shards have invalidated: nothing that their servers have not executed."""
    return {f"shop/shop/{shard}": EventToken(1, f"shop/shop/{shard}", "MariaDB/0-1-1") for shard in shards}


def put(cluster: Vitess, number: int, value: str, n: int) -> str:
    cluster.execute(f"insert into of_{OTHER} (id, v, n) values ({number}, '{value}', {n})")
    return "-80" if keyspace_id("hash", number)[0] < 0x80 else "80-"


def test_keys_are_looked_up_at_once_and_read_in_the_shards_of_their_rows(cluster: Vitess, shop: Shop) -> None:
    by_shard: dict[str, list[str]] = {shard: [] for shard in SHARDS}
    for number in range(100, 120):
        by_shard[put(cluster, number, f"v{number}", number)].append(f"v{number}")
    keys = [f"v{number}" for number in range(100, 120)]
    assert shop.load(*keys, "absent") == [*((str(n).encode(), True) for n in range(100, 120)), (None, False)]
    assert shop.asked == [[*keys, "absent"]]
    assert sorted(shop.reads) == sorted(map(sorted, by_shard.values()))


def test_a_shard_is_remembered_while_it_alone_invalidates_the_key(cluster: Vitess, shop: Shop) -> None:
    """I6: in any other case the lookup is asked again."""
    here = put(cluster, 1, "a", 1)
    (elsewhere,) = SHARDS.keys() - {here}
    only, both = invalidated(shop, here), invalidated(shop, *SHARDS)
    cases: list[tuple[Tokens, bool, bool]] = [
        ({}, True, True),
        (only, False, True),
        (both, True, False),
        (invalidated(shop, elsewhere), True, False),
        ({**only, UNPLACED: None}, True, False),
        (only, False, True),
    ]
    for held, is_asked, is_fresher in cases:
        before = len(shop.asked)
        assert shop.load("a", held=held) == [(b"1", is_fresher)], held
        assert (len(shop.asked) > before) is is_asked, held


def test_what_another_shard_has_invalidated_is_not_stored_although_a_primary_was_read(cluster: Vitess) -> None:
    """I6: the row may be there already, and the lookup not be committed yet."""
    cluster.execute(f"delete from of_{OTHER}")
    here = put(cluster, 1, "a", 1)
    (elsewhere,) = SHARDS.keys() - {here}
    with closing(lookup(cluster, f"by_{OTHER}")) as vindex:
        shop = Shop(cluster, vindex)
        connect = partial(cluster.mariadb.connect, database=database("shop", here), autocommit=True)
        primary = PrimaryLoader(connect, shop.read, key="{v}")
        shop.loader = KeyspaceLoader(shop.queries, str, shop.read, key="{v}", primaries={here: primary})
        with shop.queries, closing(primary):
            assert shop.load("a", held={UNPLACED: None}) == [(b"1", True)]
            assert shop.load("a", held=invalidated(shop, elsewhere)) == [(b"1", False)]
            assert shop.loader.primary_reads == 2
            (token,) = invalidated(shop, here).values()
            assert token is not None
            later = replace(token, shard=f"{token.shard}@2")  # as the stream of the shard after MoveTables says
            assert shop.load("a", held={later.shard: later}) == [(b"1", True)]


def test_that_the_shard_of_a_lookup_has_no_row_is_not_stored(cluster: Vitess, shop: Shop) -> None:
    """I6: the lookup may be from before the row was inserted elsewhere."""
    here = put(cluster, 1, "a", 1)
    with closing(cluster.mariadb.connect(database=database("shop", here), autocommit=True)) as connection:
        connection.cursor().execute(f"delete from of_{OTHER} where id = 1")
    assert shop.load("a") == [(None, False)]


def test_a_row_that_has_moved_to_another_shard_is_found_there(cluster: Vitess, shop: Shop) -> None:
    """I6: nothing says so but that its shard has no row of the key."""
    here = put(cluster, 1, "a", 1)
    other = next(number for number in range(2, 99) if (keyspace_id("hash", number)[0] < 0x80) != (here == "-80"))
    assert shop.load("a") == [(b"1", True)]
    cluster.execute(f"delete from of_{OTHER} where id = 1")
    assert put(cluster, other, "a", 2) != here
    assert shop.load("a", held=invalidated(shop, here)) == [(b"2", False)]
    assert shop.load("a") == [(b"2", True)]
    cluster.execute(f"delete from of_{OTHER} where id = {other}")
    assert shop.load("a") == [(None, False)]


def test_as_many_shards_are_remembered_as_was_said(cluster: Vitess) -> None:
    """I11"""
    cluster.execute(f"delete from of_{OTHER}")
    places = {f"k{number}": put(cluster, number, f"k{number}", number) for number in range(9)}
    with closing(lookup(cluster, f"by_{OTHER}")) as vindex:
        shop = Shop(cluster, vindex, remembered=4)
        with shop.queries:
            for key, shard in places.items():
                shop.load(key)
                before = len(shop.asked)
                shop.load(key, held=invalidated(shop, shard))
                assert len(shop.asked) == before
            known = 0
            for key, shard in places.items():
                before = len(shop.asked)
                shop.load(key, held=invalidated(shop, shard))
                known += len(shop.asked) == before
            assert known <= 4


def test_a_loader_refuses_a_lookup_that_is_not_unique_by_name(filled: Vitess) -> None:
    with closing(lookup(filled, "by_consistent_lookup")) as vindex:
        make = partial(KeyspaceLoader, queries(filled, vindex), str, lambda cursor, keys: [], key="{v}")
        with pytest.raises(ValueError, match=r"vindex by_consistent_lookup \(consistent_lookup\) is not unique"):
            make()
