"""The artifact cache: sets are fetched once, completely or not at all. All tests but one use a fake Ivy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from relay.errors import Unavailable
from relay.jvm import jars as module
from relay.jvm.jars import SETS, jars
from tests.jvm.fake_java import DOWNLOAD, runs, write_java
from tests.process.processes import gone
from tests.waiting import wait_until

JAVA = 'openjdk version "17.0.1" 2021-10-19'
FETCH = [sys.executable, "-c", "from relay.jvm.jars import jars; jars('dynamodb')"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)
    return tmp_path / "cache" / "jars"


def use_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: str = DOWNLOAD) -> Path:
    java = write_java(tmp_path / "java", JAVA, download)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return java


class TestFetching:
    def test_a_set_is_fetched_once_and_then_taken_from_the_cache(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        java = use_java(tmp_path, monkeypatch)
        expected = [cache / "dynamodb-2.6.1" / name for name in ("DynamoDBLocal-2.6.1.jar", "libsqlite4java.so")]
        assert jars("dynamodb") == expected
        assert jars("dynamodb") == expected
        assert runs(java) == 1
        progress = capfd.readouterr().err
        assert "fetching dynamodb 2.6.1 from Maven Central" in progress
        assert "fetched dynamodb" in progress
        assert sorted(path.name for path in cache.iterdir()) == ["dynamodb-2.6.1", "dynamodb-2.6.1.lock"]

    def test_a_cached_set_needs_neither_java_nor_pyspark(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_java(tmp_path, monkeypatch)
        files = jars("dynamodb")
        monkeypatch.setitem(sys.modules, "pyspark", None)
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME")
        assert jars("dynamodb") == files

    def test_a_fetch_is_retried_after_a_network_failure(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        java = use_java(tmp_path, monkeypatch, f'{DOWNLOAD}; [ "$runs" -gt 2 ] || {{ echo connection reset; exit 1; }}')
        assert len(jars("dynamodb")) == 2
        assert runs(java) == 3
        assert "fetching dynamodb failed (connection reset): retrying" in capfd.readouterr().err

    def test_a_mirror_of_maven_central_can_be_named(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_java(tmp_path, monkeypatch, "echo no such host; exit 1")
        with pytest.raises(Unavailable, match=r"from http://nexus/maven[?]a&b: Ivy failed:\nno such host"):
            jars("dynamodb", "http://nexus/maven?a&b")
        settings = ElementTree.parse(cache / "dynamodb-2.6.1.part" / "settings.xml")
        assert [each.get("root") for each in settings.iter("ibiblio")] == ["http://nexus/maven?a&b/"]

    def test_after_the_last_retry_the_error_shows_the_output_of_ivy(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        java = use_java(tmp_path, monkeypatch, "echo no route to host; exit 1")
        with pytest.raises(Unavailable, match=r"com\.amazonaws:DynamoDBLocal:2\.6\.1(.|\n)*no route to host"):
            jars("dynamodb")
        assert runs(java) == 4
        assert not (cache / "dynamodb-2.6.1").exists()

    def test_a_fetch_without_the_artifact_is_a_failure(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_java(tmp_path, monkeypatch, "true")
        with pytest.raises(Unavailable, match=r"Ivy did not deliver com\.amazonaws:DynamoDBLocal:2\.6\.1"):
            jars("dynamodb")

    def test_without_pyspark_the_message_says_what_to_install(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_java(tmp_path, monkeypatch)
        monkeypatch.setitem(sys.modules, "pyspark", None)
        with pytest.raises(Unavailable, match=r"pip install 'change-relay\[services\]'"):
            jars("dynamodb")


class TestManyProcesses:
    def test_several_processes_fetch_a_set_once(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        java = use_java(tmp_path, monkeypatch, f"sleep 0.5; {DOWNLOAD}")
        processes = [subprocess.Popen(FETCH, stderr=subprocess.DEVNULL) for _ in range(3)]
        assert [process.wait(600) for process in processes] == [0, 0, 0]
        assert runs(java) == 1

    def test_a_killed_download_leaves_no_incomplete_set_and_no_ivy(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started = tmp_path / "started"
        slow = f'[ "$runs" -gt 1 ] || {{ echo junk > "$files/junk.jar"; echo $$ > {started}; sleep 300; }}; {DOWNLOAD}'
        java = use_java(tmp_path, monkeypatch, slow)
        with subprocess.Popen(FETCH, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: started.exists() and started.read_text().strip() != "")
            process.send_signal(signal.SIGKILL)
        assert not (cache / "dynamodb-2.6.1").exists()
        assert gone(int(started.read_text()))
        assert [path.name for path in jars("dynamodb")] == ["DynamoDBLocal-2.6.1.jar", "libsqlite4java.so"]
        assert runs(java) == 2


class TestIvyModule:
    def test_every_set_requests_exact_versions(self) -> None:
        for each in SETS.values():
            root = ElementTree.fromstring(each.ivy_module())
            asked = [(d.get("org"), d.get("name"), d.get("rev")) for d in root.iter("dependency")]
            assert asked == [(a.group, a.name, a.version) for a in each.artifacts]
            assert not any(version.endswith(("+", "SNAPSHOT")) for _, _, version in asked if version)

    def test_an_artifact_that_is_not_a_jar_is_requested_by_type_and_classifier(self) -> None:
        root = ElementTree.fromstring(SETS["registry"].ivy_module())
        (artifact,) = root.iter("artifact")
        assert artifact.get("ext") == "tar.gz"
        assert artifact.get("{http://ant.apache.org/ivy/maven}classifier") == "all"


@pytest.mark.services
class TestMavenCentral:
    def test_the_real_ivy_fetches_a_set_that_runs(self, cache: Path) -> None:
        (server,) = jars("redis")
        assert os.access(server, os.X_OK)
        answer = subprocess.run([str(server), "--version"], capture_output=True, text=True, check=False)
        assert "Redis server v=6.2" in answer.stdout, answer.stderr

    def test_without_a_network_the_message_names_the_artifact(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_ATTEMPTS", 1)
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1")
        with pytest.raises(Unavailable, match=r"cannot fetch redis \(com\.github\.codemonstur:embedded-redis:1\.4\.3"):
            jars("redis")
        assert [path.name for path in cache.iterdir() if path.suffix not in (".lock", ".part")] == []
