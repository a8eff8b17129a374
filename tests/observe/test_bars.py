"""Progress bars of snapshots on a terminal."""

from __future__ import annotations

import io
import logging
import os
import pty
import sys

import pytest
from rich.console import Console

from relay.observe.bars import SnapshotBars


def test_a_running_snapshot_has_a_bar_with_its_rows_until_it_ends() -> None:
    shown = io.StringIO()
    bars = SnapshotBars(Console(file=shown, force_terminal=True, color_system=None, width=100))
    bars.show("orders", None)
    assert shown.getvalue() == ""
    bars.show("orders", (25, 100))
    bars.show("users", (7, 9))
    bars.show("orders", None)
    bars.show("users", None)
    bars.close()
    text = shown.getvalue()
    assert "snapshot of orders" in text
    assert " 25/100 rows" in text
    assert "7/9" in text


def test_log_lines_appear_above_the_bars_and_go_back_to_stderr_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        bars = SnapshotBars(Console(file=io.StringIO(), force_terminal=True, width=100))
        bars.show("orders", (1, 2))
        assert handler.stream is not terminal
        root.error("in between")
        bars.close()
        assert handler.stream is terminal
    finally:
        root.removeHandler(handler)


def test_bars_are_shown_on_a_terminal_only_and_not_by_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAY_WORKER", raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert SnapshotBars.for_terminal() is None
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert SnapshotBars.for_terminal() is not None
        monkeypatch.setenv("RELAY_WORKER", "0")
        assert SnapshotBars.for_terminal() is None
