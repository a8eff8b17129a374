"""Log lines as JSON, and without passwords."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.observe.logs import JsonFormatter, TextFormatter
from tests.command_line import relay


def line(message: str, *arguments: object, **more: Any) -> dict[str, str]:
    record = logging.LogRecord("relay.x", logging.WARNING, "x.py", 1, message, arguments, more.get("exc_info"))
    record.created = 1_800_000_000.25
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return dict(json.loads(text))


def test_a_line_is_an_object_with_time_level_logger_and_message() -> None:
    assert line("shard %s\nis late", "ä\ud800") == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "WARNING",
        "logger": "relay.x",
        "message": "shard ä?\nis late",
    }


def test_an_exception_is_part_of_the_same_line() -> None:
    try:
        raise ValueError("of http://me:hunter2@host/")
    except ValueError:
        found = line("it failed", exc_info=sys.exc_info())
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: of http://***@host/")


def test_log_lines_do_not_show_the_user_and_password_of_a_url() -> None:
    assert line("cannot reach %s", "redis://:hunter2@cache:6379")["message"] == "cannot reach redis://***@cache:6379"
    record = logging.LogRecord("relay.x", logging.INFO, "x.py", 1, "at redis://:hunter2@cache", (), None)
    assert "hunter2" not in TextFormatter().format(record)


@pytest.fixture
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log to nothing, as a process that has just started, so that a command sets up its own log."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.delenv("RELAY_LOG_FORMAT", raising=False)


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("name", ["run", "status", "consume cache", "gaps list"])
def test_an_error_that_ends_a_command_is_a_log_line_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*name.split(), str(tmp_path / "missing.yaml")]
    for arguments in (["--log-format", "json"], []):
        logging.getLogger().handlers.clear()
        ended = relay(*command, *arguments)
        [said] = map(json.loads, ended.stderr.splitlines())
        assert (ended.exit_code, said["level"]) == (2, "ERROR")
        assert said["message"].endswith("missing.yaml: no such file")
        monkeypatch.setenv("RELAY_LOG_FORMAT", "json")
    assert relay(*command, "--log-format", "text").stderr.startswith("relay: error: ")


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("run x.yaml --workers many", "Invalid value for '--workers': 'many'"),
        ("gaps accept x.yaml id nothing", "'nothing' is not one of 'skip', 'resnapshot'"),
        ("run", "Missing argument 'CONFIG'. Try '"),
        ("bogus", "No such command 'bogus'. Try '"),
        ("--bogus run x.yaml", "No such option: --bogus"),
        ("token compare", "Missing argument 'A'"),
    ],
)
def test_wrong_usage_is_a_log_line_too(arguments: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = arguments.split()
    for given in (["--log-format=json"], []):
        logging.getLogger().handlers.clear()
        ended = relay(*command, *given)
        [said] = map(json.loads, ended.stderr.splitlines())
        assert (ended.exit_code, said["level"]) == (2, "ERROR")
        assert told in said["message"]
        monkeypatch.setenv("RELAY_LOG_FORMAT", "json")
    ended = relay(*command, "--log-format", "text")
    assert (ended.exit_code, ended.stderr[:6]) == (2, "Usage:")


@pytest.mark.processes
@pytest.mark.parametrize("arguments", ["run missing.yaml", "run missing.yaml --workers many"])
def test_a_process_that_ends_with_an_error_writes_one_log_line(arguments: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relay.cli", *arguments.split(), "--log-format", "json"]
    ended = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=600, check=False)
    [said] = map(json.loads, ended.stderr.splitlines())
    assert (ended.returncode, ended.stdout, said["level"]) == (2, b"", "ERROR")


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize(("options", "code"), [(["--set", "log.path=/proc/version/log"], 3), (None, 2)])
def test_an_exit_code_is_the_same_with_logs_in_json(options: list[str] | None, code: int, tmp_path: Path) -> None:
    """A finding of `relay check` is not an error of the command, and a missing argument is not an unexpected one."""
    path = tmp_path / "relay.yaml"
    source = "{name: orders, type: dynamodb, table: orders, region: eu-west-1}"
    path.write_text(f"name: shop\nkafka: {{bootstrap_servers: b}}\nsources: [{source}]\n")
    given = [] if options is None else [str(path), "--offline", *options]
    logging.getLogger().handlers.clear()
    ended = relay("check", *given, "--log-format", "json")
    assert ended.exit_code == code
    lines = [json.loads(line) for line in ended.stderr.splitlines() if "compiled core unavailable" not in line]
    assert [line["level"] for line in lines] == ["ERROR"] * (options is None)
    assert relay("check", *given).exit_code == code
