"""Changes that a relay cannot publish in full, and the records that become of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson

from tests.command_line import relay
from tests.dynamodb.endpoint import ScriptedStream, full

SMALL = 50_000
"""Bytes that a topic takes: larger changes are dead letters."""
HALF = "@@"  # the endpoint replaces it with half a surrogate pair


class StreamWithInvalidText(ScriptedStream):
    def _GetRecords(self, request: dict[str, Any]) -> Any:
        answer = orjson.dumps(super()._GetRecords(request))
        return orjson.Fragment(answer.replace(HALF.encode(), b"\\ud83d"))

    def write(self, key: str, version: int, **attributes: Any) -> None:
        self.put("root", key, version, old=version - 1 or None)
        self.shards[full("root")].records[-1]["dynamodb"]["NewImage"].update(attributes)


def tail(path: Path, topic: str) -> list[dict[str, Any]]:
    result = relay("tail", path, topic, "--from-beginning", "--exit-at-end", "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]
