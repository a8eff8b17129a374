"""``relay check --offline`` and ``--echo``: what can be said of a config without a connection."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from tests import snippets
from tests.certificates import Authority
from tests.command_line import errors, relay
from tests.services.plain_user import needs_root, run_as_plain_user

ROOT = Path(__file__).parents[2]

ORDERS = {"name": "orders", "type": "dynamodb", "table": "orders", "region": "us-east-1"}
LEGACY = {"name": "legacy", "type": "mysql", "database": "d", "shards": {"-": ["db:1"]}, "tables": ["customer"]}
VITESS = {"name": "commerce", "type": "vitess", "vtgate": "h:1", "keyspace": "k", "tls": {"ca": "/nowhere/ca.pem"}}
SMALLEST = {"name": "shop", "kafka": {"bootstrap_servers": "broker:9092"}, "sources": [ORDERS, LEGACY]}


def configs() -> dict[str, dict[str, Any]]:
    """Return the configs in the documents, each in full, by their places."""
    found = {}
    for block in snippets.blocks(language="yaml"):
        data = yaml.safe_load(dedent(block.text.replace(", ...}}", "}}")))
        if "scrape_configs" not in data:  # that is Prometheus'
            found[str(block)] = {**SMALLEST, **data.get("config", data)}  # a chart's values have one in them
    return found


CONFIGS = configs()
MODEL = """
from relay.dynamodb.models import Attribute, Model, hash_key


class Order(Model, table="orders"):
    customer: Attribute[str] = hash_key()
"""
"""The class of a program that a config in a document names."""
TOKEN = {
    "stream_arn": "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-11-21T07:26:20.147",
    "active": [],
    "shards": [],
}
"""What ``relay status --token orders`` has printed into ``orders.json``."""
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Authority(tmp_path_factory.mktemp("authority")).ca


def checked(path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Check a config whose variables are all set, and whose files are all on this machine."""
    text = path.read_text()
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, "secret")
    data = yaml.safe_load(text)
    settings = []
    if "ssl.ca.location" in data["kafka"].get("producer", {}):
        settings.append(f"kafka.producer.ssl.ca.location={authority}")
    settings += [f"sources.{source['name']}.tls.ca={authority}" for source in data["sources"] if source.get("tls")]
    if data.get("schema_registry", {}).get("tls"):
        settings.append(f"schema_registry.tls.ca={authority}")
    if isinstance(page := data.get("http"), dict) and "certificate" in page:
        own = Authority(path.parent).issue("page")
        settings += [f"http.{key}={own}" for key in ("certificate", "key")] + [f"http.authorities={authority}"]
    for kind, key in (("log", "path"), ("copy", "url")):
        scheme, _, place = data.get(kind, {}).get(key, "").partition("://")
        if scheme in ("file", "delta"):
            folder = path.parent / kind
            folder.mkdir(exist_ok=True)
            settings.append(f"{kind}.{key}={scheme}://{folder if place else ''}")
    options = [option for setting in settings for option in ("--set", setting)]
    result = relay("check", path, "--offline", "--json", *options)
    assert result.exit_code == 0, result.output
    echoed = relay("check", path, "--echo", *options)
    assert "secret" not in echoed.stdout.replace("s3a.secret", "")
    again = path.parent / "echo.yaml"
    again.write_text(echoed.stdout)
    assert relay("check", again, "--offline").exit_code == 0
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes(example: Path, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / example.name
    path.write_text(example.read_text())
    found = checked(path, authority, monkeypatch)
    assert all(finding["ok"] for finding in found)
    assert found[0] == {"check": f"config {path}", "ok": True, "detail": "valid; nothing was connected to"}


@pytest.mark.parametrize("place", CONFIGS)
def test_a_config_in_the_documents_passes(
    place: str, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "models.py").write_text(MODEL)
    (tmp_path / "orders.json").write_text(json.dumps(TOKEN))
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(CONFIGS[place], sort_keys=False))
    checked(path, authority, monkeypatch)


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    """Servers that anything could connect to."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]


@pytest.mark.processes
def test_nothing_is_connected_to_and_no_name_is_looked_up(listeners: list[socket.socket], tmp_path: Path) -> None:
    """Servers listen at every address of the config; librdkafka, in C, would be seen by them alone."""
    ports = iter([listener.getsockname()[1] for listener in listeners])

    def address() -> str:
        return f"127.0.0.1:{next(ports)}"

    path = tmp_path / "relay.yaml"
    shards = {"-": [address()]}
    sources = [
        {**ORDERS, "tables": None, "table": None, "tags": {"a": "b"}, "endpoint_url": f"http://{address()}"},
        {"name": "m", "type": "mysql", "database": "d", "shards": shards},
        {"name": "v", "type": "vitess", "keyspace": "k", "vtgate": address()},
    ]
    producer = {
        "security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": f"http://{address()}", "sasl.oauthbearer.client.id": "a",
        "sasl.oauthbearer.client.secret": "b",
    }  # fmt: skip
    config = {
        "name": "shop", "kafka": {"bootstrap_servers": address(), "producer": producer}, "sources": sources,
        "schema_registry": {"url": f"http://{address()}"},
        "cache": {"url": f"redis+cluster://{address()}", "namespace": "n", "keys": {"orders": ["a"]}},
        "copy": {"url": f"postgresql://{address()}/d"},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))
    code = (
        "import sys\n"
        "def refuse(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.sendto'):\n"
        "        raise AssertionError(f'{event} {arguments}')\n"
        "sys.addaudithook(refuse)\n"
        "from relay.cli import app\n"
        "for option in ('--offline', '--echo'):\n"
        f"    app(['check', {str(path)!r}, option], standalone_mode=False)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "✗" not in ran.stdout
    assert "source orders: dynamodb, all tables that it finds" in ran.stdout
    for listener in listeners:
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_what_is_missing_on_this_machine_is_named(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump({**SMALLEST, "sources": [{**LEGACY, "tls": {"ca": "/nowhere/ca.pem"}}, VITESS]}))
    options = ("--set", "kafka.producer={security.protocol: ssl, ssl.ca.location: /nowhere/kafka.pem}")
    result = relay("check", path, "--offline", *options)
    assert result.exit_code == 2, result.output
    assert "✗ source legacy: `tls`: cannot load /nowhere/ca.pem: No such file or directory" in result.stdout
    assert "✗ source commerce: `tls`: cannot load /nowhere/ca.pem: No such file or directory" in result.stdout
    refused = "✗ kafka.producer: clients cannot connect with these settings: "
    assert f"{refused}`ssl.ca.location`: there is no file /nowhere/kafka.pem" in result.stdout


def test_the_certificates_of_the_port_are_loaded(authority: Path, tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    both = Authority(tmp_path).issue("relay")
    http = {"address": "127.0.0.1:9400", "certificate": str(both), "authorities": str(authority)}
    path.write_text(yaml.safe_dump({**SMALLEST, "http": http}))
    result = relay("check", path, "--offline")
    assert "✓ http 127.0.0.1:9400: its certificate can be loaded" in result.stdout
    result = relay("check", path, "--offline", "--set", f"http.certificate={authority}")  # there is not a key in it
    assert result.exit_code == 2
    assert f"✗ http 127.0.0.1:9400: http.certificate: cannot use {authority}: " in result.stdout
    result = relay("check", path, "--offline", "--set", "http.authorities=/nowhere/ca.pem")
    assert result.exit_code == 2
    assert "✗ http 127.0.0.1:9400: http.authorities: cannot use /nowhere/ca.pem: No such file" in result.stdout


def test_every_wrong_setting_of_the_producer_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    producer = "{linger.mss: 5, batch.size: -4, security.protocol: sasl_ssl, sasl.password: hunter2}"
    kafka = f"name: shop\nkafka:\n  bootstrap_servers: b\n  producer: {producer}\n"
    path.write_text(kafka + yaml.safe_dump({"sources": [ORDERS]}))
    result = relay("run", path)
    assert result.exit_code == 2
    refuses = "librdkafka refuses it:"
    assert errors(result) == [
        f'{path}:4:26: `kafka.producer.linger.mss`: {refuses} No such configuration property: "linger.mss"',
        f'{path}:4:41: `kafka.producer.batch.size`: {refuses} Configuration property "batch.size" value -4 is outside '
        "allowed range 1..2147483647",
    ]
    result = relay("tail", path, "--set", "kafka.producer={delivery.timeout.ms: 1000, linger.ms: 100000}")
    assert result.exit_code == 2
    assert errors(result) == [
        f"--set kafka.producer: `kafka.producer`: {refuses} Failed to create producer: `message.timeout.ms` must be "
        "greater than `linger.ms`"
    ]


@needs_root
@pytest.mark.processes
@pytest.mark.parametrize("command", ["'check', file, '--offline'", "'status', file", "'doctor', file"])
def test_a_file_that_may_not_be_read_is_refused_as_any_wrong_config_is(command: str, tmp_path: Path) -> None:
    said = run_as_plain_user(
        f"""
        from pathlib import Path
        from tests.command_line import errors, relay
        from relay.config import config
        from relay.kafka import settings
        import os
        file = Path(os.environ["HOME"]) / "relay.yaml"
        file.write_text("name: shop")
        file.chmod(0)
        become_plain()
        result = relay({command})
        assert result.exit_code == 2
        assert errors(result) == [f"{{file}}: cannot be read: Permission denied"], result.stderr
        print("refused")
        """,
        tmp_path,
        {},
    )
    assert said == "refused\n"


@needs_root
@pytest.mark.processes
def test_folders_into_which_one_may_not_look_are_named(tmp_path: Path) -> None:
    said = run_as_plain_user(
        """
        import os
        from pathlib import Path
        from tests.command_line import errors, relay
        from relay.config import config
        from relay.kafka import settings
        home = Path(os.environ["HOME"])
        closed = home / "closed"
        closed.mkdir()
        closed.chmod(0)
        file = home / "relay.yaml"
        source = "{name: orders, type: dynamodb, table: orders, region: eu-west-1}"
        file.write_text(f"name: shop\\nkafka: {{bootstrap_servers: b}}\\nsources: [{source}]\\n")
        log = ("--set", f"log.path=file://{closed}/deep/log")
        options = ("--type", "dynamodb", "--table", "orders", "--region", "eu-west-1", "--kafka", "b:1")
        for command in (("check", file, "--offline", *log), ("init", home / "new.yaml", *options)):
            relay(*command)  # while what they import can be read
        become_plain()
        result = relay("check", file, "--offline", *log)
        assert result.exit_code == 3, result
        assert f"cannot write to {closed}: the log needs a writable folder" in result.stdout, result.stdout
        result = relay("init", closed / "relay.yaml", *options)
        assert result.exit_code == 2, result
        assert errors(result) == [f"{closed}/relay.yaml: cannot be written: Permission denied"], result.stderr
        print("named")
        """,
        tmp_path,
        {},
    )
    assert said == "named\n"
