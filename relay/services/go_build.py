"""Programs that Go builds once, from the Go module proxy, into the cache."""

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
from relay.process.folders import made_once, size_of, tell
from relay.process.managed import ManagedProcess

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
    """Return ``folder``, which ``build`` makes if it is not in the cache: it returns the folder to put there.

    ``what``: the name and version of the program. ``cost``: what a build takes, for who waits for it. Raises
    ``Unavailable`` if there is no Go, or with Go's output if the build fails.
    """
    return made_once(folder, lambda: _build(folder, what, cost, build))


def _build(folder: Path, what: str, cost: str, build: Callable[[GoBuild], Path]) -> None:
    problem = go_obstacle(what.partition(" ")[0])
    if problem is not None:
        raise Unavailable(problem)
    # The next build uses what a killed one has downloaded and compiled: Go's caches allow that.
    part = folder.with_name(folder.name + ".part")
    part.mkdir(exist_ok=True)
    tell(f"building {what} in {part}, once: {cost}")
    started = time.monotonic()
    build(GoBuild(part, what)).rename(folder)
    shutil.rmtree(part)
    tell(f"built {what.partition(' ')[0]}: {size_of(folder)} in {time.monotonic() - started:.0f} s")


class GoBuild:
    """Runs Go with all its caches in the folder ``part``, so that only the result stays.

    ``toolchain``: the release of Go, which Go 1.21 and later download. By default any that the module accepts.
    """

    def __init__(self, part: Path, what: str, toolchain: str = "auto") -> None:
        self.part = part
        self.what = what
        self.toolchain = toolchain
        self.programs = part / "program"

    def download(self, module: str, version: str) -> Path:
        """Return the folder of a module's source, which must not be written to."""
        answer = self.run(self.part, "mod", "download", "-json", f"{module}@v{version}")
        return Path(json.loads(answer[answer.index("{") :])["Dir"])

    def build(self, source: Path, *packages: str) -> Path:
        """Return the folder with the programs of some packages of a module whose source is in a folder."""
        self.run(source, "build", *FLAGS, "-o", f"{self.programs}/", *packages)
        return self.programs

    def run(self, folder: Path, *arguments: str) -> str:
        """Run Go in a folder, and return its output. It does not outlive this process. Raises ``Unavailable``."""
        log = self.part / "go.log"
        log.unlink(missing_ok=True)
        environment = {
            "GOTOOLCHAIN": self.toolchain,
            "GOPATH": str(self.part / "go"),
            "GOBIN": str(self.programs),
            "GOMODCACHE": str(self.part / "modules"),
            "GOCACHE": str(self.part / "compiled"),
            # Without it the cache cannot be removed.
            "GOFLAGS": "-modcacherw",
            "GOWORK": "off",
            "CGO_ENABLED": "0",
            "HOME": os.environ.get("HOME") or str(self.part),
        }
        go = ManagedProcess([shutil.which("go") or "go", "-C", str(folder), *arguments], log, environment)
        if (problem := go.run(_BUILD_SECONDS)) is not None:
            raise Unavailable(f"cannot build {self.what}: go {arguments[0]} {problem}")
        return log.read_text()
