"""Other people's software on the topics, for the tests that read them with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.process.managed import HOST
from relay.services.registry import SchemaRegistry
from tests.avro_connect import AvroConnect


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


@pytest.fixture
def connect(kafka: Any, registry: SchemaRegistry) -> Iterator[AvroConnect]:
    with AvroConnect(kafka.bootstrap_servers, f"http://{HOST}:{registry.port}") as worker:
        yield worker
