"""Runs a program as an unprivileged user while the tests run as root."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from relay.process.account import data_folder, give_ownership, reachable_copy, remove_server_folder, unprivileged

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# A Python starts the services, and this user may have no access to root's.
_BECOME = """
import encodings.idna, os, sys
def become_plain():
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1]))
    pythons = [sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"]
    sys.executable = next(each for each in pythons if os.access(each, os.X_OK))
    return os.getuid()
"""


def run_as_plain_user(program: str, folder: Path, cached: Mapping[str, Path]) -> str:
    """Run a program that calls ``become_plain()`` after its imports, and return its output.

    It has its own home and cache. ``cached``: folders to put into the cache, by their paths in it. ``folder``: the
    working folder, removed at the end.
    """
    account = unprivileged()
    assert account is not None
    home = data_folder(folder)
    try:
        for place, each in cached.items():
            (home / place).parent.mkdir(exist_ok=True)
            (home / place).symlink_to(reachable_copy(each))
        (home / "tmp").mkdir()
        give_ownership(home / "tmp")
        places = {"RELAY_CACHE": home, "HOME": home, "TMPDIR": home / "tmp"}
        answer = subprocess.run(
            [sys.executable, "-c", _BECOME + textwrap.dedent(program), str(account.uid), str(account.gid)],
            env={"PATH": os.environ["PATH"]} | {name: str(place) for name, place in places.items()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout
    finally:
        remove_server_folder(folder)
