"""Background services: up, status, down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from relay.errors import ConfigError, RelayError
from relay.process.managed import started_at
from relay.services import background
from relay.services.background import down, status, up
from tests import needs
from tests.process.processes import gone
from tests.waiting import wait_until


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RELAY_STATE", str(tmp_path))
    yield tmp_path
    down()


def record(state: Path, pid: int, started: str | None = None) -> None:
    """Record a process as a Redis that was started some time ago."""
    log = state / "services" / "redis" / "redis.log"
    started = started or started_at(pid)
    assert started is not None
    entry = {"name": "redis", "address": "redis://127.0.0.1:1/0", "port": 1, "pid": pid, "started": started}
    log.parent.mkdir(parents=True, exist_ok=True)
    (log.parent / "service.json").write_text(json.dumps(entry | {"log": str(log)}))


def process_in(folder: Path, program: str) -> int | None:
    """Return the process of a program that writes to a file in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                Path(os.readlink(process / "exe")).name == program
                and Path(os.readlink(process / "fd" / "1")).parent == folder
            ):
                return int(process.name)
    return None


class TestState:
    def test_nothing_is_recorded_at_first(self, state: Path) -> None:
        assert status() == []
        assert down() == []

    def test_an_unknown_name_is_refused_with_the_known_ones(self, state: Path) -> None:
        with pytest.raises(
            ConfigError, match="'redsi': use one of kafka, dynamodb, redis, memcached, postgres, registry"
        ):
            up(["redsi"])

    def test_a_reused_process_number_is_not_killed(self, state: Path) -> None:
        with subprocess.Popen(["sleep", "300"], start_new_session=True) as child:
            record(state, child.pid, started="1")
            assert [each.running for each in status()] == [False]
            assert down() == []
            assert child.poll() is None
            child.kill()
        assert status() == []

    def test_down_kills_a_process_that_ignores_sigterm(self, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(background, "_STOP_SECONDS", 0.5)
        program = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(300)"
        with subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            record(state, child.pid)
            assert [each.name for each in down()] == ["redis"]
            assert child.wait(60) == -signal.SIGKILL

    def test_an_unreadable_state_file_is_named(self, state: Path) -> None:
        file = state / "services" / "redis" / "service.json"
        file.parent.mkdir(parents=True)
        file.write_text("{")
        with pytest.raises(RelayError, match=r"cannot read the list of services in .*service\.json: remove the file"):
            status()
        file.unlink()

    def test_a_zombie_does_not_count_as_running(self) -> None:
        with subprocess.Popen(["sleep", "300"]) as child:
            assert started_at(child.pid) is not None
            child.kill()
            assert gone(child.pid)


@pytest.mark.services
class TestRoundTrip:
    def test_up_starts_status_lists_and_down_stops(self, state: Path) -> None:
        (service,) = up(["redis"])
        assert [each.as_dict() for each in status()] == [
            {
                "name": "redis",
                "running": True,
                "address": service.address,
                "pid": service.pid,
                "log": str(state / "services" / "redis" / "redis.log"),
            }
        ]
        with Redis.from_url(service.address) as client:
            assert client.ping()
        assert down() == [service]
        assert gone(service.pid)
        assert status() == []
        assert not (state / "services" / "redis").exists()

    def test_up_starts_only_services_that_are_not_running(self, state: Path) -> None:
        first = up(["redis"])
        assert up(["redis"]) == first
        redis, dynamodb = up(["redis", "dynamodb"])
        assert [redis] == first
        assert up(["dynamodb", "redis"]) == [dynamodb, redis]
        os.killpg(redis.pid, signal.SIGKILL)
        assert gone(redis.pid)
        assert {each.name: each.running for each in status()} == {"redis": False, "dynamodb": True}
        (again,) = up(["redis"])
        assert again.pid != redis.pid
        assert {each.name for each in down()} == {"redis", "dynamodb"}

    def test_a_service_outlives_the_command_that_started_it(self, state: Path) -> None:
        program = "from relay.services.background import up; print(up(['redis'])[0].pid)"
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        (service,) = status()
        assert service.pid == int(answer.stdout)
        assert service.running
        assert answer.stderr == ""
        down()
        assert gone(service.pid)

    @pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for a process in /proc")
    @pytest.mark.parametrize(("name", "program"), [("dynamodb", "java"), ("vitess", "mariadbd")])
    def test_a_service_whose_command_is_killed_before_it_is_ready_is_stopped_by_down(
        self, state: Path, name: str, program: str
    ) -> None:
        if name == "vitess":
            needs.vitess()
        with subprocess.Popen(
            [sys.executable, "-c", f"from relay.services.background import up; up(['{name}'])"]
        ) as command:
            first = wait_until(lambda: process_in(state / "services" / name, program))
            os.kill(first, signal.SIGSTOP)  # so that it is never ready
            wait_until(lambda: status() or None)
            command.kill()
        os.kill(first, signal.SIGCONT)
        assert [each.pid for each in down()] == [first]
        assert gone(first)
