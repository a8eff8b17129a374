"""Vitess' ``vtcombo``, built once, from the Go module proxy, into the cache."""

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
"""Increase it with every change of `_patch`."""

_MODULE = "vitess.io/vitess"
_TOOLCHAIN = "go1.25.3"
"""Vitess 0.23 requires 1.25, and does not build with 1.26. Go 1.21 and later download it."""

_BUILD_SECONDS = 3600.0
_HINT = "Go 1.21 or newer is needed to build Vitess: install it, such as golang-go"


def vtcombo() -> Path:
    """Return the path of the program, after building it if it is not in the cache.

    A build downloads 0.2 GB, uses all cores for minutes, and 3 GB of disk until it is done. Raises ``Unavailable`` if
    there is no Go, or with Go's output if the build fails.
    """
    folder = _folder()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(folder.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The process that held the lock before may have built it.
            if not folder.is_dir():
                _build(folder)
    return folder / "vtcombo"


def obstacle() -> str | None:
    """Return why Vitess is not available here, None if it is built or Go can build it."""
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
        return f"{_HINT} ({go} prints {(answer.stdout + answer.stderr).strip()!r})"
    return None


def _folder() -> Path:
    return cache_folder() / f"vitess-{VERSION}-{_PATCHES}"


def _build(folder: Path) -> None:
    problem = obstacle()
    if problem is not None:
        raise Unavailable(problem)
    # The next build uses what a killed one has downloaded and compiled: Go's caches allow that.
    part = folder.with_name(folder.name + ".part")
    part.mkdir(exist_ok=True)
    _print(f"building Vitess {VERSION} in {part}, once: this downloads 0.2 GB and takes some minutes")
    started = time.monotonic()
    answer = _go(part, part, "mod", "download", "-json", f"{_MODULE}@v{VERSION}")
    downloaded = json.loads(answer[answer.index("{") :])
    source = part / "source"
    shutil.rmtree(source, ignore_errors=True)
    # Its go.mod must be that of the main module, or its replacements are ignored; in Go's cache it would not be.
    shutil.copytree(downloaded["Dir"], source, copy_function=shutil.copyfile)
    _patch(source)
    program = part / "program"
    shutil.rmtree(program, ignore_errors=True)
    flags = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w")
    _go(part, source, "build", *flags, "-o", f"{program}/", "./go/cmd/vtcombo")
    program.rename(folder)
    size = (folder / "vtcombo").stat().st_size
    shutil.rmtree(part)
    _print(f"built Vitess: {size / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")


def _patch(source: Path) -> None:
    """Make vtcombo's tablets pass copies of events to vtgate.

    A tablet reuses an event's buffers for its next rows. A real one has sent them by then, but in one process vtgate
    would see them change, and panic.
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


def _go(part: Path, folder: Path, *arguments: str) -> str:
    """Run Go with all its caches in ``part``, and return its output. It does not outlive this process."""
    log = part / "go.log"
    log.unlink(missing_ok=True)
    environment = {
        "GOTOOLCHAIN": _TOOLCHAIN,
        "GOPATH": str(part / "go"),
        "GOMODCACHE": str(part / "modules"),
        "GOCACHE": str(part / "compiled"),
        # Without it the cache cannot be removed.
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


def _print(text: str) -> None:
    print(f"relay: {text}", file=sys.stderr, flush=True)
