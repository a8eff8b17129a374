"""``relay doctor``: a bundle with what a bug report needs, and without secrets."""

from __future__ import annotations

import json
import resource
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from relay.config import load
from relay.errors import RelayError
from relay.operations.doctor import write
from tests.command_line import errors, relay
from tests.listening import give_up_on_brokers_at_once

CONFIG = """\
name: shop
kafka:
  bootstrap_servers: "127.0.0.1:{kafka}"
  producer: {{sasl.password: hunter-01, ssl.key.password: "${{KEY}}", ssl.key.pem: "${{UNSET:-hunter-02}}"}}
schema_registry: {{url: "http://me:hunter-03%2F@127.0.0.1:{kafka}/api"}}
sources:
  - name: orders
    type: dynamodb
    table: orders
    region: eu-west-1
    endpoint_url: "http://${{USER_INFO}}@127.0.0.1:{kafka}"
    protect: {{orders: {{ssn: {{hash: {{salt: hunter-04}}}}}}}}
  - name: legacy
    type: mysql
    database: d
    shards: {{"-": ["127.0.0.1:{kafka}"]}}
    user: me
    password: 'hunter-05"'
cache: {{url: "redis://:hunter-06@127.0.0.1:{kafka}/0?password=hunter-07", namespace: n, keys: {{orders: [a]}}}}
log: {{path: "file:///proc/version/log"}}
copy: {{url: "postgresql://me:${{DB_PASS}}@127.0.0.1:{kafka}/x?sslpassword=hunter-08"}}
spark: {{conf: {{spark.hadoop.fs.s3a.secret.key: hunter-09}}}}
http: {{address: "127.0.0.1:{http}", user: me, password: hunter-10, bearer: hunter-11}}
"""
PLANTED = ["KEY", "USER_INFO", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "DB_PASS", "SOME_API_KEY"]


class Live(BaseHTTPRequestHandler):
    """Answers with what it was asked with, as a relay never would."""

    def do_GET(self) -> None:
        body = f"{self.path} {self.headers['Authorization']} hunter-11 http://u:hunter-13@h".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Write nothing to stderr."""


@pytest.fixture
def live() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Live) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def file(live: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    give_up_on_brokers_at_once(monkeypatch)
    for number, name in enumerate(PLANTED, 20):
        monkeypatch.setenv(name, f"hunter-{number}/+ ")
    monkeypatch.setenv("USER_INFO", "you:hunter-21")
    monkeypatch.setenv("DB_PASS", "hunter-24%2F")
    path = tmp_path / "relay.yaml"
    path.write_text(CONFIG.format(kafka=1, http=live))
    return path


def contents(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        return {Path(name).name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]


def test_a_bundle_has_what_is_known_and_no_secret(
    file: Path, live: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All services are down, but the relay's port answers."""
    state = tmp_path / "state"
    (state / "shop").mkdir(parents=True)
    (state / "shop" / "verify-copy.json").write_text('[{"key": {"id": "7"}, "reason": "hunter-01"}]')
    monkeypatch.setenv("RELAY_STATE", str(state))
    planted = [f"hunter-{number:02}" for number in range(1, 12) if number not in (3, 5)]
    planted += ["hunter-03%2F", "hunter-03/", 'hunter-05"', 'hunter-05\\"']
    planted += ["hunter-20%2F%2B%20", "hunter-22/+ ", "hunter-24/"]
    (state / "shop" / "verify-log.json").write_text("\n".join([*planted, "the end"]))
    bundle = tmp_path / "bundle.tar.gz"
    result = relay("doctor", file, "--into", bundle, "--json")
    assert result.exit_code == 0, result.output
    assert bundle.stat().st_mode & 0o077 == 0
    parts = contents(bundle)
    assert json.loads(result.stdout) == {"bundle": str(bundle), "files": list(parts)}
    assert [name for name, text in parts.items() if "hunter" in text] == []
    assert "hunter" not in result.output

    assert json.loads(parts["versions.json"])["packages"].keys() >= {"confluent-kafka", "pydantic"}
    again = tmp_path / "again.yaml"
    again.write_text(parts["config.yaml"])
    assert load(again).kafka.partitions == 6
    found = {each["check"]: each["detail"] for each in json.loads(parts["check-offline.json"])}
    assert found["log file:///proc/version/log"].startswith("cannot write to")
    asked = {each["check"]: each["ok"] for each in json.loads(parts["check.json"])}
    assert not asked["source legacy"]
    assert not asked["log file:///proc/version/log"]
    assert parts["status.json"].startswith("not available: no Kafka broker answers at ")
    assert parts["metrics.txt"].startswith("/metrics ")
    assert json.loads(parts["verify-copy.json"]) == [{"key": {"id": "7"}, "reason": "***"}]
    assert parts["verify-log.json"].endswith("the end")


def test_a_bundle_replaces_nothing(file: Path, tmp_path: Path) -> None:
    data = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({each: data[each] for each in ("name", "kafka")} | {"sources": data["sources"][:1]}))
    bundle = tmp_path / "bundle.tar.gz"
    result = relay("doctor", file, "--into", bundle)
    assert result.exit_code == 0, result.output
    parts = contents(bundle)
    assert parts.keys() == {"versions.json", "config.yaml", "check-offline.json", "check.json", "status.json"}
    assert [each["ok"] for each in json.loads(parts["check.json"])] == [False, False, True]  # the compiled core
    result = relay("doctor", file, "--into", bundle)
    assert result.exit_code == 2
    assert errors(result) == [f"--into {bundle}: already exists: choose another name"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--into FOLDER", "--into FOLDER: the bundle is an archive: choose a name that ends with .tar.gz"),
        (
            "--into FOLDER/none/x.tar.gz",
            "--into FOLDER/none/x.tar.gz: FOLDER/none is not a writable folder: choose another place",
        ),
    ],
)
def test_what_stands_in_the_way_of_a_bundle_is_said_before_anything_is_asked(
    options: str, said: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Live, "do_GET", lambda request: asked.append(request.path))
    result = relay("doctor", file, *options.replace("FOLDER", str(tmp_path)).split())
    assert result.exit_code == 2
    assert errors(result)[0].startswith(said.replace("FOLDER", str(tmp_path)))
    assert asked == []


def test_no_part_of_a_bundle_is_left_where_a_disk_is_full(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(RelayError, match="File too large"):
            write({"versions.json": "{}", "log.txt": "".join(map(str, range(100_000)))}, tmp_path / "bundle.tar.gz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
