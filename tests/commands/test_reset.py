"""``relay reset --to``: what it takes; what it does is in ``tests/operations``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import errors, relay
from tests.listening import give_up_on_brokers_at_once

LEGACY = '{name: legacy, type: mysql, database: d, shards: {"-": ["127.0.0.1:1"]}}'
ORDERS = "{name: orders, type: dynamodb, table: orders, region: eu-west-1}"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    give_up_on_brokers_at_once(monkeypatch)
    path = tmp_path / "relay.yaml"
    path.write_text(f'name: shop\nkafka: {{bootstrap_servers: "127.0.0.1:1"}}\nsources: [{LEGACY}, {ORDERS}]\n')
    return path


@pytest.mark.parametrize("start", ["{gtid: {'-': MariaDB/0-1-5}}", "current", "-2h"])
def test_a_start_may_be_written_as_in_the_config(file: Path, start: str) -> None:
    """The broker is not there, and what is right goes on to look for it."""
    result = relay("reset", file, "legacy", "--to", start)
    assert result.exit_code == 3
    assert errors(result)[0].startswith("no Kafka broker answers at ")


@pytest.mark.parametrize("start", ["{token: FILE}", "token:FILE"])
def test_a_token_may_be_written_as_in_the_config(file: Path, start: str, tmp_path: Path) -> None:
    token = tmp_path / "token.json"
    token.write_text("{")
    result = relay("reset", file, "orders", "--to", start.replace("FILE", str(token)))
    assert result.exit_code == 2
    assert errors(result)[0].startswith(f"--to: {token}:1:2: not valid JSON: ")


@pytest.mark.parametrize(("source", "start"), [("orders", "{gtid: {'-': MariaDB/0-1-5}}"), ("legacy", "{token: x}")])
def test_a_start_of_another_kind_of_source_is_refused(file: Path, source: str, start: str) -> None:
    result = relay("reset", file, source, "--to", start)
    assert result.exit_code == 2
    assert errors(result)[0].startswith("--to: ")


@pytest.mark.parametrize(
    "arguments",
    [["orders"], ["--to", "latest"], [], ["orders", "--lost-state"], ["--lost-state", "--dry-run"]],
    ids=" ".join,
)
def test_one_source_is_reset_or_lost_state_is_accepted(file: Path, arguments: list[str]) -> None:
    result = relay("reset", file, *arguments)
    assert result.exit_code == 2
    assert "--lost-state" in result.stderr


def test_the_help_has_every_kind_of_start() -> None:
    text = " ".join(relay("reset", "--help").stdout.split())
    for word in ("-30s", "trim_horizon", "latest", "token:PATH", "current", "{gtid:", "copy", "{vgtid:"):
        assert word in text
