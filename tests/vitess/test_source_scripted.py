"""What a source makes of answers of vtgate that a real one gives only for moments."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from relay.config import VitessConfig
from relay.errors import Unavailable
from relay.lineage import Shard
from relay.table import Column
from relay.vitess.source import VitessSource
from tests.vitess.reading import new
from tests.vitess.scripted import KEYSPACE, Log, ScriptedVtgate

VINDEX = "show vschema vindexes on `customer`"


@contextmanager
def source_of(
    log: Log, vindex: list[dict[str, str | None]] | str, tables: list[str] | None = None
) -> Iterator[VitessSource]:
    with ScriptedVtgate(log.script, {VINDEX: vindex}) as vtgate:
        place = {"type": "vitess", "vtgate": vtgate.address, "keyspace": KEYSPACE, "keyrange": "-"}
        entry = {"name": "s", "tables": tables, **place}
        with closing(VitessSource(VitessConfig.model_validate(entry))) as source:
            yield source


def test_the_start_current_is_a_position_before_anything_is_read() -> None:
    """I4: else a restart would begin wherever the shard is by then."""
    log = Log()
    log.add(*new(1))
    with source_of(log, []) as source:
        start = source.starting_points([Shard("0")], time.time).shards["0"]
    assert start == {"gtid": "MariaDB/0-1-11"}


def test_a_table_whose_vindex_cannot_be_looked_up_is_not_read() -> None:
    """I2: its rows would go to the partitions of their primary keys."""
    columns = (Column("id", "long"), Column("owner", "long"))
    with (
        source_of(Log(), "VT14001: the tablet is gone") as source,
        pytest.raises(Unavailable, match=r"cannot look up the vindex of customer: .*the tablet is gone"),
    ):
        source.layout("customer", columns, ["id"])
    with source_of(Log(), [{"Columns": "owner", "Type": "hash"}]) as source:
        table = source.layout("customer", columns, ["id"])
    assert table is not None
    assert [column.name for column in table.schema.key[: table.schema.hash_columns]] == ["owner"]


def test_a_table_that_does_not_exist_is_refused_where_reading_begins() -> None:
    """I1: it would never be relayed."""
    with (
        source_of(Log(), [], ["lost"]) as source,
        pytest.raises(Unavailable, match="keyspace commerce has no table lost"),
    ):
        source.starting_points([Shard("0")], time.time)
