"""`relay services`: what it prints, and with which exit code it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.command_line import errors, relay


@pytest.mark.services
def test_services_come_up_are_seen_and_go_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_STATE", str(tmp_path))
    assert relay("services", "status", "--json").stdout == "[]\n"
    assert relay("services", "status").stdout == "no services are running\n"
    up = relay("services", "up", "redis", "--json")
    assert up.exit_code == 0, up.output
    (service,) = json.loads(up.stdout)
    assert (service["name"], service["running"]) == ("redis", True)
    try:
        assert json.loads(relay("services", "status", "--json").stdout) == [service]
        assert f"redis     running  {service['address']}" in relay("services", "status").stdout
        os.kill(service["pid"], 0)
    finally:
        down = relay("services", "down", "--json")
    assert down.exit_code == 0, down.output
    assert [(found["name"], found["running"]) for found in json.loads(down.stdout)] == [("redis", False)]


def test_a_service_of_another_name_exits_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_STATE", str(tmp_path))
    result = relay("services", "up", "oracle")
    assert result.exit_code == 2
    assert errors(result) == [
        "unknown service 'oracle': use one of kafka, dynamodb, redis, memcached, postgres, registry, mariadb, vitess"
    ]
