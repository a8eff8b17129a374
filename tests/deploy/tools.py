"""The tools that ``make deploy-check`` validates with, from the Go module proxy, built once into the cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from relay.jvm.jars import cache_folder
from relay.services.vitess_build import FLAGS, GoBuild, built_once

HELM = "3.22.0"
PROMETHEUS = "0.316.0"
"""The Go module's version of Prometheus 3.16.0."""

PROGRAMS = (
    ("helm.sh/helm/v3/cmd/helm", HELM, ()),
    # Without what finds targets in clouds it is built in a third of the time.
    ("github.com/prometheus/prometheus/cmd/promtool", PROMETHEUS, ("-tags=remove_all_sd",)),
)
SCHEMAS = {
    "compose.json": ("github.com/compose-spec/compose-go/v2", "2.16.2", "schema/compose-spec.json"),
    "servicemonitor.yaml": (
        "github.com/prometheus-operator/prometheus-operator",
        "0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
}
"""By the name in the cache: module, version, and the path of the file in it."""


def tool(name: str) -> Path:
    """Return the path of ``helm``, ``promtool`` or a schema, after building all of them if they are not in the cache.

    Raises ``Unavailable`` if there is no Go, or with Go's output.
    """
    digest = hashlib.sha256(repr((PROGRAMS, SCHEMAS)).encode()).hexdigest()[:12]
    folder = cache_folder() / f"deploy-tools-{digest}"
    return built_once(folder, "helm and promtool", "this downloads 0.2 GB and takes some minutes", _build) / name


def _build(go: GoBuild) -> Path:
    go.programs.mkdir(exist_ok=True)
    for name, (module, version, path) in SCHEMAS.items():
        shutil.copyfile(go.download(module, version) / path, go.programs / name)
    for package, version, flags in PROGRAMS:
        go.run(go.part, "install", *FLAGS, *flags, f"{package}@v{version}")
    return go.programs


def run(program: str | Path, *arguments: str | Path, code: int = 0) -> str:
    """Run a tool, check its exit code, and return its output."""
    answer = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == code, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr
