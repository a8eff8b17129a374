"""Programs that Go builds once, from the Go module proxy, into the cache: Vitess' ``vtcombo``, and what tests need."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from relay.errors import Unavailable
from relay.jvm.jars import cache_folder
from relay.process.folders import made_once, size_of, tell
from relay.process.managed import ManagedProcess

VERSION = "0.23.0"
_PATCHES = 1  # to be increased with every change of `_patch`
_TOOLCHAIN = "go1.25.3"  # Vitess 0.23 requires 1.25, and does not build with 1.26
COST = "this downloads 0.2 GB and takes some minutes"

_BUILD_SECONDS = 3600.0
FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w")


def go_obstacle(what: str) -> str | None:
    """Return why Go cannot build ``what`` here, or None if it can."""
    hint = f"Go 1.21 or newer is needed to build {what}: install it, such as golang-go"
    go = shutil.which("go")
    if go is None:
        return f"{hint} (no go on the PATH)"
    try:
        answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{hint} ({go}: {error})"
    found = re.search(r"\bgo(\d+)\.(\d+)", answer.stdout)
    if found is None or (int(found[1]), int(found[2])) < (1, 21):
        return f"{hint} ({go} prints {(answer.stdout + answer.stderr).strip()!r})"
    return None


def built_once(folder: Path, what: str, cost: str, build: Callable[[GoBuild], Path]) -> Path:
    """Return ``folder``; if it is not in the cache, ``build`` returns a folder to put there.

    ``what``: the name and version of the program. ``cost``: a text about the duration for a waiting person. Raises
    ``Unavailable`` without Go, or with Go's output if the build fails.
    """
    return made_once(folder, lambda: _build(folder, what, cost, build))


def _build(folder: Path, what: str, cost: str, build: Callable[[GoBuild], Path]) -> None:
    if (problem := go_obstacle(what.partition(" ")[0])) is not None:
        raise Unavailable(problem)
    # The next build uses the downloads and results of a killed one: Go's caches allow that.
    part = folder.with_name(folder.name + ".part")
    part.mkdir(exist_ok=True)
    tell(f"building {what} in {part}, once: {cost}")
    started = time.monotonic()
    build(GoBuild(part, what)).rename(folder)
    shutil.rmtree(part)
    tell(f"built {what.partition(' ')[0]}: {size_of(folder)} in {time.monotonic() - started:.0f} s")


class GoBuild:
    """Runs Go with all caches in the folder ``part``, so that only the result remains.

    ``toolchain``: the release of Go, which Go 1.21 and later download. By default any that the module accepts.
    """

    def __init__(self, part: Path, what: str) -> None:
        self.part = part
        self.what = what
        self.toolchain = "auto"
        self.programs = part / "program"

    def download(self, module: str, version: str) -> Path:
        """Return the folder of a module's source, which must not be written to."""
        answer = self.run(self.part, "mod", "download", "-json", f"{module}@v{version}")
        return Path(json.loads(answer[answer.index("{") :])["Dir"])

    def build(self, source: Path, *packages: str) -> Path:
        self.run(source, "build", *FLAGS, "-o", f"{self.programs}/", *packages)
        return self.programs

    def run(self, folder: Path, *arguments: str) -> str:
        """Run Go in a folder, and return its output. Go does not outlive this process. Raises ``Unavailable``."""
        log = self.part / "go.log"
        log.unlink(missing_ok=True)
        environment = {
            "GOTOOLCHAIN": self.toolchain,
            "GOPATH": str(self.part / "go"),
            "GOBIN": str(self.programs),
            "GOMODCACHE": str(self.part / "modules"),
            "GOCACHE": str(self.part / "compiled"),
            "GOFLAGS": "-modcacherw",  # otherwise the cache could not be removed
            "GOWORK": "off",
            "CGO_ENABLED": "0",
            "HOME": os.environ.get("HOME") or str(self.part),
        }
        go = ManagedProcess([shutil.which("go") or "go", "-C", str(folder), *arguments], log, environment)
        if (problem := go.run(_BUILD_SECONDS)) is not None:
            raise Unavailable(f"cannot build {self.what}: go {arguments[0]} {problem}")
        return log.read_text()


def vtcombo() -> Path:
    """Return the path of the program, after building it if it is not in the cache. Raises as `built_once`."""
    if cluster_folder().is_dir():
        return cluster_folder() / "vtcombo"
    made = built_once(_folder(), f"Vitess {VERSION}", COST, lambda go: go.build(source(go), "./go/cmd/vtcombo"))
    return made / "vtcombo"


def obstacle() -> str | None:
    """Return why Vitess is not available here, or None if it is built or Go can build it."""
    return None if _folder().is_dir() or cluster_folder().is_dir() else go_obstacle("Vitess")


def _folder() -> Path:
    return cache_folder() / f"vitess-{VERSION}-{_PATCHES}"


def cluster_folder() -> Path:
    """Return the folder with all programs of a cluster, and vtcombo, if the tests have built them."""
    return cache_folder() / f"vitess-cluster-{VERSION}-{_PATCHES}"


def source(go: GoBuild) -> Path:
    go.toolchain = _TOOLCHAIN
    downloaded = go.download("vitess.io/vitess", VERSION)
    source = go.part / "source"
    shutil.rmtree(source, ignore_errors=True)
    # Its go.mod must be the main module's, otherwise its replacements are ignored; in Go's cache it would not be.
    shutil.copytree(downloaded, source, copy_function=shutil.copyfile)
    _patch(source)
    return source


def _patch(source: Path) -> None:
    """Make vtcombo's tablets pass copies of events to vtgate.

    A tablet reuses an event's buffers for its next rows. A real tablet has sent them by then. Within one process,
    vtgate would see them change, and panic.
    """
    file = source / "go" / "vt" / "vtcombo" / "tablet_map.go"
    text = file.read_text(encoding="utf-8")
    shared = ".VStream(ctx, request, send)"
    copied = """.VStream(ctx, request, func(events []*binlogdatapb.VEvent) error {
		copied := make([]*binlogdatapb.VEvent, len(events))
		for i, event := range events {
			copied[i] = event.CloneVT()
		}
		return send(copied)
	})"""
    if text.count(shared) != 1:
        raise Unavailable(f"cannot build Vitess {VERSION}: {file} does not contain the line to patch: {shared}")
    file.write_text(text.replace(shared, copied), encoding="utf-8")
