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


@pytest.mark.parametrize("name", ["run", "status", "consume cache", "gaps list"])
def test_an_error_that_ends_a_command_is_a_log_line_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m", "relay.cli", *name.split(), str(tmp_path / "missing.yaml")]
    for arguments in (["--log-format", "json"], []):
        ended = subprocess.run([*command, *arguments], capture_output=True, timeout=600, check=False)
        [said] = map(json.loads, ended.stderr.splitlines())
        assert (ended.returncode, said["level"]) == (2, "ERROR")
        assert said["message"].endswith("missing.yaml: no such file")
        monkeypatch.setenv("RELAY_LOG_FORMAT", "json")
    ended = subprocess.run([*command, "--log-format", "text"], capture_output=True, timeout=600, check=False)
    assert ended.stderr.startswith(b"relay: error: ")


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
    command = [sys.executable, "-m", "relay.cli", *arguments.split()]
    for given in (["--log-format=json"], []):
        ended = subprocess.run([*command, *given], capture_output=True, timeout=600, check=False)
        [said] = map(json.loads, ended.stderr.splitlines())
        assert (ended.returncode, said["level"]) == (2, "ERROR")
        assert told in said["message"]
        monkeypatch.setenv("RELAY_LOG_FORMAT", "json")
    ended = subprocess.run([*command, "--log-format", "text"], capture_output=True, timeout=600, check=False)
    assert (ended.returncode, ended.stderr[:6]) == (2, b"Usage:")
