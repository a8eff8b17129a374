"""The units run commands that exist, and give them the time that they take to stop."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relay.cli import app
from relay.process import supervisor
from spark_consumers import runner, session
from tests import needs
from tests.deploy import DEPLOY

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
STOPS_WITHIN = {
    "relay@.service": supervisor._DRAIN_TIMEOUT,
    "relay-consume@.service": runner._DRAIN_TIMEOUT + session._EXIT_TIMEOUT,
}


def setting(unit: Path, key: str) -> list[str]:
    """Return the values of a key of a unit."""
    lines = unit.read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_with_options_that_it_has(unit: Path) -> None:
    variables = dict(pair.split("=", 1) for line in setting(unit, "Environment") for pair in shlex.split(line))
    (start,) = setting(unit, "ExecStart")
    for name, value in variables.items():
        start = start.replace(f"${{{name}}}", value).replace(f"${name}", value)
    program, *arguments = shlex.split(start.replace("%i", "missing"))
    assert program == "/opt/relay/bin/relay"
    # The arguments are right, so what it complains of is the config, which is not there.
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 2
    assert "/etc/relay/missing.yaml" in answer.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_where_its_process_may_write(unit: Path) -> None:
    """Spark ends where it cannot make a folder ``artifacts``."""
    (folder,) = setting(unit, "StateDirectory")
    assert setting(unit, "WorkingDirectory") == [f"/var/lib/{folder}"]
    assert f"RELAY_STATE=/var/lib/{folder}" in " ".join(setting(unit, "Environment"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_waits_longer_than_its_process_takes_to_stop(unit: Path) -> None:
    assert float(setting(unit, "TimeoutStopSec")[0]) > STOPS_WITHIN[unit.name]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_that_can_be_reloaded_has_started_once_a_signal_no_longer_ends_it(unit: Path) -> None:
    """Otherwise `systemctl reload` right after a start ends the process: SIGHUP has no handler yet."""
    assert setting(unit, "Type") == ["notify" for _ in setting(unit, "ExecReload")]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_a_unit(unit: Path, tmp_path: Path) -> None:
    program = needs.systemd_analyze()
    installed = tmp_path / unit.name
    installed.write_text(
        unit.read_text().replace("/opt/relay/bin/relay", "/bin/true").replace("User=relay", "User=root")
    )
    answer = subprocess.run(
        [program, "verify", "--man=no", str(installed)], capture_output=True, text=True, timeout=600
    )
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")
