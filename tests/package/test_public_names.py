"""The names that programs import: a removal is noticed here, and what the READMEs and the changelog name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name, walk_packages

import pytest

from tests.package.public_names import BY_MODULE, PUBLIC, ROOT

OTHER_NAMES = {
    *("relay.yaml", "relay.collected_at", "relay.gaps", "relay.key", "relay.log", "relay.snapshots", "relay.topic_ids"),
    "relay.truncations",
}
"""A file and properties of Delta tables, which documents mention and nobody imports."""

DOCUMENTS = [
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("relay/**/*.md"),
        *ROOT.glob("spark_consumers/*.md"),
        *ROOT.glob("deploy/docs/**/*.md"),
    )
    if ".venv" not in path.parts
]


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_of_a_package_are_those_listed_here(module: str) -> None:
    found = import_module(module)
    assert sorted(found.__all__) == sorted(PUBLIC[module])
    for name in PUBLIC[module]:
        assert getattr(found, name) is not None


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in BY_MODULE for name in BY_MODULE[module]])
def test_a_public_name_can_be_imported_from_its_module(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


def test_no_package_hides_a_module_behind_a_public_name() -> None:
    """``relay.x.name`` would be the module or the object, by what was imported first."""
    for package in PUBLIC:
        path = getattr(import_module(package), "__path__", ())
        assert not set(PUBLIC[package]) & {module.name.rpartition(".")[2] for module in walk_packages(path)}


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import relay

    with pytest.raises(AttributeError, match="module 'relay' has no attribute 'Tokem'"):
        relay.Tokem  # type: ignore[attr-defined]  # noqa: B018


def test_importing_relay_loads_nothing_heavy() -> None:
    code = "import sys, relay; print(sorted(m for m in sys.modules if m.startswith('relay')), 'orjson' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "['relay'] False\n"


def test_a_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from relay import *", names)
    assert set(PUBLIC["relay"]) <= names.keys()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_name_that_a_document_mentions_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    dotted = set(re.findall(r"`((?:relay|spark_consumers)(?:\.[A-Za-z_]\w*)+)", text))
    for name in sorted(dotted - OTHER_NAMES):
        resolve_name(name)
    for line in re.findall(r"^ *(from (?:relay|spark_consumers)[\w.]* import \w[\w, ]*)$", text, re.MULTILINE):
        exec(line, {})
