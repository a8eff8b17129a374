"""Signals have their meaning from the first instant, and a SIGHUP that comes too early is not lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Stops where the command line begins to be imported, until it gets a line.
STOPPED = """
import sys
class Stop:
    def find_spec(self, name, path, target=None):
        if name == "relay.cli":
            print("importing", flush=True)
            sys.stdin.readline()
sys.meta_path.insert(0, Stop())
from relay.__main__ import main
main()
"""

RELOADING = """
import sys
from relay.process.signals import Signals, hold
hold(reloads=True)
print("held", flush=True)
sys.stdin.readline()
with Signals(lambda: print("reloads")):
    pass
"""


HELD = """
import sys
from relay.__main__ import main
from relay.process.signals import hold
print(*sys.modules)
"""


@contextmanager
def running(
    program: str, *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run ``program`` up to the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("command", [("run", "missing.yaml"), ("consume", "cache", "missing.yaml")])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_stop_while_a_service_is_imported_is_clean(
    command: tuple[str, ...], signum: signal.Signals, code: int
) -> None:
    with running(STOPPED, *command) as process:
        process.send_signal(signum)
        _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (code, "")


def test_another_command_that_is_ended_while_it_is_imported_does_not_claim_to_have_succeeded() -> None:
    with running(STOPPED, "status", "missing.yaml") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == -signal.SIGTERM


def test_a_reload_that_comes_while_a_relay_is_imported_does_not_end_it() -> None:
    with running(STOPPED, "run", "missing.yaml") as process:
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate("\n", timeout=600)
    assert process.returncode == 2  # there is no such config
    assert "missing.yaml" in err


def test_little_is_imported_before_signals_are_handled() -> None:
    """A SIGHUP would end the process until then; `typing` and `re` took most of that time."""
    found = subprocess.run([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True, check=True)
    plain = subprocess.run(
        [sys.executable, "-c", "import signal, sys; print(*sys.modules)"], stdout=subprocess.PIPE, text=True
    )
    ours = {"relay", "relay.__main__", "relay.process", "relay.process.signals"}
    assert {*found.stdout.split()} - {*plain.stdout.split()} - ours == {"__future__"}


def test_a_reload_waits_until_it_can_be_handled() -> None:
    with running(RELOADING) as process:
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate("\n", timeout=600)
    assert (process.returncode, out) == (0, "reloads\n")


def test_systemd_hears_that_signals_can_be_sent(tmp_path: Path) -> None:
    """`systemctl reload` right after the start would otherwise kill the relay."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(600)
        with running(STOPPED, "run", "missing.yaml", environment={"NOTIFY_SOCKET": address}) as process:
            assert systemd.recv(100) == b"READY=1"
            status = Path(f"/proc/{process.pid}/status").read_text()
    (blocked,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")]
    assert int(blocked, 16) >> signal.SIGHUP - 1 & 1
