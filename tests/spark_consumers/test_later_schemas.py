"""Which schemas a query notices that are published while it runs."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from relay.avro.framing import confluent_header
from relay.avro.schema import change_schema
from relay.config import Config
from relay.errors import Unavailable
from relay.kafka import topics
from relay.table import Column, KeyColumn, TableSchema
from spark_consumers.frames import LaterSchemas
from tests.clock import Clock
from tests.listening import answering

pytestmark = pytest.mark.services


class Registry(ThreadingHTTPServer):
    """Has ``versions`` schemas of one table. ``is_away``: it refuses whatever it is asked. ``asked``: how often."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.versions = 1
        self.is_away = False
        self.asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        self.server.asked += 1
        *_, last = self.path.partition("?")[0].split("/")
        if self.server.is_away:
            self._answer(401, {"error_code": 40101, "message": "not now"})
        elif last == "versions":
            self._answer(200, list(range(1, self.server.versions + 1)))
        else:
            row = tuple(Column(f"c{number}", "int") for number in range(int(last)))
            schema = change_schema(TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1, row))
            found = {"subject": "shop.orders-value", "version": int(last), "id": int(last), "schemaType": "AVRO"}
            self._answer(200, {**found, "schema": json.dumps(schema)})

    def _answer(self, status: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def registry() -> Iterator[Registry]:
    with answering(Registry()) as server:
        yield server


@pytest.fixture
def config(registry: Registry, kafka: Any, unique: str) -> Config:
    found = Config.model_validate(
        {
            "name": unique,
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "schema_registry": {"url": f"http://127.0.0.1:{registry.server_port}"},
            "sources": [{"name": "shop", "type": "dynamodb", "table": "orders"}],
        }
    )
    topics.create_missing(topics.connect(found), found, ["orders"])
    return found


def later(config: Config, *, must: bool = False, clock: Clock | None = None) -> LaterSchemas:
    return LaterSchemas(config, [config.topic("orders")], must=must, clock=clock or Clock())


def test_each_look_finds_what_was_published_meanwhile(registry: Registry, config: Config) -> None:
    schemas = later(config)
    assert list(schemas.learn()) == [confluent_header(1)]
    registry.versions = 2
    assert list(schemas()) == [confluent_header(1), confluent_header(2)]


def test_while_they_cannot_be_looked_up_the_known_ones_serve_and_batches_do_not_wait_each(
    registry: Registry, config: Config
) -> None:
    """I12: an outage of the registry does not delay values whose schemas are known."""
    clock = Clock()
    schemas = later(config, clock=clock)
    schemas.learn()
    registry.is_away, asked = True, registry.asked
    assert list(schemas()) == [confluent_header(1)]
    assert registry.asked > asked
    asked = registry.asked
    assert list(schemas()) == [confluent_header(1)]
    assert registry.asked == asked
    registry.is_away, registry.versions = False, 2
    clock.now += 16.0
    assert len(schemas()) == 2


def test_a_query_that_keeps_what_it_cannot_decode_waits_for_the_look_up(registry: Registry, config: Config) -> None:
    """I1: the change would become a row without its columns, and not come again."""
    schemas = later(config, must=True)
    schemas.learn()
    registry.is_away = True
    with pytest.raises(Unavailable):
        schemas()


def test_its_client_is_closed_with_the_last_query_that_uses_it(config: Config) -> None:
    schemas = later(config)
    schemas.learn()
    published = weakref.ref(schemas._published)
    of_registry: Any = schemas._published._client
    client = of_registry._rest_client.session
    del schemas
    gc.collect()
    assert published() is None
    assert client.is_closed
