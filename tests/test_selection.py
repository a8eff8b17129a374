"""What each target of the Makefile runs."""

from __future__ import annotations

import re
import tomllib
from itertools import chain, combinations
from pathlib import Path

import pytest

from tests.selection import APART, is_left_out, is_too_late, problem

ROOT = Path(__file__).parents[1]
MARKERS = [
    entry.partition(":")[0].partition("(")[0]
    for entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
]
ELSEWHERE = {"image-check"}
"""Targets that CI leaves out: it has no room for two images."""


def expressions() -> dict[str, str]:
    """Return the expression of markers of each target that has one."""
    targets = re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    found = {name: re.search(r'pytest .*-m (?:"([^"]+)"|(\w+))', recipe) for name, recipe in targets}
    return {name: match[1] or match[2] for name, match in found.items() if match}


def run_by(markers: set[str], targets: set[str]) -> list[str]:
    has = {name: name in markers for name in MARKERS}
    return [name for name, expression in expressions().items() if name in targets and eval(expression, {}, has)]


def test_each_test_is_run_by_one_target_of_ci() -> None:
    """Whatever its markers are: which it may not have together is refused when it is collected."""
    of_ci = (
        set(re.findall(r"^(?:make|run_tests) ([a-z-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)) | ELSEWHERE
    )
    assert {"test", "faults"} <= of_ci
    for markers in chain.from_iterable(combinations(MARKERS, number) for number in range(len(MARKERS) + 1)):
        marks = [getattr(pytest.mark, name)("the reason").mark for name in markers]
        if problem(marks) is None:
            assert len(run_by(set(markers), of_ci)) == 1, markers


def test_a_test_that_is_run_without_services_is_run_by_make_test_too() -> None:
    for markers in chain.from_iterable(combinations(MARKERS, number) for number in range(len(MARKERS) + 1)):
        if "quick" in run_by(set(markers), {"quick"}):
            assert run_by(set(markers), {"test", "floors"}) == ["test", "floors"]


def test_a_test_that_is_left_to_make_faults_says_what_it_multiplies() -> None:
    assert problem([pytest.mark.faults("kills of another source").mark, pytest.mark.services.mark]) is None
    assert "without the reason" in str(problem([pytest.mark.faults.mark]))
    assert "only one target" in str(problem([pytest.mark.faults("kills").mark, pytest.mark.package.mark]))
    assert "faults" in APART


# Not as lines of their own, which would mark this file.
OF_ALL = 'pytestmark = [\n    pytest.mark.services,\n    pytest.mark.faults("kills of another source"),\n]\n'
OF_ONE = 'pytestmark = pytest.mark.services\n\n@pytest.mark.faults("kills of another source")\n'


@pytest.mark.parametrize(
    ("expression", "text", "expected"),
    [
        ("faults", OF_ALL, False),
        ("faults", OF_ONE, False),
        ("faults", "pytestmark = pytest.mark.services\n", True),
        ("not faults and not package", OF_ALL, True),
        ("not faults and not package", OF_ONE, False),
        ("not services and not faults", OF_ONE, True),
        ("not package", OF_ALL, False),
        ("services or not faults", OF_ALL, False),
        ("", OF_ALL, False),
    ],
)
def test_a_file_is_left_out_if_its_text_shows_that_none_of_its_tests_is_run(
    expression: str, text: str, expected: bool
) -> None:
    assert is_left_out(expression, text) == expected


def test_what_the_reasons_name_exists() -> None:
    """A reason says which test proves in `make test` what a test of `make faults` multiplies."""
    marked = re.compile(r"mark\.faults\(\s*(\"[^)]*?\")\s*\)")
    reasons = [
        reason
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__)
        for reason in marked.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(reasons) > 10
    names = {name for reason in reasons for name in re.findall(r"[\w/]+\.py", reason)}
    assert [name for name in sorted(names) if not list((ROOT / "tests").rglob(name))] == []


def test_without_a_limit_every_test_begins_and_with_one_none_begins_at_its_end() -> None:
    assert not is_too_late(None, 1e12)
    assert not is_too_late("", 1e12)
    assert [is_too_late("1800000000", now) for now in (1799999999.9, 1800000000.0)] == [False, True]


def test_ci_repeats_a_failed_test_however_late_it_is() -> None:
    """It would be skipped otherwise, which passes."""
    text = (ROOT / ".ci" / "run").read_text()
    assert text.index("unset RELAY_TEST_UNTIL") < text.index("--last-failed ")
    assert text.index("run_tests test\n") < text.index("export RELAY_TEST_UNTIL")
