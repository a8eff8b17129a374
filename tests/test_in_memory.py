"""The folder in memory that brokers get in the tests."""

from __future__ import annotations

from pathlib import Path

from tests.in_memory import folder_in_memory


def test_a_folder_is_there_for_as_long_as_it_is_used(tmp_path: Path) -> None:
    with folder_in_memory(tmp_path, room=1) as folder:
        assert folder is not None
        assert folder.parent == tmp_path
        (folder / "log").touch()
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_too_little_room_or_no_such_place_there_is_none(tmp_path: Path) -> None:
    for place, room in ((tmp_path, 10**18), (tmp_path / "missing", 1)):
        with folder_in_memory(place, room) as folder:
            assert folder is None
