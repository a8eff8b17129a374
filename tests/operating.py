"""What the tests of the operating commands share: a relay of a scripted stream, run inside this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from relay.cli import app
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.test_lineage_on_kafka import published, tail, write_config


class Operated:
    """A relay of ``stream``: its config, and the commands on it."""

    def __init__(self, folder: Path, stream: ScriptedStream, bootstrap_servers: str, name: str) -> None:
        self._place = (folder, stream, bootstrap_servers, name)
        self.name = name
        self.stream = stream
        self.path = self.configure()

    def configure(self, **source: Any) -> Path:
        self.path = write_config(*self._place, **source)
        return self.path

    def command(self, *arguments: str, code: int = 0) -> Result:
        """Run ``relay ARGUMENTS``, with CONFIG where there is a None."""
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
        return published(self.path)[0].get(item, [])

    def gap_records(self) -> list[dict[str, Any]]:
        return [record["value"] for record in tail(self.path, f"{self.name}.gaps")]
