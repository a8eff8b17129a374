"""A relay of two sources that moves to another cluster by the commands of the how-to, as the page prints them."""

from __future__ import annotations

import json
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.services.mariadb import PASSWORD, USER
from tests.command_line import relay
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.harness import Relay
from tests.faults.scripted_relay import SplittingTable
from tests.snippets import ROOT, Block, blocks
from tests.topic_changes import read_changes

PAGE = "deploy/docs/how_to/kafka.md"
TABLE = "customers"
Key = tuple[str, Any]


def killed_relay(config: Path, step: str, number: int) -> Relay:
    """Start a relay that kills itself at the ``number``-th ``step``."""
    command = [sys.executable, "-m", "tests.faults.killed_worker", str(config.absolute()), step, str(number)]
    return Relay(command, config.with_suffix(".log").absolute())


def section(title: str) -> list[Block]:
    """Return the code blocks of a section of the page."""
    lines = (ROOT / PAGE).read_text(encoding="utf-8").splitlines()
    first = lines.index(f"## {title}")
    end = next((n for n, line in enumerate(lines) if n > first and line.startswith("## ")), len(lines))
    return [block for block in blocks(PAGE) if first < block.line <= end]


def commands(title: str) -> list[str]:
    return [line.strip() for block in section(title) if block.language == "sh" for line in block.text.splitlines()]


def printed(title: str, begins: str) -> str:
    """Return the first command of a section of the page that begins so."""
    return next(line for line in commands(title) if line.startswith(f"relay {begins}"))


def play(command: str, *, code: int = 0) -> str:
    """Run a command as the page prints it, in the working folder; return what it prints, into a file if it says so."""
    words = shlex.split(command, comments=True)
    assert words[0] == "relay"
    words, into = (words[: words.index(">")], words[-1]) if ">" in words else (words, None)
    answer = relay(*words[1:])
    assert answer.exit_code == code, (command, answer.output, answer.exception)
    if into is not None:
        Path(into).write_text(answer.stdout)
    return answer.output if code else answer.stdout


class Customers:
    """A table in MariaDB, and what was written to it."""

    def __init__(self, server: Any, database: str) -> None:
        self.server, self.database = server, database
        self.histories: dict[Key, list[int]] = defaultdict(list)
        server.execute(f"create database {database}")
        server.execute(f"create table {database}.{TABLE} (id bigint primary key, version bigint, note longtext)")

    def write(self, ids: range, size: int = 10) -> None:
        """Write the next version of each of ``ids``, all in one transaction."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("begin")
            for number in ids:
                history = self.histories["legacy", number]
                history.append(len(history) + 1)
                cursor.execute(
                    f"insert into {self.database}.{TABLE} values (%s, %s, repeat('x', %s))"
                    " on duplicate key update version = values(version)",
                    (number, history[-1], size),
                )
            cursor.execute("commit")


class Moving:
    """The config of the page with real sources, and what both clusters have. Its files are in the working folder."""

    def __init__(self, name: str, stream: ScriptedStream, server: Any, old: str, new: str) -> None:
        self.stream = stream
        self.table = SplittingTable(stream, seed=11)
        self.customers = Customers(server, name)
        self.servers = {"relay.yaml": old, "new.yaml": new, "mirror.yaml": new}
        self.sources: list[dict[str, Any]] = [
            {"name": "orders", "type": "dynamodb", "table": stream.table, "region": "us-east-1"}
            | {"endpoint_url": stream.url},
            {"name": "legacy", "type": "mysql", "database": name, "shards": {"-": [server.address]}}
            | {"user": USER, "password": PASSWORD},
        ]
        self.name = name
        self.configure("relay.yaml")

    def configure(self, file: str, changed: Mapping[str, dict[str, Any]] = {}, *, name: str = "") -> Path:
        """Write a config. ``changed``: keys of sources, by name. ``name``: of the relay, if it has another."""
        kafka = {"bootstrap_servers": self.servers[file], "partitions": 2}
        sources = [source | changed.get(source["name"], {}) for source in self.sources]
        path = Path(file).absolute()
        path.write_text(yaml.safe_dump({"name": name or self.name, "kafka": kafka, "sources": sources}))
        return path

    def status(self, file: str, source: str) -> dict[str, Any]:
        sources = json.loads(play(f"relay status {file} --json"))["sources"]
        (found,) = (each for each in sources if each["source"] == source)
        assert isinstance(found, dict)
        return found

    def write(self, times: int) -> None:
        self.table.write(times)
        self.table.split()
        self.table.write(times)
        for number in range(times):
            self.customers.write(range(number % 7, 1 + number % 11))

    def truth(self) -> dict[Key, list[int]]:
        return {("orders", item): each for item, each in self.table.histories.items()} | self.customers.histories

    def changes(self, file: str) -> list[dict[str, Any]]:
        """Return all changes of both sources on a cluster, each topic in the order of its partitions."""
        config = load(Path(file))
        with closing(open_schemas(config)) as schemas:
            return [
                value
                for table in (self.stream.table, TABLE)
                for _, _, value in sorted(
                    read_changes(config.kafka.client(), config.topic(table), schemas), key=lambda found: found[:2]
                )
            ]


def histories(changes: list[dict[str, Any]]) -> dict[Key, list[int]]:
    """Return the versions of each key, in order."""
    found: dict[Key, list[int]] = defaultdict(list)
    for change in changes:
        new = orjson.loads(change["new"]) if isinstance(change["new"], str) else change["new"]
        version = new["version"]
        found[change["source"], change["key"]["id"]].append(int(version["N"] if isinstance(version, dict) else version))
    return found


def gtids(status: Path) -> dict[str, str]:
    """Return the GTID set of each unfinished shard of SQL in what `relay status --json` has printed."""
    (source,) = (each for each in json.loads(status.read_text())["sources"] if each["source"] == "legacy")
    return {each["shard"]: each["position"]["gtid"] for each in source["shards"] if each["state"] != "finished"}
