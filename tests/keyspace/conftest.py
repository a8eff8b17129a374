"""The servers of tests that change them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keyspace.keyspaces import REPLICAS, Keyspace


@pytest.fixture
def keyspace() -> Iterator[Keyspace]:
    """Servers of the test's own."""
    with Keyspace(replicas=REPLICAS) as keyspace:
        yield keyspace
