"""Which of the two makes records, the compiled core or plain Python, and who is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relay import native
from tests import needs

LOGGED = "import logging; logging.basicConfig(level='INFO', format='%(message)s'); from relay import native; "


def ran(code: str, **environment: str) -> str:
    """Run ``code`` in a process of its own, and return what it prints and logs."""
    done = subprocess.run(
        [sys.executable, "-c", LOGGED + code], capture_output=True, text=True, timeout=600, check=True, env=environment
    )
    return done.stdout + done.stderr


def test_plain_python_is_announced_once() -> None:
    said = ran("print([native.core() for _ in range(3)])", RELAY_NATIVE="off")
    assert said.count("compiled core unavailable, using pure Python") == 1
    assert "RELAY_NATIVE=off" in said
    assert "[None, None, None]" in said


def test_a_core_of_other_sources_is_not_used() -> None:
    """I8"""
    needs.compiled_core()
    assert "different sources" in ran("from relay.native import _core; _core.INTERFACE = -1; print(native.core())")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        ran("from relay.native import _core; _core.INTERFACE = -1; native.core()", RELAY_NATIVE="required")
    assert "it was built from different sources" in raised.value.stderr


def test_nothing_is_logged_where_the_core_is_used() -> None:
    needs.compiled_core()
    assert "plain Python" not in ran("assert native.core() is not None")
    assert native.core() is not None


def test_another_value_than_off_and_required_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_NATIVE", "banana")
    with pytest.raises(native.CoreMissing, match="RELAY_NATIVE is 'banana': use off or required"):
        native.core()
