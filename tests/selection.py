"""Which tests a target of the Makefile runs: markers decide, and each test is run by one target of CI."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

APART = {"deploy", "faults", "images", "package"}
"""The markers of tests that ``make test`` leaves to another target."""

# The statement that marks all tests of a file, up to the line that begins with none of its own.
_OF_FILE = re.compile(r"^pytestmark = .*\n(?:[ \])].*\n)*", re.MULTILINE)


def problem(marks: Iterable[pytest.Mark]) -> str | None:
    """Return what is wrong with the markers of a test, None if nothing is."""
    apart = [mark for mark in marks if mark.name in APART]
    if len({mark.name for mark in apart}) > 1:
        return f"has the markers {sorted({mark.name for mark in apart})}, but only one target may run it"
    if any(mark.name == "faults" and not any(mark.args) for mark in apart):
        return "is marked `faults` without the reason: say what proves its behaviour in `make test`"
    return None


def is_left_out(expression: str, text: str) -> bool:
    """Whether a run with ``-m expression`` needs no test of a file with this text, so that it need not be imported.

    True only for what can be seen in its text: all are marked, or none is.
    """
    if re.fullmatch(r"\w+", expression):
        return f"pytest.mark.{expression}" not in text
    if re.search(r"\bor\b", expression):
        return False
    unwanted = set(re.findall(r"\bnot (\w+)", expression))
    marked = {name for statement in _OF_FILE.findall(text) for name in re.findall(r"pytest\.mark\.(\w+)", statement)}
    return not unwanted.isdisjoint(marked)


def is_too_late(until: str | None, now: float) -> bool:
    """Whether a test may not begin any more. ``until`` and ``now``: seconds since 1970."""
    return until is not None and until != "" and now >= float(until)
