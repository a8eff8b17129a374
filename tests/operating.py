"""A relay of a scripted stream inside the test's process, for the tests of the operating commands."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
from typer.testing import CliRunner, Result

from relay.avro.registry import open_schemas
from relay.cli import app
from relay.config import load
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.scripted_relay import write_config
from tests.topic_changes import read_changes


class Operated:
    """A relay of ``stream``: its config, and the commands that operate it."""

    def __init__(self, folder: Path, stream: ScriptedStream, bootstrap_servers: str, name: str) -> None:
        self._place = (folder, stream, bootstrap_servers, name)
        self.name = name
        self.stream = stream
        self.path = self.configure()

    def configure(self, **source: Any) -> Path:
        self.path = write_config(*self._place, **source)
        return self.path

    def command(self, *arguments: str, code: int = 0) -> Result:
        """Run ``relay ARGUMENTS``; the argument CONFIG becomes the path of the config."""
        result = CliRunner().invoke(app, [str(self.path) if part == "CONFIG" else part for part in arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def run(self, code: int = 0) -> Result:
        return self.command("run", "CONFIG", "--until-caught-up", code=code)

    def status(self) -> dict[str, Any]:
        answer = json.loads(self.command("status", "CONFIG", "--json").stdout)
        assert isinstance(answer, dict)
        return answer

    def source(self) -> dict[str, Any]:
        (source,) = self.status()["sources"]
        assert isinstance(source, dict)
        return source

    def gaps(self) -> list[dict[str, Any]]:
        answer = json.loads(self.command("gaps", "list", "CONFIG", "--json").stdout)
        assert isinstance(answer, list)
        return answer

    def versions(self, item: str = "k") -> list[int]:
        """The versions of an item on the topic, in order."""
        rows = [orjson.loads(change["new"]) for change in self.changes() if change["key"] == {"id": item}]
        return [int(row["version"]["N"]) for row in rows]

    def changes(self) -> list[dict[str, Any]]:
        """All changes on the topic, by partition and offset."""
        config = load(self.path)
        with closing(open_schemas(config)) as schemas:
            found = read_changes(config.kafka.client(), config.topic(self.stream.table), schemas)
        return [change for _, _, change in sorted(found, key=lambda change: change[:2])]

    def records(self, topic: str) -> list[dict[str, Any]]:
        answer = self.command("tail", "CONFIG", topic, "--from-beginning", "--exit-at-end", "--json")
        return [json.loads(line) for line in answer.stdout.splitlines()]

    def gap_records(self) -> list[dict[str, Any]]:
        return [record["value"] for record in self.records("gaps")]
