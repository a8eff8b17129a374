"""Vitess' ``vtcombo``, or all programs of a cluster, built once, from the Go module proxy, into the cache."""

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

_COST = "this downloads 0.2 GB and takes some minutes"

_PROGRAMS = ("vtgate", "vttablet", "vtctld", "vtctldclient", "vtcombo")
_ETCD = "3.5.23"
"""The release whose client Vitess has."""
_TOPOLOGY = {
    # Not a part of Vitess' module, whose version of OpenTelemetry etcd does not build with.
    "go.mod": f"module topology\n\ngo 1.25\n\nrequire go.etcd.io/etcd/server/v3 v{_ETCD}\n",
    "etcd/main.go": """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
""",
}


def vtcombo() -> Path:
    """Return the path of the program, after building it if it is not in the cache.

    A build downloads 0.2 GB, uses all cores for minutes, and 3 GB of disk until it is done. Raises ``Unavailable`` if
    there is no Go, or with Go's output if the build fails.
    """
    if _cluster_folder().is_dir():
        return _cluster_folder() / "vtcombo"
    return built_once(_folder(), f"Vitess {VERSION}", _COST, _build) / "vtcombo"


def cluster_programs() -> Path:
    """Return the folder with vtgate, vttablet, vtctld, vtctldclient and etcd, and vtcombo, built as that.

    It takes two minutes of CPU more. Raises ``Unavailable``.
    """
    return built_once(_cluster_folder(), f"Vitess {VERSION} with all programs of a cluster", _COST, _build_cluster)


def obstacle() -> str | None:
    """Return why Vitess is not available here, None if it is built or Go can build it."""
    return None if _folder().is_dir() or _cluster_folder().is_dir() else go_obstacle("Vitess")


def cluster_obstacle() -> str | None:
    """Return why the programs of a cluster are not available here, None if they are built or Go can build them."""
    return None if _cluster_folder().is_dir() else go_obstacle("Vitess")


def _folder() -> Path:
    return cache_folder() / f"vitess-{VERSION}-{_PATCHES}"


def _cluster_folder() -> Path:
    return cache_folder() / f"vitess-cluster-{VERSION}-{_PATCHES}"


def _build(go: GoBuild) -> Path:
    return go.build(_source(go), "./go/cmd/vtcombo")


def _build_cluster(go: GoBuild) -> Path:
    go.build(_source(go), *(f"./go/cmd/{program}" for program in _PROGRAMS))
    return go.build(go.module("topology", _TOPOLOGY), "./etcd", beside=True)


def _source(go: GoBuild) -> Path:
    """Return a folder with the patched source."""
    go.toolchain = _TOOLCHAIN
    downloaded = go.download("vitess.io/vitess", VERSION)
    source = go.part / "source"
    shutil.rmtree(source, ignore_errors=True)
    # Its go.mod must be that of the main module, or its replacements are ignored; in Go's cache it would not be.
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
