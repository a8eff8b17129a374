"""Answers of vtgate that are not messages: the connection is made again, and nothing is lost or doubled (I1, I3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.gtid import parse
from relay.vitess.client import Vtgate
from relay.vitess.position import VitessShard
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.start_at_time import ShardHistory
from relay.vitess.tablets import Tablets
from relay.vitess.watch import Head
from tests.vitess.copies import at, ids, rows_of
from tests.vitess.reading import START, copying, failure, new, opened, until
from tests.vitess.scripted import KEYSPACE, Log, Script, ScriptedVtgate, Step, copy_script

DAMAGED = b"\x0a\xff\xff\xff\xff\xff\xff"
SHARD = VitessShard("shop", KEYSPACE, "0", f"shop/{KEYSPACE}/0")


def damaged_once(script: Script, *, head: bool) -> Script:
    """Play ``script``, in whose first stream the second answer is damaged: of those for the head, or of the others."""
    left = 1

    def play(request: pb.VStreamRequest) -> Iterator[Step]:
        nonlocal left
        is_head = request.vgtid.shard_gtids[0].gtid == "current"
        for number, step in enumerate(script(request)):
            if left and is_head is head and number == (0 if head else 1):
                left -= 1
                yield DAMAGED
            yield step

    return play


@pytest.mark.parametrize("head", [False, True])
def test_a_stream_with_a_damaged_answer_is_opened_again_where_it_was(head: bool) -> None:
    log = Log()
    for number in range(1, 6):
        log.add(*new(number))
    with ScriptedVtgate(damaged_once(log.script, head=head)) as vtgate, opened(vtgate.address, START) as reader:
        if not head:
            assert "vtgate sent an answer that cannot be read" in failure(reader)
        pages = until(reader, lambda page: page.position == {"gtid": log.head} and page.reached is not None)
    seen = ids(pages)
    assert sorted(set(seen)) == sorted(seen)
    assert len(seen) == 5 or not head


def test_a_copy_with_a_damaged_answer_goes_on_after_its_last_batch() -> None:
    log = Log()
    script = damaged_once(copy_script(log, rows_of(range(1, 9)), batch=2, seed=1), head=False)
    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.head)) as reader:
        pages = until(reader, lambda page: bool(page.changes))
        assert "vtgate sent an answer that cannot be read" in failure(reader)
        pages += until(reader, lambda page: page.finished)
    assert ids(pages) == list(range(1, 9))


def test_a_damaged_answer_of_a_statement_and_of_a_search_is_said_to_be_that() -> None:
    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield DAMAGED
        yield None

    answers: dict[str, Any] = {"select 1": DAMAGED, "show binary logs": [{"Log_name": "binlog.1"}]}
    begin = [{"position": "0-1-1"}]
    with (
        ScriptedVtgate(script, answers | {"select binlog_gtid_pos('binlog.1', 4)": begin}) as vtgate,
        closing(Vtgate(vtgate.address)) as gate,
    ):
        with pytest.raises(Unavailable, match="sent an answer to 'select 1' that cannot be read"):
            gate.execute("select 1")
        tablets = Tablets(gate, SHARD, "PRIMARY")
        head = Head(tablets, "customer", clock=time.time)
        head.ask()
        while head.is_asking:
            assert head.poll(1.0) is None
        assert "the answer about the head cannot be read" in str(head.failed)
        history = ShardHistory(tablets, silence=5)
        with pytest.raises(Unavailable, match="vtgate sent an answer that cannot be read"):
            history.position_at(1000.0, parse("MariaDB/0-1-9"))
