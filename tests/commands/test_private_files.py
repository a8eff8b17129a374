"""What the commands write, other users of the machine cannot read, whatever the umask of whoever starts them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from relay.demo.dynamodb_orders import create_table

pytestmark = pytest.mark.services

OTHERS = stat.S_IRWXG | stat.S_IRWXO
EVENT_LOG = "eventlog_v2_"
DRAFT = "init drafted.yaml --type dynamodb --table orders --region eu-west-1 --kafka kafka:9092"


def open_to_others(folder: Path) -> set[str]:
    """Return what is in a folder, and would be readable or writable by others if they could reach it."""
    found = set()
    for path in folder.rglob("*"):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:  # it is being used
            continue
        others = stat.S_IRWXO if EVENT_LOG in str(path) else OTHERS  # Spark lets its group read these, always
        if not stat.S_ISLNK(mode) and mode & others:
            found.add(f"{stat.filemode(mode)} {path.relative_to(folder)}")
    return found


@contextmanager
def watched(folder: Path) -> Iterator[set[str]]:
    """Look again and again, since much of what Spark writes is gone when it ends."""
    found: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            found.update(open_to_others(folder))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        found.update(open_to_others(folder))


class Commands:
    """Runs commands that have everything they write in one folder."""

    def __init__(self, folder: Path, umask: int) -> None:
        self.folder = folder
        self._umask = umask
        places = {"HOME": "home", "TMPDIR": "tmp", "RELAY_STATE": "state"}
        self._environment = os.environ | {name: str(folder / place) for name, place in places.items()}
        for each in ("home", "tmp"):
            (folder / each).mkdir(mode=0o700)

    def relay(self, *arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "relay.cli", *arguments],
            cwd=self.folder,
            env=self._environment,
            umask=self._umask,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_drafted_config_cannot_be_read_by_others(tmp_path: Path, umask: int) -> None:
    commands = Commands(tmp_path, umask)
    commands.relay(*DRAFT.split())
    assert (tmp_path / "drafted.yaml").is_file()
    assert not open_to_others(tmp_path)


def config(folder: Path, unique: str, kafka: Any, dynamodb: Any, redis_server: Any) -> Mapping[str, Any]:
    source = {"name": "shop", "type": "dynamodb", "table": unique, "region": "us-east-1"}
    return {
        "name": unique,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2},
        "sources": [{**source, "endpoint_url": dynamodb.endpoint_url}],
        "cache": {"url": redis_server.url, "namespace": unique, "keys": {unique: ["order:{customer}"]}},
        "log": {"path": f"file://{folder}/log"},
        "copy": {"url": f"delta://{folder}/copy"},
        "spark": {"conf": {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"{folder}/state"}},
    }


@pytest.mark.parametrize(
    "umask", [0o000, pytest.param(0o022, marks=pytest.mark.faults("one umask of ours for both: [0], which is wider"))]
)
def test_no_file_that_a_command_writes_can_be_read_by_others(
    tmp_path: Path, unique: str, kafka: Any, dynamodb: Any, redis_server: Any, umask: int
) -> None:
    client = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    create_table(client, unique)
    client.put_item(TableName=unique, Item={"customer": {"S": "ada"}, "order_id": {"N": "7"}})
    client.close()
    commands = Commands(tmp_path, umask)
    with watched(tmp_path) as found:
        commands.relay(*DRAFT.split())
        written = config(tmp_path, unique, kafka, dynamodb, redis_server)
        (tmp_path / "relay.yaml").write_text(yaml.safe_dump(written))
        (tmp_path / "relay.yaml").chmod(0o600)
        commands.relay("run", "relay.yaml", "--until-caught-up", "--workers", "2")
        commands.relay("consume", "cache", "relay.yaml", "--until-caught-up", "--engine", "python")
        commands.relay("consume", "cache", "log", "copy", "relay.yaml", "--until-caught-up", "--checkpoint", "point")
        commands.relay("verify", "relay.yaml", "copy")
        commands.relay("replay", "copy", "relay.yaml", "--into", f"delta://{tmp_path}/again")
        commands.relay("doctor", "relay.yaml", "--into", "bundle.tar.gz")
    there = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert there >= {"drafted.yaml", "state", "point", "log", "copy", "again", "bundle.tar.gz"}
    assert not found
