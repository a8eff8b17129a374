"""Colours on a terminal: each is of one word, not of all that follows it in the line."""

from __future__ import annotations

import re

import pytest

from relay.commands.check import _print_finding
from relay.commands.status_text import show
from relay.commands.tail_text import printer
from relay.operations.status import RelayStatus, SourceStatus


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def styled(text: str) -> dict[str, str]:
    """Return the words that have a style, each with its codes."""
    return {word.strip(): codes for codes, word in re.findall(r"\x1b\[([0-9;]+)m([^\x1b]+)\x1b\[0m", text)}


def test_of_a_finding_the_mark_is_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    _print_finding("kafka", "reachable", is_ok=True)
    _print_finding("cache", "is away", is_ok=False)
    assert styled(capsys.readouterr().out) == {"✓": "32", "kafka": "1", "✗": "1;31", "cache": "1"}


def test_of_a_change_the_place_and_the_time_are_dim(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"operation": "UPDATE", "table": "orders", "key": {"id": "7"}, "old": {}, "new": {}, "attributes": {}}
    printer()({"topic": "t", "partition": 0, "offset": 5, "key": "7", "value": {**value, "committed_at": "today"}})
    printer()({"topic": "t", "partition": 0, "offset": 6, "key": "gap", "value": {"reason": "trimmed"}})
    assert styled(capsys.readouterr().out) == {
        "t[0]@5": "2", "today": "2", "UPDATE": "33", "orders id=7": "1", "t[0]@6": "2", "gap": "1",
    }  # fmt: skip


def test_of_the_status_the_names_are_bold(capsys: pytest.CaptureFixture[str]) -> None:
    source = SourceStatus("legacy", "mysql", "t", None, None, None, None, None, None, [], [])
    show(RelayStatus("shop", 1.0, "shop.relay", [], [source], 0), every=False)
    verdict = {"No worker is running: Nothing is relayed.": "1;31"}
    assert styled(capsys.readouterr().out) == {"shop": "1", "source legacy": "1"} | verdict
