"""The supervisor of ``relay run --workers``: it restarts workers that die, and no worker outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relay.process.supervisor import Supervisor, WorkersFailed
from tests.waiting import wait_until


def script(folder: Path, text: str) -> list[str]:
    """Return the command of a worker that records its number and pid, and then runs ``text``."""
    path = folder / "worker.py"
    path.write_text(
        "import os, signal, sys, time\n"
        f"with open({str(folder / 'started')!r}, 'a') as f:\n"
        "    f.write(os.environ['RELAY_WORKER'] + ' ' + str(os.getpid()) + chr(10))\n" + text
    )
    return [sys.executable, str(path)]


def started(folder: Path) -> list[tuple[int, int]]:
    path = folder / "started"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(number), int(pid)) for number, pid in map(str.split, lines)]


def test_with_until_done_each_worker_runs_once_to_its_end(tmp_path: Path) -> None:
    Supervisor(script(tmp_path, "sys.exit(0)\n"), 3, until_done=True).run()
    assert sorted(number for number, _ in started(tmp_path)) == [0, 1, 2]


def test_with_until_done_a_worker_that_fails_lets_the_others_finish(tmp_path: Path) -> None:
    """I12: what it has set aside ends the command with its code, once nothing else is left."""
    done = tmp_path / "done"
    text = f"sys.exit(1) if os.environ['RELAY_WORKER'] == '0' else (time.sleep(2), open({str(done)!r}, 'w').close())\n"
    with pytest.raises(WorkersFailed, match="worker 0 ended with exit code 1") as failed:
        Supervisor(script(tmp_path, text), 2, until_done=True).run()
    assert failed.value.exit_code == 1
    assert done.exists()
    assert sorted(number for number, _ in started(tmp_path)) == [0, 1]


def test_a_killed_worker_is_restarted_with_its_number(tmp_path: Path) -> None:
    """I10: SIGKILL of one worker does not affect the others."""
    supervisor = Supervisor(script(tmp_path, "time.sleep(600)\n"), 2)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        first = wait_until(lambda: started(tmp_path) if len(started(tmp_path)) == 2 else None, 30)
        number, pid = first[0]
        os.kill(pid, signal.SIGKILL)
        again = wait_until(lambda: started(tmp_path)[2:] or None, 30)
        assert [found for found, _ in again] == [number]
    finally:
        supervisor.stop()
        thread.join()
    assert not any(map(is_alive, [pid for _, pid in started(tmp_path)]))


def test_an_invalid_config_ends_all_workers_at_once(tmp_path: Path) -> None:
    """After exit code 2 a restart cannot help."""
    text = "sys.exit(2) if os.environ['RELAY_WORKER'] == '1' else time.sleep(600)\n"
    with pytest.raises(WorkersFailed, match="worker 1 ended with exit code 2") as failed:
        Supervisor(script(tmp_path, text), 2).run()
    assert failed.value.exit_code == 2
    assert not any(map(is_alive, [pid for _, pid in started(tmp_path)]))


def test_a_worker_that_keeps_dying_ends_the_supervisor_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.process.supervisor._LONGEST_BACKOFF", 0.1)
    with pytest.raises(WorkersFailed, match="5 times in a row") as failed:
        Supervisor(script(tmp_path, "sys.exit(3)\n"), 1).run()
    assert failed.value.exit_code == 3
    assert len(started(tmp_path)) == 5


def test_no_worker_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    command = script(tmp_path, "time.sleep(600)\n")
    program = f"from relay.process.supervisor import run; run({command!r}, 2, until_done=False)"
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(lambda: started(tmp_path) if len(started(tmp_path)) == 2 else None, 30)
    finally:
        parent.kill()
        parent.wait()
    pids = [pid for _, pid in started(tmp_path)]
    wait_until(lambda: True if not any(map(is_alive, pids)) else None, 30)


def test_sigterm_stops_all_workers_cleanly(tmp_path: Path) -> None:
    text = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"open({str(tmp_path / 'ready')!r} + os.environ['RELAY_WORKER'], 'w').close()\n"
        "time.sleep(600)\n"
    )
    command = script(tmp_path, text)
    program = f"from relay.process.supervisor import run; run({command!r}, 2, until_done=False)"
    parent = subprocess.Popen([sys.executable, "-c", program])
    wait_until(lambda: all((tmp_path / f"ready{number}").exists() for number in range(2)))
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(120) == 0
    assert not any(map(is_alive, [pid for _, pid in started(tmp_path)]))


def test_a_worker_that_is_still_starting_gets_the_reload_once_it_can_handle_it(tmp_path: Path) -> None:
    text = (
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        f"signal.signal(signal.SIGHUP, lambda *_: open({str(tmp_path / 'reloaded')!r}, 'w').close())\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})\n"
        "time.sleep(600)\n"
    )
    supervisor = Supervisor(script(tmp_path, text), 1)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        [(_, pid)] = wait_until(lambda: started(tmp_path) or None, 30)
        supervisor.reload()
        wait_until(lambda: True if has_pending(pid, signal.SIGHUP) else None, 30)
        (tmp_path / "go").touch()
        wait_until(lambda: (tmp_path / "reloaded").exists() or None, 30)
    finally:
        supervisor.stop()
        thread.join()
    assert len(started(tmp_path)) == 1


def has_pending(pid: int, signum: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) >> signum - 1 & 1 for line in lines if line.startswith("ShdPnd:"))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie, a child that has not been waited for yet, is not alive.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
