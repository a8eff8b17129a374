"""The lines of the code that cite an invariant, and which of them a mutant covers.

The rule: a comment that cites an invariant is about the code on its line, or, standing alone, about the next line of
code. A mutant of that invariant covers it if it replaces something on that line of code or in what is indented below
it.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.catalogue import Mutant

_CITED = re.compile(r"\bI(?:[1-9]|1[0-2])\b")
_PACKAGES = ("relay", "spark_consumers")


@dataclass(frozen=True)
class Citation:
    """``line``: of the comment, from 1. ``about``: the numbers of the lines of code that it is about."""

    file: str
    line: int
    invariants: frozenset[str]
    about: range

    def is_covered_by(self, mutant: Mutant, source: str) -> bool:
        """Whether ``mutant`` breaks what this line says it enforces. ``source``: of its file."""
        return (
            mutant.file == self.file
            and mutant.invariant in self.invariants
            and any(line in self.about for line in mutant.lines_in(source))
        )


def citations(root: Path) -> Iterator[Citation]:
    """Yield the citations of the packages in the checkout ``root``."""
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield from of_source(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())


def of_source(source: str, file: str) -> Iterator[Citation]:
    """Yield the citations of one module, ``file``."""
    if _CITED.search(source) is None:
        return  # sooner than tokenize would find out
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (cited := frozenset(_CITED.findall(token.string))):
            number = token.start[0]
            yield Citation(file, number, cited, _about(lines, number))


def _about(lines: list[str], number: int) -> range:
    while _is_not_code(lines[number - 1]):
        number += 1
    end = number
    # The block or the brackets that the line opens end with a line that is not indented more deeply.
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > _indent(lines[number - 1])):
        end += 1
    return range(number, end + 1)


def _is_not_code(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
