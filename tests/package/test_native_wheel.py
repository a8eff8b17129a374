"""The wheel with the compiled core, and the pure one where nothing can compile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from relay import native
from tests.needs import lacking
from tests.package.public_names import ROOT

pytestmark = pytest.mark.package


def build(out: Path, checkout: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel of a checkout in an environment without a cargo of its own."""
    uv, tools = shutil.which("uv"), out / "tools"
    assert uv is not None
    tools.mkdir(parents=True)
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    known = {"PATH": str(tools), "HOME": str(tools), "UV_CACHE_DIR": cache, **environment}
    known |= {name: value for name, value in os.environ.items() if name.startswith(("UV_INDEX", "UV_DEFAULT", "SSL_"))}
    command = [uv, "build", "--wheel", "--python", sys.executable, "--out-dir", str(out), str(checkout)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, env=known)


def contents(out: Path) -> tuple[str, set[str]]:
    """Return the tag of the only wheel in ``out``, and the files of its compiled core."""
    (wheel,) = out.glob("*.whl")
    with ZipFile(wheel) as archive:
        native = {name.removeprefix("relay/native/") for name in archive.namelist() if name.startswith("relay/native/")}
    return wheel.stem.split("-", 2)[2], native


def test_without_a_compiler_the_wheel_is_pure_and_building_it_is_not_an_error(tmp_path: Path) -> None:
    """Also where the checkout has a module that was built before."""
    built = build(tmp_path)
    assert built.returncode == 0, built.stderr
    assert contents(tmp_path) == ("py3-none-any", {"__init__.py", "_core.pyi", "README.md"})
    assert "without the compiled core" in built.stdout + built.stderr


def test_a_core_that_is_required_is_not_left_out(tmp_path: Path) -> None:
    built = build(tmp_path, RELAY_NATIVE="required")
    assert built.returncode != 0
    assert "cargo is not installed" in built.stderr


def test_a_platform_that_nobody_can_build_for_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    built = build(tmp_path, RELAY_NATIVE="required", RELAY_NATIVE_PLATFORM="win_amd64")
    assert built.returncode != 0
    assert "RELAY_NATIVE_PLATFORM is 'win_amd64', use one of manylinux_2_28_x86_64" in built.stderr
    assert not list(tmp_path.glob("*.whl"))


def interface(out: Path) -> int:
    """Return what the core in the only wheel in ``out`` reports about itself."""
    (wheel,) = out.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extract("relay/native/_core.abi3.so", out / "core")
    code = "import _core; print(_core.INTERFACE)"
    where = {"PYTHONPATH": str(out / "core" / "relay" / "native")}
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=where).stdout)


def test_each_of_two_checkouts_gets_the_core_of_its_own_sources(tmp_path: Path) -> None:
    """They share what cargo has compiled. The other one has older files, as after an unpacked archive."""
    if shutil.which("cargo") is None:
        lacking("NATIVE", "no cargo: install Rust")
    other = tmp_path / "other"
    left_out = shutil.ignore_patterns(".*", "tests", "dist", "site", "__pycache__", "_core.abi3.so")
    shutil.copytree(ROOT, other, ignore=left_out)
    shutil.copyfile(ROOT / ".gitignore", other / ".gitignore")
    library = other / "relay/native/src/lib.rs"
    library.write_text(re.sub(r"(const INTERFACE: u32 =) \d+", r"\1 4242", library.read_text()))
    for path in (other / "relay/native").rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    found = []
    for out, checkout in (("ours", ROOT), ("theirs", other), ("ours again", ROOT)):
        built = build(tmp_path / out, checkout, RELAY_NATIVE="required", PATH=os.environ["PATH"], HOME=str(Path.home()))
        assert built.returncode == 0, built.stderr
        found.append(interface(tmp_path / out))
    assert found == [native._INTERFACE, 4242, native._INTERFACE]


def test_with_cargo_one_wheel_has_the_core_for_all_versions_of_python(tmp_path: Path) -> None:
    if shutil.which("cargo") is None:
        lacking("NATIVE", "no cargo: install Rust")
    built = build(tmp_path, RELAY_NATIVE="required", PATH=os.environ["PATH"], HOME=str(Path.home()))
    assert built.returncode == 0, built.stderr
    tag, native = contents(tmp_path)
    assert tag.startswith("cp311-abi3-")
    assert native == {"__init__.py", "_core.pyi", "README.md", "_core.abi3.so"}
