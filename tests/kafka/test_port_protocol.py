"""What a port that is not a broker's speaks, and files of TLS that are not there."""

from __future__ import annotations

import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from relay.config import Config
from relay.errors import ConfigError, Unavailable
from relay.kafka import topics
from relay.kafka.port_protocol import spoken
from relay.kafka.settings import unusable_security
from tests.certificates import Authority
from tests.listening import NOBODY, accepted, answering


def config(servers: str, **producer: str) -> Config:
    source = {"name": "orders", "type": "dynamodb", "table": "orders"}
    kafka = {"bootstrap_servers": servers, "producer": producer}
    return Config.model_validate({"name": "shop", "kafka": kafka, "sources": [source]})


def test_a_port_that_speaks_http_is_named() -> None:
    with answering(HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)) as server:
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(Unavailable, match=f"{address} speaks HTTP, so it is not a Kafka broker"):
            topics.connect(config(address), 1.0)


def test_a_port_that_answers_is_not_a_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer_all, args=[listener], daemon=True).start()
        broker = f"127.0.0.1:{listener.getsockname()[1]}"
        assert "speaks another protocol, so it is not a Kafka broker" in spoken(broker)


def answer_all(listener: socket.socket) -> None:
    for connection in accepted(listener):
        with connection:
            connection.sendall(b"-ERR unknown command")


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
