"""What a machine may lack: tests that need it are skipped with the reason, or fail where it is required."""

from __future__ import annotations

import os

import pytest

from relay.services.vitess_build import obstacle


def vitess() -> None:
    """Skip with the reason if Vitess cannot be built; with ``RELAY_TEST_VITESS=required``, as in CI, fail instead."""
    if problem := obstacle():
        if os.environ.get("RELAY_TEST_VITESS") == "required":
            pytest.fail(problem)
        pytest.skip(problem)


def mysqld() -> str:
    """Return the mysqld to start servers with; skip if ``RELAY_TEST_MYSQLD`` names none."""
    program = os.environ.get("RELAY_TEST_MYSQLD")
    if not program:
        pytest.skip("no MySQL to test on: RELAY_TEST_MYSQLD=/usr/sbin/mysqld (or a script that takes its options)")
    return program


def has_mysqld() -> bool:
    """Whether a mysqld is named: it is preferred to a container, which has only one server."""
    return bool(os.environ.get("RELAY_TEST_MYSQLD"))
