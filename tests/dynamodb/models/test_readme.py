"""The example in the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from relay.cache import LoadedValue, MemoryStore, Outcome, TokenCache
from relay.dynamodb import models
from relay.dynamodb.models import Engine

pytestmark = pytest.mark.services


def test_the_example_works(
    table_client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import boto3

    monkeypatch.setattr(boto3, "client", lambda name: table_client)
    readme = (Path(models.__file__).parent / "README.md").read_text()
    example, with_cache = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(example, "README.md", "exec", dont_inherit=True), names)
    assert capsys.readouterr().out == "1 24.9\n[] 0\n"
    engine = names["engine"]
    assert list(engine.scan(names["Order"])) == []
    table_client.delete_table(TableName="orders")
    cache = TokenCache(MemoryStore(), "shop")
    load = LoadedValue(b"nobody's", {}, True)
    assert cache.get_or_load("ticket:7", lambda key, compare: load).outcome is Outcome.FILLED
    names |= {"cache": cache, "engine": Engine(table_client, table_name=lambda table: f"readme-{table}")}
    with_bind = with_cache.replace("engine.save", "engine.bind(Ticket)\nengine.save")
    exec(compile(with_bind, "README.md", "exec", dont_inherit=True), names)
    assert cache.get_or_load("ticket:7", lambda key, compare: load).outcome is Outcome.FILLED
