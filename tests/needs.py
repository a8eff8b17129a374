"""What a machine may lack: told by the tests that need it, and an error where it has to be there."""

from __future__ import annotations

import os

import pytest

from relay.local.vitess_build import obstacle


def vitess() -> None:
    """Skip with the reason where Vitess cannot be built. ``RELAY_TEST_VITESS=required``, as in CI: fail instead."""
    if problem := obstacle():
        if os.environ.get("RELAY_TEST_VITESS") == "required":
            pytest.fail(problem)
        pytest.skip(problem)
