"""The key ``cache``: templates, and how late an invalidation may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config import CacheConfig
from tests.config.configs import change, read, refused, two_sources


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('{order: ["order:{order_id}"]}',
         "15:73: `cache.keys.order`: no source reads table 'order'; did you mean `orders`?"),
        ('{xxx: ["order:{order_id}"]}', "15:71: `cache.keys.xxx`: no source reads table 'xxx'; known tables: orders"),
        ("{orders: []}", "15:74: `cache.keys.orders`: needs a template such as order:{order_id}"),
        ('{orders: [""]}', "15:75: `cache.keys.orders[0]`: a template cannot be empty"),
        ('{orders: ["a}"]}',
         "15:75: `cache.keys.orders[0]`: the template 'a}' has an unmatched or empty '}' at position 2 (write a "
         "literal brace twice)"),
    ],
)  # fmt: skip
def test_cache_keys_must_be_templates_for_tables_that_are_relayed(file: Path, keys: str, said: str) -> None:
    assert refused(file, change('{orders: ["order:{order_id}"]}', keys)) == [said]


def cached_replicas(source: str, ttl: str) -> str:
    """Return a config with a source of MySQL, of which the cache has the table `goods`."""
    second = two_sources(f"{{name: legacy, type: mysql, database: d, user: u, password: p, {source}}}")
    keys = 'keys: {orders: ["order:{order_id}"]'
    assert f"{keys}}}, tombstone_ttl: 1h" in second
    return second.replace(f"{keys}}}, tombstone_ttl: 1h", f"{keys}, goods: ['g:{{id}}']}}{ttl}")


@pytest.mark.parametrize(
    ("source", "ttl", "problem"),
    [
        ("tables: [goods]", ", tombstone_ttl: 2m", "2m is not more than twice `sources[1].max_lag` (1m)"),
        ("tables: [goods], max_lag: 1h", ", tombstone_ttl: 2h", "2h is not more than twice `sources[1].max_lag` (1h)"),
        ("max_lag: 61m", ", tombstone_ttl: 2h", "2h is not more than twice `sources[1].max_lag` (61m)"),
        ("tables: [goods], max_lag: 30m", "", "1h is not more than twice `sources[1].max_lag` (30m)"),
        ("tables: [goods]", ", tombstone_ttl: 121s", None),
    ],
)
def test_replicas_may_not_be_so_late_that_the_consumer_of_the_cache_calls_itself_behind(
    file: Path, source: str, ttl: str, problem: str | None
) -> None:
    """Without tables, the source may read any."""
    text = cached_replicas(f"shards: {{'-': ['db1:3306', 'db2:3306']}}, {source}", ttl)
    if problem is None:
        assert read(file, text).cache is not None
    else:
        [line] = refused(file, text)
        assert f"`cache.tombstone_ttl`: {problem}" in line


def test_a_single_server_and_a_table_that_is_not_cached_do_not_bound_the_tombstones(file: Path) -> None:
    """A server that has no other is read however late it is."""
    assert read(file, cached_replicas("shards: {'-': ['db1:3306']}, tables: [goods]", ", tombstone_ttl: 2m")).cache
    uncached = "{name: m, type: mysql, database: d, shards: {'-': ['h:1', 'h:2']}, tables: [goods]}"
    assert read(file, two_sources(uncached).replace("tombstone_ttl: 1h", "tombstone_ttl: 2m")).cache


def place(url: str, namespace: str = "shop") -> str:
    return CacheConfig(url=url, namespace=namespace, keys={"orders": ["a"]}).place


def test_the_place_of_a_cache_is_its_namespace_servers_and_database() -> None:
    assert place("redis://r1:6379/0") == "shop@r1:6379"
    others = ["redis://r2:6379/0", "redis://r1:6380/0", "redis://r1:6379/1", "memcached://r1:11211,r2:11211"]
    others += ["unix:///run/r1.sock", "unix:///run/r1.sock?db=1", "redis+sentinel://r1:26379/shop"]
    places = {place("redis://r1:6379/0"), place("redis://r1:6379/0", "shop2"), *map(place, others)}
    assert len(places) == len(others) + 2


def test_a_cache_stays_in_its_place_with_another_password_and_another_spelling() -> None:
    assert {
        place(f"redis://{rest}")
        for rest in ("r1:6379", "R1:6379/", "r1:6379/0", "ann:secret@r1:6379", "r1:6379?db=0&protocol=3")
    } == {"shop@r1:6379"}
    assert place("redis://r1:6379/2") == place("redis://r1:6379?db=2")
    assert place("memcached://a:11211,b:11211") == place("memcached://b:11211,a:11211")


def test_the_place_of_a_cache_with_many_servers_has_room_beside_an_offset() -> None:
    first, second = (",".join(f"cache{number}.example.com:11211" for number in range(n, n + 200)) for n in (0, 1))
    long, other = place(f"memcached://{first}"), place(f"memcached://{second}")
    assert len(long.encode()) < 1000
    assert long.startswith("shop@cache0.example.com:11211,")
    assert long != other
