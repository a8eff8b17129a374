"""Vitess' ``vtcombo``, built once, from the Go module proxy, into the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

from relay.errors import Unavailable
from relay.jvm.jars import cache_folder
from relay.services.go_build import GoBuild, built_once, go_obstacle

VERSION = "0.23.0"
_PATCHES = 1
"""Increase it with every change of `_patch`."""

_TOOLCHAIN = "go1.25.3"
"""Vitess 0.23 requires 1.25, and does not build with 1.26."""

COST = "this downloads 0.2 GB and takes some minutes"


def vtcombo() -> Path:
    """Return the path of the program, after building it if it is not in the cache.

    A build downloads 0.2 GB, uses all cores for minutes, and 3 GB of disk until it is done. Raises ``Unavailable`` if
    there is no Go, or with Go's output if the build fails.
    """
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
    """Return a folder with the patched source."""
    go.toolchain = _TOOLCHAIN
    downloaded = go.download("vitess.io/vitess", VERSION)
    source = go.part / "source"
    shutil.rmtree(source, ignore_errors=True)
    # Its go.mod must be the main module's, or its replacements are ignored; in Go's cache it would not be.
    shutil.copytree(downloaded, source, copy_function=shutil.copyfile)
    _patch(source)
    return source


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
