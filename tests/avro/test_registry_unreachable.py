"""What users are told when there is nothing where the schemas should be."""

from __future__ import annotations

import socket

import pytest

from relay.avro.registry import RegistrySchemas, TopicSchemas
from relay.errors import Unavailable


@pytest.fixture
def nobody() -> str:
    """Give an address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_broker_that_does_not_answer_is_named(nobody: str) -> None:
    schemas = TopicSchemas({"bootstrap.servers": nobody}, "shop.schemas", patience=0.5)
    with pytest.raises(Unavailable, match=f"the topic shop.schemas at {nobody} cannot be looked for"):
        schemas.lookup(b"\xc3\x01" + bytes(8))
    schemas.close()


def test_a_registry_that_does_not_answer_is_named_without_its_password(nobody: str) -> None:
    schemas = RegistrySchemas(f"http://user:secret@{nobody}/apis")
    with pytest.raises(
        Unavailable, match=rf"the schema registry at http://\*\*\*@{nobody}/apis does not answer"
    ) as raised:
        schemas.lookup(b"\x00\x00\x00\x00\x01")
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(schemas)
    schemas.close()
