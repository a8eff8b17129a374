"""Rules that no tool checks: one meaning for each class name, a small root, helpers apart from tests, working links."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

NAMED_TWICE: dict[str, str] = {}
"""Class names that stand for two things, each with the reason why."""

ROOT_MODULES = 12

# Not in .venv, which has more files than all else.
DOCUMENTS = sorted(
    path
    for top in ROOT.iterdir()
    if not top.name.startswith(".")
    for path in (top.rglob("*.md") if top.is_dir() else [top])
    if path.suffix == ".md" and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)


def test_no_class_name_stands_for_two_things() -> None:
    # Generated classes have their names in stubs only.
    files = [
        path
        for package in ("relay", "spark_consumers")
        for kind in ("py", "pyi")
        for path in (ROOT / package).rglob(f"*.{kind}")
    ]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(files)}
    # Some of these are in docstrings; to parse all files takes several times as long.
    words = {path: re.findall(r"^\s*class (\w+)", text, re.MULTILINE) for path, text in texts.items()}
    often = {name for name, times in Counter(chain.from_iterable(words.values())).items() if times > 1}
    homes = defaultdict(list)
    for path in (path for path, names in words.items() if not often.isdisjoint(names)):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert twice.keys() == NAMED_TWICE.keys(), twice


def test_the_root_of_relay_stays_small() -> None:
    modules = [path.stem for path in (ROOT / "relay").glob("*.py")]
    assert len(modules) <= ROOT_MODULES, sorted(modules)


def test_no_module_imports_from_a_test_module() -> None:
    """Helpers that two test modules share have a module of their own."""
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(
            r"\s*(from tests[\w.]*\.test_\w+ import|from tests[\w.]* import test_|import tests[\w.]*\.test_)", line
        )
    ]
    assert found == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_to_a_file_and_a_heading(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings], target
