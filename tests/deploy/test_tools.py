"""Rules, dashboards, compose file, Dockerfile and scripts, each checked by the tool that knows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.process.account import data_folder, remove_server_folder, unprivileged
from relay.process.managed import free_port
from tests.deploy import ALERT_TESTS, ALERTS, DEPLOY
from tests.deploy.tools import PROMETHEUS, run, tool

pytestmark = pytest.mark.deploy

ROOT = DEPLOY.parent


def test_the_alerts_are_raised_when_they_should_be(tmp_path: Path) -> None:
    run(tool("promtool"), "check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    annotations = {rule["alert"]: rule["annotations"] for rule in rules}
    tests = yaml.safe_load(ALERT_TESTS.read_text())
    tests["rule_files"] = [str(ALERTS)]
    # promtool compares all annotations. The file of the tests has the summaries, which show values.
    for group in tests["tests"]:
        for test in group.get("alert_rule_test", ()):
            for alert in test["exp_alerts"]:
                alert["exp_annotations"] = {**annotations[test["alertname"]], "summary": alert.pop("summary")}
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump(tests))
    run(tool("promtool"), "test", "rules", path)


def test_the_queries_of_the_dashboards_are_right(tmp_path: Path) -> None:
    queries = [
        re.sub(r"\$(\w+)", r"\1", target["expr"].replace("$__rate_interval", "5m"))
        for path in (DEPLOY / "grafana").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    run(tool("promtool"), "check", "rules", path)


def test_compose_takes_its_file() -> None:
    import jsonschema

    schema: dict[str, Any] = json.loads(tool("compose.json").read_text())
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    jsonschema.validate(found, schema)
    found["services"]["relay"]["volume"] = []
    with pytest.raises(jsonschema.ValidationError, match="volume"):
        jsonschema.validate(found, schema)


def test_prometheus_takes_its_config_and_has_the_version_of_its_tool() -> None:
    run(tool("promtool"), "check", "config", "--syntax-only", DEPLOY / "compose" / "prometheus.yaml")
    image = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["prometheus"]["image"]
    _, minor, patch = PROMETHEUS.split(".")
    assert image == f"prom/prometheus:v{minor[0]}.{int(minor[1:])}.{patch}"


def test_the_dockerfile_and_the_scripts_have_no_known_mistake() -> None:
    run("hadolint", DEPLOY / "Dockerfile")
    run("shellcheck", *DEPLOY.rglob("*.sh"))


def exported(target: str, folder: Path) -> set[str]:
    """Return the packages of an image, which its two lists agree on."""
    run(DEPLOY / "image" / "export.sh", target, folder)
    parts = json.loads((folder / f"{target}.cdx.json").read_text())["components"]
    locked = set(re.findall(r"^([\w.-]+)==", (folder / f"{target}.txt").read_text(), re.MULTILINE))
    assert {part["name"] for part in parts} == locked
    return locked


def has_venv(run: Callable[..., subprocess.CompletedProcess[str]], python: str) -> bool:
    try:
        return run(python, "-c", "import ensurepip, venv").returncode == 0
    except OSError:
        return False


def test_the_steps_of_an_image_make_a_relay_that_a_plain_user_can_run(tmp_path: Path) -> None:
    """No Docker engine is needed: the scripts of the Dockerfile are run in its order, in empty folders."""
    wheels = list((ROOT / "dist").glob("change_relay-*.whl"))
    if len(wheels) != 1:
        pytest.fail(f"dist has {len(wheels)} wheels: run `make package`, which builds one")
    locked = exported("relay", tmp_path)
    assert not {"pyspark", "pytest"} & locked
    assert exported("consumers", tmp_path) > locked | {"pyspark", "psycopg"}
    account = unprivileged()
    folder = tmp_path / "image"
    folder.mkdir()
    home = data_folder(folder)
    try:
        for path in (*wheels, tmp_path / "relay.txt", DEPLOY / "image" / "install.sh"):
            shutil.copy(path, home)
        for path in sorted((DEPLOY / "examples").glob("*.yaml")):
            text = re.sub(r"[\w-]+:\d{4,5}(?=[\",/])", lambda _: f"127.0.0.1:{free_port()}", path.read_text())
            (home / path.name).write_text(text)
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "RELAY_STATE": str(home), "TERM": "dumb"}
        environment |= {"AWS_EC2_METADATA_DISABLED": "true", "REDIS_PASSWORD": "secret", "LEGACY_PASSWORD": "secret"}

        def as_plain_user(*command: str) -> subprocess.CompletedProcess[str]:
            user: dict[str, Any] = (
                {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
            )
            return subprocess.run(
                [*command], cwd=home, env=environment, capture_output=True, text=True, timeout=600, check=False, **user
            )

        # Root's Python may be out of reach for another user.
        pythons = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
        environment["PYTHON"] = next(each for each in pythons if has_venv(as_plain_user, each))
        made = as_plain_user("sh", "./install.sh", "relay.txt", wheels[0].name, str(home / "relay"))
        assert made.returncode == 0, made.stdout + made.stderr
        command = str(home / "relay" / "bin" / "relay")
        assert as_plain_user(command, "--help").returncode == 0
        for example, reached in {"cache-redis": "cache redis", "mariadb": "source legacy"}.items():
            ran = as_plain_user(command, "check", f"{example}.yaml")
            said = ran.stdout + ran.stderr
            assert (ran.returncode, "Traceback" in said) == (3, False), said
            assert f"✗ {reached}" in said
            assert "change-relay[" not in said.replace("change-relay[spark]", "")
    finally:
        remove_server_folder(folder)
