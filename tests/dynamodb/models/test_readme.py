"""The example in the README runs as it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relay.cache import Outcome
from tests.snippets import play, programs

pytestmark = pytest.mark.services


def test_the_example_works(
    table_client: Any, dynamodb: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import boto3

    streams = boto3.client("dynamodbstreams", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    monkeypatch.setattr(boto3, "client", {"dynamodb": table_client, "dynamodbstreams": streams}.get)
    example, with_cache, in_stream = programs("relay/dynamodb/models/README.md")
    names: dict[str, Any] = play(example, {}, {"__name__": __name__})
    assert capsys.readouterr().out == "1 24.9\n[] 0\n"
    engine = names["engine"]
    assert list(engine.scan(names["Order"])) == []
    play(in_stream, {}, names)
    assert (names["record"]["old"], names["record"]["new"].customer) == (None, "ada")
    table_client.delete_table(TableName="orders")
    play(with_cache, {}, names)
    assert capsys.readouterr().out == """b'{"owner":{"S":"ada"},"id":{"S":"7"}}'\n"""
    cache, load = names["cache"], names["loader"].load
    assert cache.get_or_load("ticket:7", load).outcome is Outcome.HIT
    engine.save(names["Ticket"](id="7", owner="eve"), cache=cache)
    read = cache.get_or_load("ticket:7", load)
    assert (read.outcome, json.loads(read.value)["owner"]) == (Outcome.FILLED, {"S": "eve"})
    table_client.delete_table(TableName="Ticket")
