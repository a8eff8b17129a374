"""How many processes the tests get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.parallel import of_this_machine, processes


@pytest.mark.parametrize(
    ("cores", "memory", "number"), [(2, 24.0, 4), (2, 7.5, 3), (1, 64.0, 3), (4, 16.0, 5), (4, 32.0, 8), (64, 256.0, 8)]
)
def test_there_are_two_processes_a_core_where_their_services_find_room(cores: int, memory: float, number: int) -> None:
    assert processes(cores, memory) == number


def test_the_limits_of_a_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 26}.__getitem__)
    assert of_this_machine(tmp_path) == 8
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert of_this_machine(tmp_path) == 8
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert of_this_machine(tmp_path) == 5
    (tmp_path / "memory.max").write_text("13000000000\n")
    assert of_this_machine(tmp_path) == 4
