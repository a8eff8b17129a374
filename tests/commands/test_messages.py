"""What the command line says: the config by its name, and variables of the environment that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from relay.commands.options import read_config
from relay.errors import RelayError, Unavailable, checkpoints_deleted
from tests.command_line import errors, relay
from tests.listening import NOBODY, answering


@contextmanager
def named() -> Iterator[None]:
    try:
        yield
    finally:
        RelayError.file = "CONFIG"


def write(path: Path, **source: object) -> Path:
    sources = [{"name": "orders", "type": "dynamodb", "table": "orders", "region": "us-east-1", **source}]
    path.write_text(yaml.safe_dump({"name": "shop", "kafka": {"bootstrap_servers": NOBODY}, "sources": sources}))
    return path


def test_commands_in_errors_have_the_name_of_the_config(tmp_path: Path) -> None:
    assert "`relay reset CONFIG --lost-state`" in str(checkpoints_deleted("t"))
    with named():
        read_config(write(tmp_path / "my shop.yaml"), None)
        assert f"`relay reset '{tmp_path}/my shop.yaml' --lost-state`" in str(checkpoints_deleted("t"))
        assert str(Unavailable("MY_CONFIG")) == "MY_CONFIG"


def test_the_token_of_a_change_is_not_a_start(tmp_path: Path) -> None:
    token = tmp_path / "token.json"
    token.write_text('{"timestamp": 1, "shard": "s", "position": "DynamoDB/1"}')
    path = write(tmp_path / "relay.yaml", start={"token": str(token)})
    (said,) = errors(relay("check", path, "--offline"))
    assert f"this is not a stream token, which has a 'stream_arn': `relay status {path} --token SOURCE`" in said


def test_an_endpoint_that_is_another_server_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    with answering(HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        shown = relay("check", write(tmp_path / "relay.yaml", endpoint_url=url)).stdout.splitlines()
    (said,) = (line for line in shown if "source orders" in line)
    assert f"the server in region us-east-1 at {url} is not DynamoDB" in said
    assert "<" not in said


def test_a_state_folder_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state"
    file.touch()
    monkeypatch.setenv("RELAY_STATE", str(file))
    result = relay("services", "status")
    assert (result.exit_code, errors(result)) == (
        2,
        [f"the environment variable RELAY_STATE names {file}, which is not a folder"],
    )
