"""What a source makes of answers of vtgate that a real one gives only for moments."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from relay.change import Change
from relay.config import VitessConfig
from relay.errors import RelayError, Unavailable
from relay.lineage import Shard
from relay.source import Opening, Page
from relay.table import Column
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.source import VitessSource
from tests.reads import pages_of
from tests.vitess.reading import START, is_at_head, new
from tests.vitess.scripted import HOLDS, KEYSPACE, Log, Script, ScriptedVtgate, Step, copy_script

VINDEX = "show vschema vindexes on `customer`"


@contextmanager
def source_of(
    log: Log,
    vindex: list[dict[str, str | None]] | str,
    tables: list[str] | None = None,
    script: Script | None = None,
    **settings: Any,
) -> Iterator[VitessSource]:
    with ScriptedVtgate(script or log.script, {VINDEX: vindex}) as vtgate:
        place = {"type": "vitess", "vtgate": vtgate.address, "keyspace": KEYSPACE, "keyrange": "-"}
        entry = {"name": "s", "tables": tables, **place, **settings}
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


_RENAMED = "no longer has column name, .*has the new column label"
PROTECTED: dict[str, Any] = {"tables": ["customer"], "protect": {"customer": {"name": "mask"}}}


def read_all(source: VitessSource, start: dict[str, Any], pages: list[Page]) -> list[Change]:
    """Add the pages up to the head of the shard to ``pages``, and return their changes."""
    with closing(source.open(Opening(Shard("0"), start))) as reader:
        while not pages or not is_at_head(pages[-1]):
            pages += pages_of([reader.read()])
    return [change for page in pages for change in page.changes]


def test_a_stream_and_a_copy_have_no_value_of_a_protected_column_and_no_row_that_is_not_wanted() -> None:
    log = Log()
    log.add(*new(1, 2, 3, text=b"s3cr3t"), ((b"2", b"s3cr3t"), (b"2", b"s3cr3t 2")))
    rows: dict[str, list[tuple[bytes | None, ...]]] = {"customer": [(b"1", b"s3cr3t"), (b"2", b"s3cr3t")]}
    copy, where = copy_script(log, rows, 1, 1), {"customer": {"id": 2}}
    masked = {"id": 2, "name": "***"}
    with source_of(log, [], script=copy, where=where, **PROTECTED) as source:
        streamed = read_all(source, START, [])
        copied = read_all(source, {"type": "copy", "since": 5.0}, [])
    assert [(change.old, change.new) for change in streamed] == [(None, masked), (masked, masked)]
    assert [change.new for change in copied if change.key] == [masked]


def test_a_protected_column_that_is_renamed_ends_the_stream_before_its_first_row() -> None:
    old, log = Log(), Log()
    old.add(*new(1))
    log.add(), log.add(statement="alter table customer rename column name to label"), log.add(*new(2, text=b"s3cr3t"))
    log.layouts["customer"].fields[1].name = "label"

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [log.vgtid(log.head)]
        else:
            answers = [*old.play(old.transactions, set()), *log.play(log.transactions[1:], set())]
            yield [event for answer in answers for event in answer]
        yield HOLDS

    pages: list[Page] = []
    with source_of(log, [], script=script, **PROTECTED) as source, pytest.raises(RelayError, match=_RENAMED):
        read_all(source, START, pages)
    assert [change.new for page in pages for change in page.changes] == [{"id": 1, "name": "***"}]
    both = {**PROTECTED, "protect": {"customer": {"name": {"absent": "mask"}, "label": "exclude"}}}
    with source_of(log, [], script=script, **both) as source:
        changes = read_all(source, START, [])
    assert [change.new for change in changes] == [{"id": 1, "name": "***"}, {"id": 2}]
