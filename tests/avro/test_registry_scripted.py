"""Answers of a schema registry that no real one should give."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from relay.avro.framing import confluent_header
from relay.avro.schema import change_schema
from relay.avro.schema_registry import RegistrySchemas
from relay.cache.keys import CacheRules
from relay.config import CacheConfig
from relay.errors import NoAnswer, RelayError, Unavailable
from relay.table import Column, KeyColumn, TableSchema
from spark_consumers.records import DecodeStatus
from spark_consumers.value_reader import ValueReader
from tests.listening import answering


class MixedUp(BaseHTTPRequestHandler):
    """A registry that gives any schema the id 7, and returns another one for it."""

    def _answer(self, status: int, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        *_, last = self.path.partition("?")[0].split("/")
        # A registry in Java does not know the path if the id does not fit into an Integer.
        is_too_large = last.isdigit() and int(last) > 0x7FFF_FFFF
        if is_too_large or self.path.startswith(("/schemas/ids/8", "/subjects/shop.starting")):
            self._answer(404, {"message": "no such path"})
        elif self.path.startswith("/schemas/ids/7"):
            self._answer(200, {"schema": json.dumps({"type": "string"}), "schemaType": "AVRO"})
        else:
            self._answer(404, {"error_code": 40401, "message": "there is none"})

    def do_POST(self) -> None:
        self._answer(200, {"id": 7})

    def do_PUT(self) -> None:
        self._answer(200, {"compatibility": "BACKWARD"})

    def log_message(self, *arguments: object) -> None:
        """Write nothing to stderr."""


@pytest.fixture
def mixed_up() -> Iterator[str]:
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), MixedUp)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


def test_an_id_for_which_the_registry_returns_another_schema_is_refused(mixed_up: str) -> None:
    """I8: readers would decode the values with that one."""
    schemas = RegistrySchemas(mixed_up)
    table = TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1, (Column("a", "int"),))
    with pytest.raises(RelayError, match=r"assigned id 7 .* returns a different schema for this id"):
        schemas.register("shop.orders", change_schema(table))
    schemas.close()


def test_a_schema_is_unknown_only_if_the_registry_says_so(mixed_up: str) -> None:
    """I1: a proxy, or a registry that is being restored, answers 404 to everything."""
    schemas = RegistrySchemas(mixed_up)
    assert schemas.lookup(confluent_header(9)) is None
    with pytest.raises(Unavailable, match="failed to look up schema id 8"):
        schemas.lookup(confluent_header(8))
    schemas.close()


def test_a_value_with_an_id_that_no_registry_has_is_foreign(mixed_up: str) -> None:
    """I12: else one foreign record, which a registry answers like one that starts, stops a consumer for good."""
    foreign = b"\x00\xff\xff\xff\xff"
    with closing(RegistrySchemas(mixed_up)) as schemas:
        cache = CacheConfig(url="redis://cache", namespace="shop", keys={"orders": ["order:{id}"]})
        reader = ValueReader(schemas, CacheRules(cache, ()), registry=True, others={})
        changes, [found] = reader.read([("shop.orders", 0, 7, foreign + b"somebody's")])
    assert (changes, found.status) == ([], DecodeStatus.FOREIGN)


def test_a_registry_that_starts_is_not_taken_for_one_without_the_subject(mixed_up: str) -> None:
    """I1: it answers 404 until it is ready. The next version of a subject would be registered as if it were the first,
    and the compatibility that its owner has set would be replaced."""
    schemas = RegistrySchemas(mixed_up)
    with pytest.raises(NoAnswer, match=r"failed to register a schema under shop\.starting-value"):
        schemas.register("shop.starting", {"type": "record", "name": "Change", "fields": []})
    schemas.close()


def test_a_schema_of_somebody_elses_values_is_not_one_of_the_relays(mixed_up: str) -> None:
    schemas = RegistrySchemas(mixed_up)
    assert schemas.lookup(confluent_header(7)) is None
    assert schemas.all() == {}
    schemas.close()


class Failing(MixedUp):
    """A registry with version 1 of a subject, whose second change of the subject's compatibility fails."""

    versions: ClassVar[list[str]] = []
    levels: ClassVar[list[str]] = []

    def _asked(self) -> Any:
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        del self.headers["Content-Length"]
        return found

    def do_GET(self) -> None:
        place = self.path.partition("?")[0].rsplit("/", 1)[-1]
        if self.path.startswith("/config/"):
            self._answer(200, {"compatibilityLevel": [each for each in self.levels if each][-1]})
        elif place == "versions":
            self._answer(200, [number + 1 for number in range(len(self.versions))])
        else:
            number = int(place)
            found = {"subject": "shop.orders-value", "version": number, "id": number}
            self._answer(200, found | {"schema": self.versions[number - 1], "schemaType": "AVRO"})

    def do_POST(self) -> None:
        asked = self._asked()
        if self.path.startswith("/compatibility/"):
            self._answer(200, {"is_compatible": False})
        else:
            if asked["schema"] not in self.versions:
                self.versions.append(asked["schema"])
            self._answer(200, {"id": 1 + self.versions.index(asked["schema"])})

    def do_PUT(self) -> None:
        level = self._asked()["compatibility"]
        fails = len(self.levels) == 2
        self.levels.append("" if fails else level)
        self._answer(503 if fails else 200, {"compatibility": level})


def test_a_compatibility_that_could_not_be_restored_is_restored_once_the_registry_answers() -> None:
    """Otherwise the registry would accept whatever anybody registers under the subject from then on."""
    before, after = (
        change_schema(TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1, (Column("a", kind),)))
        for kind in ("int", "string")
    )
    Failing.versions[:], Failing.levels[:] = [json.dumps(before)], ["FULL"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with closing(RegistrySchemas(url, "register", retries=0)) as schemas:
            with pytest.raises(NoAnswer):
                schemas.register("shop.orders", after)
            assert Failing.levels == ["FULL", "NONE", ""]
            assert schemas.register("shop.orders", after) == confluent_header(2)
            assert Failing.levels == ["FULL", "NONE", "", "FULL"]
        server.shutdown()
