"""Redis with Sentinel, with passwords, and with TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from relay.cache import Cached, Invalidator, LoadedValue, Outcome, RedisStore, TokenCache, generation_key
from relay.errors import Unavailable
from relay.process.managed import HOST, accepts
from relay.services.redis import RedisServer
from tests.cache.redis_groups import RedisSentinel, catch_up, command, follow, started
from tests.certificates import Authority
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def constant(value: bytes) -> Any:
    return lambda key, compare: LoadedValue(value, {}, fresher=True)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_store_follows_sentinel_to_the_new_primary(stack: ExitStack) -> None:
    """I6: what the old one acknowledged last may be lost, so a new generation begins."""
    primary, replica = (stack.enter_context(RedisServer()) for _ in range(2))
    follow(replica, primary)
    sentinels = [stack.enter_context(RedisSentinel(primary)) for _ in range(2)]
    hosts = ",".join(["127.0.0.1:1", *(sentinel.address for sentinel in sentinels)])
    store = stack.enter_context(RedisStore(f"redis+sentinel://{hosts}/cache"))
    cache, invalidator = TokenCache(store, "shop"), Invalidator(store, "shop")
    assert cache.get_or_load("k", constant(b"old")).outcome is Outcome.FILLED
    catch_up(replica, primary)
    wait_for_replica(sentinels)
    primary.kill()
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.MISS)
    with pytest.raises(Unavailable):
        invalidator.apply([("k", None)])
    until_available(lambda: invalidator.apply([("k", None)]))
    assert cache.get_or_load("k", constant(b"new")) == Cached(b"new", Outcome.FILLED)
    assert cache.get_or_load("k", constant(b"")) == Cached(b"new", Outcome.HIT)


def wait_for_replica(sentinels: list[RedisSentinel]) -> None:
    """Wait until each Sentinel knows the replica that is to take over."""
    wait_until(lambda: all(command(sentinel, "SENTINEL", "REPLICAS", "cache") for sentinel in sentinels))


def until_available(call: Callable[[], object]) -> None:
    def available() -> bool:
        try:
            call()
        except Unavailable:
            return False
        return True

    wait_until(available)


def test_the_primary_and_sentinel_have_passwords_of_their_own(stack: ExitStack) -> None:
    primary = stack.enter_context(SecuredRedis({"requirepass": "one"}, password="one"))
    settings = {"sentinel auth-pass cache": "one", "requirepass": "two"}
    sentinel = stack.enter_context(SecuredSentinel(primary, settings))
    right = f"redis+sentinel://:one@{sentinel.address}/cache/0?sentinel_password=two"
    with RedisStore(right) as store:
        assert store.generation(generation_key("shop"))
        assert "two" not in store.address
    for wrong in (right.replace(":one@", ":three@"), right.replace("=two", "=three"), right.partition("?")[0]):
        with RedisStore(wrong) as store, pytest.raises(Unavailable) as raised:
            store.generation(generation_key("shop"))
        assert "three" not in str(raised.value)


def test_an_unknown_service_is_unavailable(stack: ExitStack) -> None:
    primary = stack.enter_context(RedisServer())
    sentinel = stack.enter_context(RedisSentinel(primary))
    with RedisStore(f"redis+sentinel://{sentinel.address}/other") as store, pytest.raises(Unavailable, match="other"):
        store.generation(generation_key("shop"))


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
def test_tls_checks_the_certificate(stack: ExitStack, tmp_path: Path, scheme: str) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("redis")
    options = {
        "tls-port": "any",
        "tls-cert-file": str(certificate),
        "tls-key-file": str(certificate),
        "tls-ca-cert-file": str(authority.ca),
        "tls-auth-clients": "no",
    }
    if scheme.endswith("cluster"):
        options |= {"cluster-enabled": "yes", "tls-cluster": "yes"}
    server = started(stack, options)
    port = server.options["tls-port"]
    if scheme.endswith("cluster"):
        command(server, "CLUSTER", "ADDSLOTS", *range(16_384))
    url = f"{scheme}://{HOST}:{port}"
    with RedisStore(f"{url}?ssl_ca_certs={authority.ca}") as store:
        until_available(lambda: store.generation(generation_key("shop")))
        cache = TokenCache(store, "shop")
        assert cache.get_or_load("k", constant(b"x" * 300_000)).outcome is Outcome.FILLED
        assert cache.get_or_load("k", constant(b"")).outcome is Outcome.HIT
    with RedisStore(url) as store, pytest.raises(Unavailable, match=r"(?i)certificate.*verify failed"):
        store.generation(generation_key("shop"))
    with RedisStore(f"redis://{HOST}:{port}", timeout=1.0) as store, pytest.raises(Unavailable):
        store.generation(generation_key("shop"))


class SecuredRedis(RedisServer):
    """A Redis that wants a password."""

    def __init__(self, options: dict[str, str], password: str) -> None:
        super().__init__(options=options)
        self._password = password

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@{HOST}:{self.port}/0"


class SecuredSentinel(RedisSentinel):
    """A Sentinel that wants a password."""

    def _ready(self) -> bool:
        return accepts(self.port)
