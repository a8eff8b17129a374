"""The example in the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import relay.dynamodb.models as models

pytestmark = pytest.mark.services


def test_the_example_works(
    table_client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import boto3

    monkeypatch.setattr(boto3, "client", lambda name: table_client)
    (example,) = re.findall(r"```python\n(.*?)```", (Path(models.__file__).parent / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(example, "README.md", "exec", dont_inherit=True), names)
    assert capsys.readouterr().out == "1 24.9\n[] 0\n"
    engine = names["engine"]
    assert list(engine.scan(names["Order"])) == []
    table_client.delete_table(TableName="orders")
