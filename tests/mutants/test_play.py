"""Mutants of a small checkout: what becomes of each, and that the checkout and its tests are as they were."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mutants.catalogue import FOLDER, CatalogueError, Mutant
from tests.mutants.play import BaselineFailed, Fate, play

pytestmark = pytest.mark.processes

CODE = """\
def is_open(number):
    return number > 3


def count(number):
    while number > 0:
        number -= 1
    return number
"""
TESTS = """\
from relay.gate import count, is_open


def test_five_is_open():
    assert is_open(5)


def test_three_is_not_open():
    assert not is_open(3)


def test_counting_ends():
    assert count(3) == 0


def test_that_fails():
    assert is_open(1)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # half of the time that such a small run takes
    folder = tmp_path / "checkout"
    files = {"relay/gate.py": CODE, "tests/test_gate.py": TESTS}
    empty = ("relay/__init__.py", "spark_consumers/__init__.py", "tests/__init__.py", "tests/mutants/__init__.py")
    for name, text in (files | dict.fromkeys(empty, "")).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copy(FOLDER / "inside.py", folder / "tests" / "mutants")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


def mutant(replace: str, by: str, *tests: str, hangs: bool = False) -> Mutant:
    names = tuple(f"tests/test_gate.py::test_{test}" for test in tests)
    return Mutant("I1", by or "nothing", "relay/gate.py", "", replace, by, names, hangs=hangs)


def fates(checkout: Path, *mutants: Mutant, patience: float = 60.0) -> dict[str, tuple[Fate, str]]:
    verdicts = play(mutants, lambda verdict: None, source=checkout, patience=patience)
    assert (checkout / "relay" / "gate.py").read_text() == CODE
    return {verdict.mutant.name: (verdict.fate, verdict.by.rpartition("::")[2]) for verdict in verdicts}


def test_a_mutant_is_killed_by_the_test_that_fails_with_it_and_survives_tests_that_pass(checkout: Path) -> None:
    at_least = mutant("> 3", ">= 3", "five_is_open", "three_is_not_open")
    more = mutant("> 3", "> 4", "five_is_open", "three_is_not_open")
    unimportable = mutant("return number > 3", "return number >", "five_is_open")
    found = fates(checkout, at_least, more, unimportable)
    assert found[">= 3"] == (Fate.KILLED, "test_three_is_not_open")
    assert found["> 4"] == (Fate.SURVIVED, "")
    assert found["return number >"][0] is Fate.BROKEN  # which proves nothing


@pytest.mark.parametrize(("hangs", "fate"), [(True, Fate.KILLED), (False, Fate.HUNG)])
def test_a_mutant_that_hangs_is_stopped_and_only_caught_if_that_is_how_it_fails(
    checkout: Path, hangs: bool, fate: Fate
) -> None:
    endless = mutant("number -= 1", "number += 1", "counting_ends", hangs=hangs)
    assert fates(checkout, endless, patience=0.5)["number += 1"][0] is fate


def test_tests_that_fail_without_the_mutant_prove_nothing(checkout: Path) -> None:
    with pytest.raises(BaselineFailed, match="test_that_fails"):
        fates(checkout, mutant("> 3", ">= 3", "that_fails"))


def test_a_test_that_does_not_exist_is_an_error(checkout: Path) -> None:
    with pytest.raises(BaselineFailed, match="test_of_nothing"):
        fates(checkout, mutant("> 3", ">= 3", "of_nothing"))


@pytest.mark.parametrize(("text", "count"), [("< 3", 0), ("return number", 2)])
def test_a_text_that_is_not_once_in_the_file_is_an_error(checkout: Path, text: str, count: int) -> None:
    with pytest.raises(CatalogueError, match=f"occurs {count} times"):
        fates(checkout, mutant(text, "", "five_is_open"))
