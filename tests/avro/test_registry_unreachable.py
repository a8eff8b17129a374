"""Errors when the broker or the registry with the schemas does not answer."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import quote, unquote

import pytest

from relay.avro.framing import confluent_header
from relay.avro.schema_registry import RegistrySchemas
from relay.avro.topic_schemas import TopicSchemas
from relay.errors import Unavailable
from tests.listening import NOBODY


@pytest.fixture
def nobody() -> str:
    """Return an address where nobody listens."""
    return NOBODY


def test_a_broker_that_does_not_answer_is_named(nobody: str) -> None:
    schemas = TopicSchemas({"bootstrap.servers": nobody}, "shop.schemas", patience=0.5)
    with pytest.raises(Unavailable, match=f"the topic shop.schemas at {nobody} cannot be looked up"):
        schemas.lookup(b"\xc3\x01" + bytes(8))
    schemas.close()


def test_a_registry_that_does_not_answer_is_named_without_its_password(nobody: str) -> None:
    schemas = RegistrySchemas(f"http://user:secret@{nobody}/apis", retries=0)
    with pytest.raises(
        Unavailable, match=rf"the schema registry at http://\*\*\*@{nobody}/apis does not answer"
    ) as raised:
        schemas.lookup(b"\x00\x00\x00\x00\x01")
    assert str(raised.value).endswith("Connection refused")
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(schemas)
    schemas.close()


def test_the_schemas_that_were_known_before_are_known_while_the_registry_does_not_answer(
    nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: and no others. A registry that answers is asked."""
    known, unknown = confluent_header(1), confluent_header(2)
    kept = {known: {"type": "record", "name": "Change", "fields": []}}
    with closing(RegistrySchemas(f"http://{nobody}", kept=lambda: kept, retries=0)) as schemas:
        assert schemas.all() == {}
        assert schemas.lookup(known) == kept[known]
        assert f"the schema registry at http://{nobody} does not answer" in caplog.text
        for _ in range(2):
            with pytest.raises(Unavailable, match="does not answer the request to look up schema id 2"):
                schemas.lookup(unknown)
        assert schemas.all() == kept


class _OtherServer(BaseHTTPRequestHandler):
    """Answers each request for ``/<status>/<body>/...`` with that status and body."""

    def do_GET(self) -> None:
        _, status, body, *_ = unquote(self.path).split("/")
        self.send_response(int(status))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(
    "path",
    [
        *("200/{}", "200/<html>", "200/null", '200/[{"name": "x"}]', "404/nothing", "404/{}"),
        *("400/{}", '400/{"message": "no such action"}', "405/<html>"),
    ],
)
def test_another_server_is_not_taken_for_a_registry(path: str) -> None:
    with HTTPServer(("127.0.0.1", 0), _OtherServer) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever, 0.02)
        url = f"http://127.0.0.1:{server.server_port}/{quote(path)}"
        schemas = RegistrySchemas(url, timeout=60.0, retries=0)
        try:
            with pytest.raises(Unavailable, match=r"did not answer like a schema registry .* check the URL") as raised:
                schemas.subjects()
            assert not re.search(r"\bNone\b|Error\(", str(raised.value))
        finally:
            schemas.close()
            server.shutdown()


def test_known_schemas_are_available_while_another_thread_waits_for_the_broker(nobody: str) -> None:
    schemas = TopicSchemas({"bootstrap.servers": nobody}, "shop.schemas", patience=600.0)
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(schemas.refresh)
        with pytest.raises(TimeoutError):
            reading.result(0.3)
        assert pool.submit(schemas.all).result(120.0) == {}
        assert not reading.done()
        schemas.close()
        assert isinstance(reading.exception(120.0), Unavailable)
    schemas.close()


def test_the_wait_for_another_thread_that_reads_is_bounded(nobody: str) -> None:
    schemas = TopicSchemas({"bootstrap.servers": nobody}, "shop.schemas", patience=1.0)
    with ThreadPoolExecutor(60) as pool:
        reading = [pool.submit(schemas.refresh) for _ in range(60)]
        _, left = wait(reading, 55.0)
        assert not left  # one after another they would take a minute
        assert all(isinstance(each.exception(), Unavailable) for each in reading)
    schemas.close()
