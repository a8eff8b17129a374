"""Runs ``relay`` commands in this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from relay.cli import app


def relay(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def errors(result: Result) -> list[str]:
    """Return the error messages on stderr, and check that nothing else is there."""
    lines = result.stderr.splitlines()
    assert all(line.startswith("relay: error: ") for line in lines), result.stderr
    return [line.removeprefix("relay: error: ") for line in lines]
