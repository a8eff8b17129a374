"""Child processes and ports."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from relay.errors import Unavailable
from relay.process.managed import HOST, ManagedProcess, accepts, free_port, taken
from relay.services.redis import RedisServer
from tests.process.processes import gone


def shell(tmp_path: Path, script: str) -> ManagedProcess:
    return ManagedProcess(["/bin/sh", "-c", script], tmp_path / "log")


class TestManagedProcess:
    def test_stop_ends_its_children_too(self, tmp_path: Path) -> None:
        process = shell(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child; wait")
        process.start()
        process.wait_until(lambda: bool((tmp_path / "child").exists() and (tmp_path / "child").read_text()), 60, "it")
        child = int((tmp_path / "child").read_text())
        process.stop()
        assert not process.alive
        assert gone(process.pid)
        assert gone(child)

    def test_stop_ends_children_that_outlived_the_process(self, tmp_path: Path) -> None:
        process = shell(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child")
        process.start()
        process.process.wait(60)
        child = int((tmp_path / "child").read_text())
        assert not gone(child, within=0)
        process.stop()
        assert gone(child)

    def test_a_process_that_ignores_sigterm_is_killed(self, tmp_path: Path) -> None:
        process = shell(tmp_path, f"trap '' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done")
        process.start()
        process.wait_until((tmp_path / "up").exists, 60, "it")
        process.stop(timeout=0.3)
        assert process.returncode == -9

    def test_stop_before_start_and_after_stop_does_nothing(self, tmp_path: Path) -> None:
        process = shell(tmp_path, "sleep 300")
        process.stop()
        process.start()
        process.stop()
        process.stop()
        assert not process.alive

    def test_a_process_that_dies_before_it_is_ready_is_reported_with_its_log(self, tmp_path: Path) -> None:
        process = shell(tmp_path, "echo the disk is full >&2; exit 3")
        process.start()
        with pytest.raises(Unavailable, match=r"thing ended with status 3:\nthe disk is full"):
            process.wait_until(lambda: False, 60, "thing")
        process.stop()

    def test_a_process_that_is_never_ready_is_reported_with_its_log(self, tmp_path: Path) -> None:
        process = shell(tmp_path, "echo still loading; sleep 300")
        process.start()
        process.wait_until(lambda: "loading" in process.log_tail(), 60, "thing")
        with pytest.raises(Unavailable, match=r"thing was not ready after 0 s:\nstill loading"):
            process.wait_until(lambda: False, 0.2, "thing")
        process.stop()

    def test_an_answer_from_another_process_does_not_make_a_dead_one_ready(self, tmp_path: Path) -> None:
        process = shell(tmp_path, "exit 1")
        process.start()
        process.process.wait(60)
        with pytest.raises(Unavailable, match="ended with status 1"):
            process.wait_until(lambda: True, 60, "thing")
        process.stop()

    def test_a_process_outlives_the_thread_that_started_it(self, tmp_path: Path) -> None:
        process = shell(tmp_path, "sleep 300")
        thread = threading.Thread(target=process.start)
        thread.start()
        thread.join()
        assert not gone(process.pid, within=0.5)
        process.stop()

    def test_a_process_gets_the_given_environment_and_a_session_of_its_own(self, tmp_path: Path) -> None:
        process = ManagedProcess(["/bin/sh", "-c", "echo $GREETING; sleep 300"], tmp_path / "log", {"GREETING": "hi"})
        process.start()
        process.wait_until(lambda: "hi" in process.log_tail(), 60, "it")
        assert os.getsid(process.pid) == process.pid
        process.stop()

    def test_a_command_that_does_not_exist_is_an_error(self, tmp_path: Path) -> None:
        process = ManagedProcess(["/nowhere/at-all"], tmp_path / "log")
        process.start()
        with pytest.raises(Unavailable, match="No such file or directory"):
            process.wait_until(lambda: False, 60, "it")
        process.stop()


class TestPorts:
    def test_a_free_port_can_be_listened_on_and_is_not_ephemeral(self) -> None:
        port = free_port()
        assert 1024 < port < 32768
        with socket.create_server((HOST, port)):
            assert taken(port)
            assert accepts(port)
        assert not accepts(port)

    def test_a_port_in_use_on_all_addresses_is_taken(self) -> None:
        port = free_port()
        with socket.create_server(("", port)):
            assert taken(port)


class Robbed(RedisServer):
    """A server whose first port is taken by another process between choice and start."""

    robbers: list[socket.socket]

    def _prepare(self) -> None:
        if not self.robbers:
            self.robbers.append(socket.create_server((HOST, self.port)))


@pytest.mark.services
def test_a_server_whose_port_was_taken_meanwhile_chooses_another() -> None:
    server = Robbed()
    server.robbers = []
    with server:
        (robber,) = server.robbers
        assert server.port != robber.getsockname()[1]
        robber.close()
