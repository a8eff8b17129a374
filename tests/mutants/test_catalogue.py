"""The catalogue fits the code: each text is in it once, each test exists, each line that cites an invariant is hit."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.mutants.catalogue import INVARIANTS, ROOT, chosen, load
from tests.mutants.citations import citations

MUTANTS = load()


@cache
def source_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def functions_in(file: str) -> frozenset[str]:
    """Return the test functions of a file, as in node ids."""
    found = set()
    for node in ast.parse(source_of(file)).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return frozenset(found)


# A test for each mutant would take several times as long as what it does.
@pytest.mark.parametrize("invariant", INVARIANTS)
def test_a_mutant_replaces_a_text_that_is_once_in_its_file_and_the_result_is_python(invariant: str) -> None:
    for mutant in chosen(MUTANTS, [invariant]):
        mutated = mutant.applied_to(source_of(mutant.file))
        if mutant.file.endswith(".py"):
            # Takes a third of what ast.parse does. A SyntaxError names the file.
            compile(mutated, f"{mutant.file} with {mutant.name}", "exec", dont_inherit=True)


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_a_mutant_names_tests_that_exist(invariant: str) -> None:
    for mutant in chosen(MUTANTS, [invariant]):
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert name.partition("[")[0] in functions_in(file), test


def test_each_invariant_has_four_mutants_or_more() -> None:
    counts = {invariant: sum(mutant.invariant == invariant for mutant in MUTANTS) for invariant in INVARIANTS}
    assert {invariant: count for invariant, count in counts.items() if count < 4} == {}


def test_every_line_that_cites_an_invariant_has_a_mutant_that_breaks_it() -> None:
    left = [
        f"{cited.file}:{cited.line} {', '.join(sorted(cited.invariants))}"
        for cited in citations(ROOT)
        if not any(cited.is_covered_by(mutant, source_of(mutant.file)) for mutant in MUTANTS)
    ]
    assert left == [], "add an entry to the file of the invariant; the README beside this says how"
