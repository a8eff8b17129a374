"""From the URL of a store to the store, and what ``relay check`` says about it."""

from __future__ import annotations

from typing import Any

import pytest

from relay.cache import MemcachedStore, RedisStore, entry_key, open_store
from relay.errors import Unavailable
from relay.operations.check import _check_store
from relay.source import Finding
from tests.cache.stores import KINDS
from tests.listening import NOBODY


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://h", RedisStore),
        ("rediss+sentinel://h:1,i:2/cache", RedisStore),
        ("redis+cluster://h:1,i:2", RedisStore),
        ("unix:///tmp/redis", RedisStore),
        ("memcached://h", MemcachedStore),
        ("memcacheds://u:p@h:1,i:2", MemcachedStore),
    ],
)
def test_a_url_names_the_kind_of_store(url: str, kind: type) -> None:
    with open_store(url) as store:
        assert isinstance(store, kind)


@pytest.mark.services
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_store_passes_its_check_and_nothing_is_written(
    request: pytest.FixtureRequest, kind: str, unique: str
) -> None:
    url = request.getfixturevalue(f"{kind}_server").url
    found, *memory = _check_store(url, unique)
    assert found == Finding(f"cache {url}", "reachable")
    assert len(memory) == url.count(",") + 1
    assert all(" MB" in each.detail and not each.exit_code for each in memory)
    with open_store(url) as store:
        assert store.sample(entry_key(unique, ""), 10) == []


@pytest.mark.services
def test_a_cluster_that_is_named_like_a_single_redis_is_reported(redis_cluster_server: Any) -> None:
    url = f"redis://127.0.0.1:{redis_cluster_server.primaries[0].port}"
    with pytest.raises(Unavailable, match=r"is a cluster .*use redis\+cluster:// or rediss\+cluster:// in its URL"):
        _check_store(url, "n")


@pytest.mark.services
def test_a_single_redis_that_is_named_like_a_cluster_is_reported(redis_server: Any) -> None:
    with pytest.raises(Unavailable, match="cluster support disabled"):
        _check_store(redis_server.url.replace("redis://", "redis+cluster://"), "n")


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel", "memcached"])
def test_a_store_that_is_away_is_reported_without_its_password(scheme: str) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as raised:
        _check_store(f"{scheme}://ann:secret@{NOBODY}/cache", "n")
    assert "secret" not in str(raised.value)
