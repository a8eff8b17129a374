"""What a machine may lack: tests that need it are skipped with the reason, or fail where it is required.

``RELAY_TEST_BROWSER``, ``RELAY_TEST_IMAGES``, ``RELAY_TEST_JAVASCRIPT``, ``RELAY_TEST_MYSQL``,
``RELAY_TEST_NATIVE``, ``RELAY_TEST_SYSTEMD`` and ``RELAY_TEST_VITESS`` require it if they are ``required``, as most are
in CI.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from relay.errors import Unavailable
from relay.jvm.jars import cache_folder
from relay.services.vitess_build import obstacle
from tests.mysql import debian_mysql
from tests.vitess.cluster_build import cluster_obstacle


def lacking(what: str, problem: str) -> NoReturn:
    """Skip the test with the reason; fail if ``what`` is required."""
    if os.environ.get(f"RELAY_TEST_{what}") == "required":
        pytest.fail(problem)
    pytest.skip(problem)


def vitess() -> None:
    if problem := obstacle():
        lacking("VITESS", problem)


def vitess_cluster() -> None:
    if problem := cluster_obstacle():
        lacking("VITESS", problem)


def compiled_core() -> None:
    if importlib.util.find_spec("relay.native._core") is None:
        lacking("NATIVE", "the compiled core was not built: install Rust, and run `make setup`")


def systemd_analyze() -> str:
    """Return the program that checks units."""
    return shutil.which("systemd-analyze") or lacking("SYSTEMD", "no systemd-analyze: systemd is not installed")


def mysqld() -> str:
    """Return the mysqld to start servers with; skip if ``RELAY_TEST_MYSQLD`` names none.

    The name ``debian`` stands for the server of Debian's sid.
    """
    program = os.environ.get("RELAY_TEST_MYSQLD")
    if not program:
        lacking("MYSQL", "no MySQL to test on: RELAY_TEST_MYSQLD=debian, or =/usr/sbin/mysqld (or a script like it)")
    if program != "debian":
        return program
    found, problem = _mysqld_of_debian()
    return found or lacking("MYSQL", problem)


@cache
def _mysqld_of_debian() -> tuple[str, str]:
    """Return the program, or why there is none: that is found out once, since it may take minutes."""
    try:
        return str(debian_mysql.mysqld()), ""
    except Unavailable as error:
        return "", str(error)


def has_mysqld() -> bool:
    """Whether a mysqld is named: it is preferred to a container, which has only one server."""
    return bool(os.environ.get("RELAY_TEST_MYSQLD"))


def javascript(source: Path) -> Path:
    """Return a copy of a folder with the packages that its lock file names; it needs Node 18 and npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        lacking("JAVASCRIPT", "no JavaScript: install Node.js 18 or later, with npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=600).stdout
    if int(version.removeprefix("v").partition(".")[0] or 0) < 18:
        lacking("JAVASCRIPT", f"Node.js {version.strip()} is too old: install 18 or later")
    files = [path for path in source.iterdir() if path.is_file()]
    digest = hashlib.sha256(b"".join(sorted(path.read_bytes() for path in files))).hexdigest()[:16]
    folder = cache_folder() / "tests" / f"javascript-{digest}"
    if not folder.is_dir():
        draft = folder.with_name(f"{folder.name}-{os.getpid()}")
        draft.mkdir(parents=True)
        for path in files:
            shutil.copy(path, draft)
        # Nothing that a package brings is run.
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        ran = subprocess.run(command, cwd=draft, capture_output=True, text=True, timeout=600)
        if ran.returncode != 0:
            shutil.rmtree(draft)
            pytest.fail(f"npm cannot install the packages of {source}: {ran.stderr[-300:]}")
        if not folder.is_dir():
            draft.rename(folder)
    return folder
