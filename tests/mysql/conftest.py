"""A primary and its replica with the table of ``orders``: MariaDB, and MySQL where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.services.mariadb import MariaDB
from tests.mysql.orders import DATABASE
from tests.mysql.server import MySQL


@pytest.fixture(params=[MariaDB, MySQL], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    """The class of the servers: both, one after the other, unless a test names one of them."""
    return request.param


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
