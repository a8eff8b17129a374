"""Servers for the tests of stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from relay.services.memcached import MemcachedServer
from tests.cache.redis_groups import Cluster, cluster


@pytest.fixture(scope="session")
def redis_cluster_server() -> Iterator[Cluster]:
    """A Redis Cluster: ``.url``."""
    with cluster(node_timeout=60.0) as servers:  # no test replaces one, nor does a busy host
        yield servers


@pytest.fixture(scope="session")
def several_memcached_server() -> Iterator[SimpleNamespace]:
    """Three memcached that share the keys: ``.url``."""
    with ExitStack() as stack:
        servers = [stack.enter_context(MemcachedServer(options={"max-item-size": "8m"})) for _ in range(3)]
        yield SimpleNamespace(url="memcached://" + ",".join(f"127.0.0.1:{server.port}" for server in servers))
