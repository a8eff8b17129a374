"""What a port that is not a broker's speaks, and files of TLS that are not there."""

from __future__ import annotations

import ssl
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from relay.config import Config
from relay.errors import ConfigError, Unavailable
from relay.kafka import topics
from relay.kafka.settings import unusable_security
from relay.kafka.spoken import spoken
from tests.certificates import Authority
from tests.listening import NOBODY, answering


def config(servers: str, **producer: str) -> Config:
    source = {"name": "orders", "type": "dynamodb", "table": "orders"}
    kafka = {"bootstrap_servers": servers, "producer": producer}
    return Config.model_validate({"name": "shop", "kafka": kafka, "sources": [source]})


def test_a_port_that_speaks_http_is_named() -> None:
    with answering(HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)) as server:
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(Unavailable, match=f"{address} speaks HTTP, so it is not a broker"):
            topics.connect(config(address), 1.0)


def test_a_port_that_speaks_tls_is_named(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path).issue("broker"))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with answering(server):
        address = f"127.0.0.1:{server.server_port}"
        assert spoken(f"{NOBODY},plaintext://{address}").startswith(f"plaintext://{address} speaks TLS: set `security")


@pytest.mark.parametrize("brokers", [NOBODY, "localhost", f"ssl://{NOBODY}"])
def test_nothing_is_said_of_a_port_that_does_not_answer(brokers: str) -> None:
    assert spoken(brokers) == ""


def test_a_file_of_tls_that_is_not_there_is_named() -> None:
    asked = config(NOBODY, **{"security.protocol": "ssl", "ssl.ca.location": "/no/ca.pem"})
    said = "`ssl.ca.location`: there is no file /no/ca.pem, or it cannot be read"
    with pytest.raises(ConfigError, match=said):
        topics.connect(asked)
    assert unusable_security(asked) == said
