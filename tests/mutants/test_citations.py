"""Which code a comment that cites an invariant is about."""

from __future__ import annotations

import pytest

from tests.mutants.catalogue import Mutant
from tests.mutants.citations import of_source

SOURCE = '''\
"""A docstring may speak of I1; no line enforces it there."""
LIMIT = 10  # so much (I11)


def put(items, item):
    # I2: in order,
    # or it is lost.
    items.append(item)
    items.sort()
    if len(items) > LIMIT:  # I11
        items.pop()
        return False

    return True
'''


@pytest.mark.parametrize(
    ("invariant", "text", "cited"),
    [
        ("I11", "LIMIT = 10", [2]),
        ("I2", "items.append(item)", [6]),
        ("I2", "items.sort()", []),
        ("I11", "if len(items) > LIMIT:", [10]),
        ("I11", "items.pop()", [10]),
        ("I11", "return True", []),
        ("I2", "items.pop()", []),
    ],
)
def test_a_comment_is_about_its_line_or_the_next_line_of_code_and_what_is_below_it(
    invariant: str, text: str, cited: list[int]
) -> None:
    mutant = Mutant(invariant, "m", "a.py", "", text, "", ())
    found = [each.line for each in of_source(SOURCE, "a.py") if each.is_covered_by(mutant, SOURCE)]
    assert found == cited


def test_docstrings_do_not_cite() -> None:
    assert [each.line for each in of_source(SOURCE, "a.py")] == [2, 6, 10]
