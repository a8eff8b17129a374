"""Connecting to databases that do not log every column of a row."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from relay.config import VitessConfig
from relay.errors import RelayError, Unavailable
from relay.vitess.source import VitessSource
from tests.vitess.scripted import Log, ScriptedVtgate

ASKED = "select @@global.binlog_row_image"
SHARDS: dict[str, list[dict[str, str | None]] | str] = {
    "show vitess_shards": [{"Shards": "shop/-80"}, {"Shards": "shop/80-"}, {"Shards": "a/0"}]
}


def connect(vtgate: ScriptedVtgate, **settings: Any) -> None:
    entry = {"name": "s", "type": "vitess", "vtgate": vtgate.address, "keyspace": "shop", "keyrange": "-", **settings}
    with closing(VitessSource(VitessConfig.model_validate(entry))) as source:
        source.connect()


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB", "full_nodup"])
def test_a_database_that_logs_partial_rows_is_refused_with_its_shard_and_the_fix(image: str) -> None:
    """I1: columns of an old row that were not logged arrive as NULL."""
    message = (
        rf"source s: binlog_row_image of shard -80 is {image.upper()}; .* of shard 80- is {image.upper()}: "
        "run `SET GLOBAL binlog_row_image = 'FULL'`"
    )
    with ScriptedVtgate(Log().script, {**SHARDS, ASKED: [{"@@global.binlog_row_image": image}]}) as vtgate:
        with pytest.raises(Unavailable, match=message):
            connect(vtgate)
        asked = [target for target, sql in vtgate.statements if sql == ASKED]
    assert sorted(asked) == ["shop:-80@primary", "shop:-80@replica", "shop:80-@primary", "shop:80-@replica"]


@pytest.mark.parametrize("answer", ["unknown system variable", [], [{"x": None}], [{"x": "1"}], [{"x": "FULL"}]])
def test_the_source_connects_if_vtgate_does_not_return_binlog_row_image(
    answer: list[dict[str, str | None]] | str,
) -> None:
    with ScriptedVtgate(Log().script, {**SHARDS, ASKED: answer}) as vtgate:
        with pytest.raises(RelayError, match=r"information_schema.*no such table"):  # from the next query
            connect(vtgate, tablet_type="primary")
        asked = [target for target, sql in vtgate.statements if sql == ASKED]
    assert sorted(asked) == ["shop:-80@primary", "shop:80-@primary"]
