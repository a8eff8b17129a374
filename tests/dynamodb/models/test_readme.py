"""The example in the README runs as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from relay.cache import Outcome
from relay.dynamodb import models

pytestmark = pytest.mark.services


def test_the_example_works(
    table_client: Any, dynamodb: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import boto3

    streams = boto3.client("dynamodbstreams", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    monkeypatch.setattr(boto3, "client", {"dynamodb": table_client, "dynamodbstreams": streams}.get)
    readme = (Path(models.__file__).parent / "README.md").read_text()
    example, with_cache, in_stream = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(example, "README.md", "exec", dont_inherit=True), names)
    assert capsys.readouterr().out == "1 24.9\n[] 0\n"
    engine = names["engine"]
    assert list(engine.scan(names["Order"])) == []
    exec(compile(in_stream, "README.md", "exec", dont_inherit=True), names)
    assert (names["record"]["old"], names["record"]["new"].customer) == (None, "ada")
    table_client.delete_table(TableName="orders")
    exec(compile(with_cache, "README.md", "exec", dont_inherit=True), names)
    assert capsys.readouterr().out == """b'{"owner":{"S":"ada"},"id":{"S":"7"}}'\n"""
    cache, load = names["cache"], names["loader"].load
    assert cache.get_or_load("ticket:7", load).outcome is Outcome.HIT
    engine.save(names["Ticket"](id="7", owner="eve"), cache=cache)
    read = cache.get_or_load("ticket:7", load)
    assert (read.outcome, json.loads(read.value)["owner"]) == (Outcome.FILLED, {"S": "eve"})
    table_client.delete_table(TableName="Ticket")
