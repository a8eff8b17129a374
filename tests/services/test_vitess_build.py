"""Vitess is built once, completely or not at all, and errors say why it cannot be. Go is a fake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relay.errors import Unavailable
from relay.services.vitess import Vitess
from relay.services.vitess_build import obstacle, vtcombo
from tests.process.processes import gone
from tests.vitess.cluster_build import cluster_obstacle, cluster_programs
from tests.waiting import wait_until

BUILD = [sys.executable, "-c", "from relay.services.vitess_build import vtcombo; print(vtcombo())"]

# What it is asked comes after ``-C FOLDER``, except for ``version``.
GO = """\
#!/bin/sh
home=$(dirname "$0")
[ "$1" = version ] && {{ echo "go version {version} linux/amd64"; exit 0; }}
echo "$GOTOOLCHAIN $GOMODCACHE $GOCACHE" >> "$home/environment"
case "$3" in
mod)
    mkdir -p "$home/module/go/vt/vtcombo"
    echo "qsc.VStream(ctx, request, send)" > "$home/module/go/vt/vtcombo/tablet_map.go"
    echo module > "$home/module/go.mod"
    echo "go: downloading vitess.io/vitess"
    echo "{{\\"Dir\\": \\"$home/module\\"}}"
    ;;
build)
    echo run >> "$home/builds"
    [ -e "$2/etcd/main.go" ] || cp "$2/go/vt/vtcombo/tablet_map.go" "$home/patched"
    while [ "$1" != -o ]; do shift; done
    folder=${{2%/}}; shift 2
    set -- build "$folder" "$@"
    {build}
    for package in "$@"; do case $package in ./*)
        mkdir -p "$folder" && echo built > "$folder/$(basename "$package")";;
    esac; done
    ;;
esac
"""


def use_go(folder: Path, monkeypatch: pytest.MonkeyPatch, build: str = "true", version: str = "go1.26.8") -> Path:
    """Make a fake ``go`` the only one on the PATH, and return the file in which it counts builds."""
    folder.mkdir(exist_ok=True)
    go = folder / "go"
    go.write_text(GO.format(build=build, version=version))
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "builds"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_built_once_and_only_the_program_is_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    builds = use_go(tmp_path / "go", monkeypatch)
    assert vtcombo() == vtcombo() == cache / "vitess-0.23.0-1" / "vtcombo"
    assert vtcombo().read_text() == "built\n"
    assert builds.read_text() == "run\n"
    assert "CloneVT()" in (tmp_path / "go" / "patched").read_text()
    assert sorted(each.name for each in cache.iterdir()) == ["vitess-0.23.0-1", "vitess-0.23.0-1.lock"]
    assert "building Vitess 0.23.0" in capfd.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert vtcombo().exists()
    assert obstacle() is None


def test_the_programs_of_a_cluster_are_built_once_and_vtcombo_is_among_them(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = use_go(tmp_path / "go", monkeypatch)
    folder = cluster_programs()
    names = ["etcd", "vtcombo", "vtctld", "vtctldclient", "vtgate", "vttablet"]
    assert (folder, sorted(each.name for each in folder.iterdir())) == (cache / "vitess-cluster-0.23.0-1", names)
    assert vtcombo() == cluster_programs() / "vtcombo"
    assert "CloneVT()" in (tmp_path / "go" / "patched").read_text()
    assert builds.read_text() == "run\n" * 2  # Vitess' module and etcd's
    monkeypatch.setenv("PATH", "")
    assert (obstacle(), cluster_obstacle()) == (None, None)


def test_who_has_vtcombo_alone_has_not_the_programs_of_a_cluster(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_go(tmp_path / "go", monkeypatch)
    vtcombo()
    monkeypatch.setenv("PATH", "/nowhere")
    assert obstacle() is None
    assert "no go on the PATH" in str(cluster_obstacle())


def test_it_pins_the_toolchain_and_does_not_touch_the_users_caches(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMODCACHE", "/the/users/own")
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    use_go(tmp_path / "go", monkeypatch)
    vtcombo()
    for line in (tmp_path / "go" / "environment").read_text().splitlines():
        toolchain, *caches = line.split()
        assert toolchain == "go1.25.3"
        assert all(each.startswith(f"{cache}/vitess-0.23.0-1.part/") for each in caches)


def test_without_go_the_message_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        Unavailable, match=r"Go 1\.21 or newer is needed.*install it, such as golang-go \(no go on the PATH\)"
    ):
        vtcombo()


def test_a_go_that_is_too_old_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_go(tmp_path / "go", monkeypatch, version="go1.19.8")
    with pytest.raises(Unavailable, match=r"Go 1\.21 or newer is needed.*go1\.19\.8"):
        vtcombo()


def test_a_failed_build_shows_the_output_of_go_and_is_retried_next_time(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_go(tmp_path / "go", monkeypatch, build="echo no space left on device; exit 1")
    with pytest.raises(Unavailable, match=r"cannot build Vitess 0\.23\.0: go build failed:\nno space left on device"):
        vtcombo()
    assert not (cache / "vitess-0.23.0-1").exists()
    use_go(tmp_path / "go", monkeypatch)
    assert vtcombo().exists()


def test_several_processes_build_vitess_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = use_go(tmp_path / "go", monkeypatch, build="sleep 0.5")
    processes = [subprocess.Popen(BUILD, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(600) for process in processes] == [0, 0, 0]
    assert builds.read_text() == "run\n"
    assert "CloneVT()" in (tmp_path / "go" / "patched").read_text()


def test_a_killed_build_leaves_no_incomplete_vitess_and_no_compiler(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    half = f'[ -e {started} ] || {{ mkdir -p "$2"; echo half > "$2/vtcombo"; echo $$ > {started}; sleep 300; }}'
    use_go(tmp_path / "go", monkeypatch, build=half)
    with subprocess.Popen(BUILD, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: started.exists() and started.read_text().strip() != "")
        process.send_signal(signal.SIGKILL)
    assert not (cache / "vitess-0.23.0-1").exists()
    assert gone(int(started.read_text()))
    assert vtcombo().read_text() == "built\n"


@pytest.mark.services
def test_a_vitess_that_cannot_be_built_leaves_no_database(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_go(tmp_path / "go", monkeypatch, build="exit 1")
    with pytest.raises(Unavailable, match="cannot build Vitess"):
        Vitess(tmp_path / "server").start()
    assert os.listdir(tmp_path / "server") == []
