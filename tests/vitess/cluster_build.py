"""The programs of a cluster of Vitess, built once: vtgate, vttablet, vtctld, vtctldclient and etcd, and vtcombo."""

from __future__ import annotations

from pathlib import Path

from relay.services.vitess_build import COST, VERSION, GoBuild, built_once, cluster_folder, go_obstacle, source

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


def cluster_programs() -> Path:
    """Return the folder with the programs. It takes two minutes of CPU more than vtcombo. Raises ``Unavailable``."""
    return built_once(cluster_folder(), f"Vitess {VERSION} with all programs of a cluster", COST, _build_cluster)


def cluster_obstacle() -> str | None:
    """Return why the programs of a cluster are not available here, None if they are built or Go can build them."""
    return None if cluster_folder().is_dir() else go_obstacle("Vitess")


def _build_cluster(go: GoBuild) -> Path:
    go.build(source(go), *(f"./go/cmd/{program}" for program in _PROGRAMS))
    topology = go.part / "topology"
    for path, text in _TOPOLOGY.items():
        (topology / path).parent.mkdir(parents=True, exist_ok=True)
        (topology / path).write_text(text, encoding="utf-8")
    go.run(topology, "mod", "tidy")
    return go.build(topology, "./etcd")
