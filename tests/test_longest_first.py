"""The order of the test files."""

from __future__ import annotations

from pathlib import Path

from tests.longest_first import USUAL, longest_file_first, updated

ROOT = Path(__file__).parents[1]


def test_the_file_that_takes_longest_comes_first_and_files_stay_together() -> None:
    seconds = {"a::1": 2.0, "b::1": 1.0, "b::2": 2.0, "c::1": 0.1, "a::2": 0.5, "d::1": 0.1}
    order = longest_file_first(list(seconds), lambda test: test[0], seconds.__getitem__)
    assert order == ["b::1", "b::2", "a::1", "a::2", "c::1", "d::1"]


def test_only_long_tests_are_remembered_and_only_tests_that_ran_are_forgotten() -> None:
    remembered = {"now short": 9.0, "not run": 3.0, "still long": 4.0}
    measured = {"now short": 0.04, "still long": 5.04, "always short": 0.04}
    assert updated(remembered, measured) == {"not run": 3.0, "still long": 5.04}


def test_the_files_whose_times_are_known_beforehand_exist() -> None:
    assert [file for file in USUAL if not (ROOT / file).is_file()] == []
