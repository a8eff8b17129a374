"""The folder in memory that brokers get in the tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_memory import folder_in_memory

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.in_memory import folder_in_memory

with folder_in_memory(Path(sys.argv[1]), room=1) as folder:
    (folder / "log").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_is_there_for_as_long_as_it_is_used(tmp_path: Path) -> None:
    with folder_in_memory(tmp_path, room=1) as folder:
        assert folder is not None
        assert folder.parent == tmp_path
        (folder / "log").touch()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_process_that_was_killed_is_removed_and_no_other(tmp_path: Path) -> None:
    with folder_in_memory(tmp_path, room=1) as used:
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
        assert len(list(tmp_path.iterdir())) == 2
        with folder_in_memory(tmp_path, room=1) as folder:
            assert set(tmp_path.iterdir()) == {used, folder}


def test_where_there_is_too_little_room_or_no_such_place_there_is_none(tmp_path: Path) -> None:
    for place, room in ((tmp_path, 10**18), (tmp_path / "missing", 1)):
        with folder_in_memory(place, room) as folder:
            assert folder is None


@pytest.mark.parametrize(("processes", "fits"), [("1", True), ("4", False)])
def test_there_has_to_be_room_for_every_process_of_a_run(
    tmp_path: Path, processes: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", processes)
    with folder_in_memory(tmp_path, shutil.disk_usage(tmp_path).free // 2) as folder:
        assert (folder is not None) == fits
