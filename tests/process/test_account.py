"""The account that databases run as, and the folders it can reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.process import account as module
from relay.process.account import Account, data_folder, reachable_copy, reaches, remove_server_folder, unprivileged
from tests.services.plain_user import needs_root

STRANGER = Account(uid=54321, gid=54321)


def test_a_folder_is_out_of_reach_if_a_parent_is_closed(tmp_path: Path) -> None:
    owner, inner = Account(tmp_path.stat().st_uid, tmp_path.stat().st_gid), tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    assert reaches(owner, inner)
    assert not reaches(STRANGER, inner)
    inner.chmod(0o300)
    assert not reaches(owner, inner)
    inner.chmod(0o700)


def test_an_unprivileged_users_data_is_in_the_servers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert unprivileged() is None
    assert data_folder(tmp_path) == data_folder(tmp_path) == (tmp_path / "data").resolve()
    assert reachable_copy(tmp_path) == tmp_path
    remove_server_folder(tmp_path)
    assert not tmp_path.exists()
    remove_server_folder(tmp_path)


@needs_root
def test_programs_that_only_root_can_reach_are_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROGRAMS", Path("/var/tmp") / f"relay-test-{tmp_path.name}-{os.getpid()}")
    account = unprivileged()
    assert account is not None
    (tmp_path / "tool-1").mkdir(mode=0o700)
    (tmp_path / "tool-1" / "run").write_text("1")
    (tmp_path / "tool-1" / "run").chmod(0o700)
    try:
        copy = reachable_copy(tmp_path / "tool-1")
        assert reaches(account, copy)
        assert (copy / "run").stat().st_mode & 0o777 == 0o755
        (tmp_path / "tool-1" / "run").write_text("2")
        assert reachable_copy(tmp_path / "tool-1") == copy
        assert (copy / "run").read_text() == "1"
    finally:
        remove_server_folder(module._PROGRAMS)
