"""The catalogue: one file for each invariant, one table for each mutant."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
INVARIANTS = tuple(f"I{number}" for number in range(1, 13))

_KEYS = {"file", "wrong", "replace", "by", "tests", "hangs"}


class CatalogueError(Exception):
    """An entry of the catalogue is not right; says which and why."""


@dataclass(frozen=True)
class Mutant:
    """One change of the code that breaks an invariant.

    ``wrong``: what goes wrong with it. ``replace``: a text that occurs once in ``file``; ``by``: what replaces it.
    ``tests``: node ids, of which at least one must fail. ``hangs``: they fail by not returning.
    """

    invariant: str
    name: str
    file: str
    wrong: str
    replace: str
    by: str
    tests: tuple[str, ...]
    hangs: bool = False

    def applied_to(self, source: str) -> str:
        """Return the mutated ``source``. Raises ``CatalogueError`` unless ``replace`` occurs in it exactly once."""
        count = source.count(self.replace)
        if count != 1:
            raise CatalogueError(
                f"{self.invariant} {self.name}: its text occurs {count} times in {self.file}, not once"
            )
        return source.replace(self.replace, self.by)

    def lines_in(self, source: str) -> range:
        """Return the numbers, from 1, of the lines of ``source`` that it replaces."""
        self.applied_to(source)
        first = source[: source.index(self.replace)].count("\n") + 1
        return range(first, first + self.replace.rstrip("\n").count("\n") + 1)


def load(folder: Path = FOLDER) -> list[Mutant]:
    """Read ``I1.toml`` to ``I11.toml``. Raises ``CatalogueError`` for an entry that is not complete."""
    mutants: list[Mutant] = []
    for invariant in INVARIANTS:
        path = folder / f"{invariant}.toml"
        if path.exists():
            for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
                mutants.append(_mutant(invariant, name, entry))
    names = [mutant.name for mutant in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise CatalogueError(f"two mutants have the same name: {', '.join(sorted(twice))}")
    return mutants


def _mutant(invariant: str, name: str, entry: dict[str, object]) -> Mutant:
    where = f"{invariant}.toml: {name}"
    if unknown := entry.keys() - _KEYS:
        raise CatalogueError(f"{where}: unknown keys: {', '.join(sorted(unknown))}")
    texts = {key: entry.get(key) for key in ("file", "wrong", "replace", "by")}
    tests = entry.get("tests")
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise CatalogueError(f"{where}: tests must be a list of node ids")
    for key, text in texts.items():
        if not isinstance(text, str) or not (text or key == "by"):
            raise CatalogueError(f"{where}: {key} must be a text")
    if texts["replace"] == texts["by"]:
        raise CatalogueError(f"{where}: it changes nothing")
    hangs = entry.get("hangs") is True
    return Mutant(invariant, name, **{key: str(text) for key, text in texts.items()}, tests=tuple(tests), hangs=hangs)


def chosen(mutants: Iterable[Mutant], wanted: Sequence[str]) -> list[Mutant]:
    """Return the mutants of the wanted invariants and with the wanted names; all if nothing is wanted.

    Raises ``CatalogueError`` for what is neither.
    """
    mutants = list(mutants)
    known = {mutant.name for mutant in mutants} | set(INVARIANTS)
    if unknown := [each for each in wanted if each not in known]:
        raise CatalogueError(f"neither an invariant (I1 to I12) nor a mutant: {', '.join(unknown)}")
    return [mutant for mutant in mutants if not wanted or {mutant.name, mutant.invariant} & set(wanted)]
