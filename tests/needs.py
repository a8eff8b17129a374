"""What a machine may lack: told by the tests that need it, and an error where it has to be there."""

from __future__ import annotations

import os

import pytest

from relay.services.vitess_build import obstacle


def vitess() -> None:
    """Skip with the reason where Vitess cannot be built. ``RELAY_TEST_VITESS=required``, as in CI: fail instead."""
    if problem := obstacle():
        if os.environ.get("RELAY_TEST_VITESS") == "required":
            pytest.fail(problem)
        pytest.skip(problem)


def mysqld() -> str:
    """Return the mysqld to run servers of; skip where none is named."""
    program = os.environ.get("RELAY_TEST_MYSQLD")
    if not program:
        pytest.skip("no MySQL to test on: RELAY_TEST_MYSQLD=/usr/sbin/mysqld (or a script that takes its options)")
    return program


def has_mysqld() -> bool:
    """Whether one is named: it comes before a container, which has one server alone."""
    return bool(os.environ.get("RELAY_TEST_MYSQLD"))
