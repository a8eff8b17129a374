"""Runs ``relay`` commands, in this process and in others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from relay.cli import app
from tests.traces import no_traces_left


def relay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_until_caught_up(path: Path, expected_code: int = 0) -> str:
    """Run a relay in this process until it has read everything, check its exit code, and return what it printed.

    A process of its own takes a second of CPU to start.
    """
    with no_traces_left():
        code, output, exception = _run_until_caught_up(path)
    assert code == expected_code, (output, exception)
    return output


def _run_until_caught_up(path: Path) -> tuple[int, str, str]:
    """Keep no exception, whose traceback has the clients of Kafka."""
    result = relay("run", path, "--until-caught-up")
    return result.exit_code, result.output, repr(result.exception)


Relay = Callable[..., subprocess.CompletedProcess[str]]


def relay_with(config: Mapping[str, Any], folder: Path, *secrets: str) -> Relay:
    """Return what runs a command in a process, with the path of the config for CONFIG, and as the config is by then.

    It checks that none of the secrets is in the output.
    """

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "relay.cli", *_prepared(config, folder, arguments)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        _check_secrets(answer.stdout + answer.stderr, secrets)
        return answer

    return run


RelayHere = Callable[..., Result]


def relay_here_with(
    config: Mapping[str, Any], folder: Path, captured: pytest.CaptureFixture[str], *secrets: str
) -> RelayHere:
    """Return what runs a command in this process, otherwise like `relay_with`.

    ``captured``: the fixture ``capfd``, which has what clients of Kafka write past Python.
    """

    def run(*arguments: str) -> Result:
        with no_traces_left():
            answer = relay(*_prepared(config, folder, arguments))
        _check_secrets(answer.output + "".join(captured.readouterr()), secrets)
        return answer

    return run


def _prepared(config: Mapping[str, Any], folder: Path, arguments: Iterable[str]) -> list[str]:
    """Write the config, and return the arguments with its path."""
    path = folder / "relay.yaml"
    path.write_text(yaml.safe_dump(config))
    return [str(path) if each == "CONFIG" else each for each in arguments]


def _check_secrets(output: str, secrets: Iterable[str]) -> None:
    for secret in secrets:
        assert secret not in output


def errors(result: Result) -> list[str]:
    """Return the error messages on stderr, and check that nothing else is there."""
    lines = result.stderr.splitlines()
    assert all(line.startswith("relay: error: ") for line in lines), result.stderr
    return [line.removeprefix("relay: error: ") for line in lines]
