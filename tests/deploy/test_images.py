"""The images and the compose file: what can be said of them without building anything."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pyspark
import pytest
import yaml

from relay.config import load
from tests.deploy import DEPLOY

ROOT = DEPLOY.parent
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
TARGETS = ("relay", "consumers")


def stage(name: str) -> str:
    """Return the instructions of a stage."""
    found = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.DOTALL | re.MULTILINE)
    assert found, name
    return found[1]


def test_every_image_is_pinned() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - stages
    assert bases == {"${PYTHON_IMAGE}", "${SPARK_IMAGE}"}
    assert re.search(rf"^ARG SPARK_IMAGE=\S+:{pyspark.__version__}-\S+$", DOCKERFILE, re.MULTILINE)
    assert re.search(r"^ARG PYTHON_IMAGE=\S+:[\d.]+-slim-bookworm@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    for name, service in COMPOSE["services"].items():
        image = service["image"]
        assert image.startswith("change-relay/") or re.search(r":v?\d[\w.]*$", image), f"{name}: {image}"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_a_plain_user_and_says_whether_it_is_healthy(target: str) -> None:
    text = stage(target)
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    port = {"relay": "9400", "consumers": "9410"}[target]
    assert re.findall(r"^EXPOSE (.*)$", text, re.MULTILINE) == [port]
    assert f'CMD ["python", "/opt/healthy.py", "{port}"]' in text
    assert f"/usr/share/sbom/{target}.cdx.json" in text


def test_only_the_image_of_the_consumers_has_java_and_it_has_the_jars() -> None:
    assert "openjdk-17" in stage("java")
    assert "openjdk" not in stage("base") + stage("relay") + stage("relay-environment")
    assert "RELAY_CACHE=/opt/relay-cache /opt/relay/bin/python" in stage("consumers-environment")
    assert "ENV RELAY_CACHE=/opt/relay-cache" in stage("consumers")


def test_an_image_runs_where_its_process_may_write() -> None:
    """Spark ends where it cannot make a folder ``artifacts``."""
    (state,) = re.findall(r"RELAY_STATE=(\S+)", stage("base"))
    assert f"\nVOLUME {state}\n" in stage("base")
    assert f"\nWORKDIR {state}\n" in stage("base")


def test_what_the_images_copy_is_there_and_not_ignored() -> None:
    copied = {
        source for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for source in line.split()
    }
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    assert all((ROOT / source).exists() for source in copied)
    assert {source for source in copied if not any(source.startswith(each) for each in kept)} == set()


def test_the_images_are_built_with_the_uv_of_the_makefile() -> None:
    (version,) = re.findall(r"^UV_VERSION := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f" uv=={version}\n" in DOCKERFILE


def test_no_image_is_built_without_the_compiled_core_unless_somebody_asks_for_that() -> None:
    assert "\nARG RELAY_NATIVE=required\n" in stage("wheel")
    assert re.search(r"apt-get install .* cargo-web gcc libc6-dev ", stage("wheel"))
    # That of the checkout may be for another machine.
    assert "\n**/*.so\n" in (DEPLOY / "Dockerfile.dockerignore").read_text()


def test_the_services_of_compose_exist_where_others_look_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGACY_PASSWORD", "relay")
    monkeypatch.setenv("POSTGRES_PASSWORD", "relay")
    load(DEPLOY / "compose" / "relay.yaml")
    hosts = set(re.findall(r'[/"@](\w+):\d{4}', (DEPLOY / "compose" / "relay.yaml").read_text())) - {"0"}
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())["scrape_configs"]
    hosts |= {each.partition(":")[0] for job in scraped for part in job["static_configs"] for each in part["targets"]}
    assert hosts == COMPOSE["services"].keys() - {"tables", "prometheus", "grafana"}
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", {})) <= COMPOSE["services"].keys()
        for mounted in service.get("volumes", ()):
            source = mounted.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), mounted


@contextmanager
def answering(status: int) -> Iterator[int]:
    """Answer every request with a status; yield the port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/livez"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"shard-7 stands still")

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def healthy(port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "image" / "healthy.py"), str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_the_health_check_fails_for_a_stalled_relay_and_for_none() -> None:
    with answering(200) as port:
        assert healthy(port).returncode == 0
    with answering(503) as port:
        assert (healthy(port).returncode, healthy(port).stderr) == (1, "shard-7 stands still\n")
    assert "does not answer" in healthy(port).stderr
