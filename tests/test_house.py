"""Rules of the house that no tool checks: one meaning for each class name, and a root that stays small."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]

NAMED_TWICE: dict[str, str] = {}
"""Class names that stand for two things, each with the reason why."""

ROOT_MODULES = 12


def test_no_class_name_stands_for_two_things() -> None:
    homes = defaultdict(list)
    for package in ("relay", "spark_consumers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    homes[node.name].append(path.relative_to(ROOT).as_posix())
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert twice.keys() == NAMED_TWICE.keys(), twice


def test_the_root_of_relay_stays_small() -> None:
    modules = [path.stem for path in (ROOT / "relay").glob("*.py") if not path.stem.startswith("__")]
    assert len(modules) <= ROOT_MODULES, sorted(modules)
