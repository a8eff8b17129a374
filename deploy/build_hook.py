"""Builds the compiled core for a wheel or an editable install if cargo is there; otherwise the wheel is pure Python.

``RELAY_NATIVE=off`` builds no core, ``required`` fails without one. Needs a linker and, the first time, crates.io.
``RELAY_NATIVE_PLATFORM`` builds for another platform, one of `PLATFORMS`, and needs cargo-zigbuild on the PATH.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CRATE = Path("relay/native")
MODULE = "relay/native/_core.abi3.so"
# The tag of a wheel -> the target of Rust, which may end with the oldest supported glibc.
PLATFORMS = {
    "manylinux_2_28_x86_64": "x86_64-unknown-linux-gnu.2.28",
    "manylinux_2_28_aarch64": "aarch64-unknown-linux-gnu.2.28",
    "macosx_11_0_arm64": "aarch64-apple-darwin",
    "macosx_10_12_x86_64": "x86_64-apple-darwin",
}
_LONGEST = 1200  # seconds


class CannotBuild(Exception):
    """The reason why this build has no compiled core."""


class CompiledCore(BuildHookInterface):  # type: ignore[misc]
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("RELAY_NATIVE", "")
        other = os.environ.get("RELAY_NATIVE_PLATFORM")
        module = Path(self.root) / MODULE
        if version == "editable":
            module.unlink(missing_ok=True)  # built from other sources
        if wanted == "off":
            return
        try:
            library = built(Path(self.root) / CRATE, other)
        except (CannotBuild, OSError, subprocess.TimeoutExpired) as error:
            if wanted == "required":
                raise
            self.app.display_warning(f"without the compiled core, see relay/native/README.md: {error}")
            return
        if version == "editable":
            # Written beside it and renamed, because a process may have loaded the former one.
            shutil.copyfile(library, module.with_suffix(".new"))
            module.with_suffix(".new").replace(module)
            return
        build_data["force_include"][str(library)] = MODULE
        build_data["pure_python"] = False
        platform = other or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"cp311-abi3-{platform}"  # the stable interface: one for Python 3.11 and all later ones


def built(crate: Path, platform: str | None = None) -> Path:
    """Build the core for this or another platform. Raises `CannotBuild`, OSError and TimeoutExpired."""
    if platform is not None and platform not in PLATFORMS:
        raise CannotBuild(f"RELAY_NATIVE_PLATFORM is {platform!r}, use one of {', '.join(PLATFORMS)}")
    rust_target = PLATFORMS[platform] if platform else ""
    for_mac = "apple" in rust_target if rust_target else sys.platform == "darwin"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CannotBuild("this Python has no stable interface")
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        raise CannotBuild("cargo is not installed")
    target = Path(os.environ.get("RELAY_CACHE") or Path.home() / ".cache" / "relay") / "cargo"
    # Without the build's interpreter, which differs each time, so that nothing is compiled twice.
    changed = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    changed |= {"PYO3_NO_PYTHON": "1", "CARGO_TARGET_DIR": str(target), "CARGO_NET_RETRY": "1"}
    command = ["cargo-zigbuild", "rustc", "--target", rust_target] if rust_target else [cargo, "rustc"]
    command += ["--quiet", "--release", "--locked", "--lib"]
    command += ["--manifest-path", str(crate / "Cargo.toml")]
    # Checkouts share the folder. To cargo they are one crate, which it does not recompile if the files are older than
    # its results, unless the arguments differ.
    command += ["--", "-C", f"metadata={_digest_of_sources(crate)}"]
    if for_mac:
        command += ["-C", "link-arg=-undefined", "-C", "link-arg=dynamic_lookup"]
    target.mkdir(parents=True, exist_ok=True)
    with (target / "relay.lock").open("w") as lock:  # the name of the result is shared, too
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            command, cwd=crate, env=changed, capture_output=True, text=True, timeout=_LONGEST, check=False
        )
        if done.returncode:
            raise CannotBuild(f"cargo ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        folder = target / rust_target.split(".")[0] / "release"
        library = folder / ("lib_core.dylib" if for_mac else "lib_core.so")
        digest = hashlib.sha256(library.read_bytes()).hexdigest()[:16]
        return Path(shutil.copyfile(library, target / f"relay-{digest}.so"))


def _digest_of_sources(crate: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([crate / "Cargo.toml", crate / "Cargo.lock", *crate.glob("src/**/*.rs")]):
        digest.update(path.relative_to(crate).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
