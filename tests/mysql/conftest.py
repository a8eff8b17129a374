"""Real servers of both flavours: one that a worker's tests share, one of a test's own, and a primary with a replica."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.services.mariadb import MariaDB
from tests.mysql.orders import DATABASE
from tests.mysql.server import MySQL


@pytest.fixture(params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Any:
    """A server that tests share: MariaDB, then MySQL. Make a database of your own."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[MariaDB, MySQL], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    """The class of the servers that a test starts: both, one after the other, unless the test names one."""
    return request.param


@pytest.fixture
def own(kind: Any) -> Iterator[Any]:
    """A server that a test may break."""
    with kind(options={"max-allowed-packet": "64M"}) as server:
        yield server


@pytest.fixture
def primary(kind: Any) -> Iterator[Any]:
    with kind() as server:
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v VARCHAR(100))")
        yield server


@pytest.fixture
def replica(kind: Any, primary: Any) -> Iterator[Any]:
    with kind() as server:
        server.replicate_from(primary)
        server.wait_for(primary.gtid)
        yield server
