"""Vitess' ``vtcombo``, built once from the Go module proxy into the cache.

May be changed here: the version, with the toolchain that its ``go.mod`` asks for.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from relay.errors import Unavailable
from relay.jvm.jars import cache_folder
from relay.process.managed import ManagedProcess

VERSION = "0.23.0"
_PATCHES = 1
"""Change it with `_patch`."""

_MODULE = "vitess.io/vitess"
_TOOLCHAIN = "go1.25.3"
"""Vitess 0.23 asks for 1.25, and does not build with 1.26. Any Go from 1.21 on fetches it."""

_BUILD_SECONDS = 3600.0
_HINT = "Vitess is built from source: Go 1.21+ is needed, install e.g. golang-go"


def vtcombo() -> Path:
    """Return the program, building it if it is not in the cache yet.

    The first time this fetches 0.2 GB, takes minutes of all cores, and room for 3 GB until it is done. Raises
    ``Unavailable`` when there is no Go, or the build fails, with what Go said.
    """
    folder = _folder()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(folder.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever held the lock before may just have built it.
            if not folder.is_dir():
                _build(folder)
    return folder / "vtcombo"


def obstacle() -> str | None:
    """Return why Vitess cannot be had here, None if it is built or there is a Go to build it with."""
    if _folder().is_dir():
        return None
    go = shutil.which("go")
    if go is None:
        return f"{_HINT} (no go on the PATH)"
    try:
        answer = subprocess.run([go, "version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{_HINT} ({go}: {error})"
    found = re.search(r"\bgo(\d+)\.(\d+)", answer.stdout)
    if found is None or (int(found[1]), int(found[2])) < (1, 21):
        return f"{_HINT} ({go} says {(answer.stdout + answer.stderr).strip()!r})"
    return None


def _folder() -> Path:
    return cache_folder() / f"vitess-{VERSION}-{_PATCHES}"


def _build(folder: Path) -> None:
    problem = obstacle()
    if problem is not None:
        raise Unavailable(problem)
    # What a killed build has downloaded and compiled is used by the next one: Go's caches stand that.
    part = folder.with_name(folder.name + ".part")
    part.mkdir(exist_ok=True)
    _say(f"building Vitess {VERSION} in {part}: 0.2 GB are fetched, minutes of compiling, once")
    started = time.monotonic()
    answer = _go(part, part, "mod", "download", "-json", f"{_MODULE}@v{VERSION}")
    downloaded = json.loads(answer[answer.index("{") :])
    source = part / "source"
    shutil.rmtree(source, ignore_errors=True)
    # The module's own folder in Go's cache cannot be built in: its go.mod must be the main one, for its replacements.
    shutil.copytree(downloaded["Dir"], source, copy_function=shutil.copyfile)
    _patch(source)
    program = part / "program"
    shutil.rmtree(program, ignore_errors=True)
    flags = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w")
    _go(part, source, "build", *flags, "-o", f"{program}/", "./go/cmd/vtcombo")
    program.rename(folder)
    size = (folder / "vtcombo").stat().st_size
    shutil.rmtree(part)
    _say(f"built Vitess: {size / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")


def _patch(source: Path) -> None:
    """Let vtcombo's tablets hand copies of events to vtgate, as those of a real Vitess do by sending them.

    The tablet writes its next rows into the same buffers, so in one process vtgate would see them change, and panic.
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
        raise Unavailable(f"cannot build Vitess {VERSION}: {file} is not as expected")
    file.write_text(text.replace(shared, copied), encoding="utf-8")


def _go(part: Path, folder: Path, *arguments: str) -> str:
    """Run Go with all its caches in ``part``, and return its output. It ends with this process."""
    log = part / "go.log"
    log.unlink(missing_ok=True)
    environment = {
        "GOTOOLCHAIN": _TOOLCHAIN,
        "GOPATH": str(part / "go"),
        "GOMODCACHE": str(part / "modules"),
        "GOCACHE": str(part / "compiled"),
        # So that it can be removed.
        "GOFLAGS": "-modcacherw",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "HOME": os.environ.get("HOME") or str(part),
    }
    process = ManagedProcess([shutil.which("go") or "go", "-C", str(folder), *arguments], log, environment)
    process.start()
    try:
        process.process.wait(_BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"building Vitess {VERSION} took more than {_BUILD_SECONDS:.0f} s") from None
    finally:
        process.kill()
    if process.returncode != 0:
        raise Unavailable(f"cannot build Vitess {VERSION}: go {arguments[0]} failed:\n{process.log_tail()}")
    return log.read_text()


def _say(text: str) -> None:
    print(f"relay: {text}", file=sys.stderr, flush=True)
