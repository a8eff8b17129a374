"""The pace of a copy, which its reader may limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from relay.vitess.proto import vtgate_pb2 as pb
from tests.reads import read_page
from tests.vitess.copies import at, ids, rows_of
from tests.vitess.reading import copying, until
from tests.vitess.scripted import Log, ScriptedVtgate, Step, copy_script


@pytest.mark.parametrize(("pace", "rest", "calls"), [(None, 0.0, 1), (100, 0.04, 1), (2, 2.0, 1), (1, 4.0, 1)])
def test_the_pace_of_a_copy_is_limited_by_a_rest_after_each_batch(pace: int | None, rest: float, calls: int) -> None:
    log = Log()
    script = copy_script(log, rows_of(range(1, 13)), batch=4, seed=1)
    with ScriptedVtgate(script) as vtgate:
        with copying(vtgate.address, lambda: at(log.head), copied_rows_per_second=pace) as reader:
            pages = until(reader, lambda page: page.finished)
        assert [page.pause for page in pages if page.changes] == [rest] * 3
        assert ids(pages) == [*range(1, 13)]
        assert len(vtgate.requests) == calls


def test_a_copy_that_rests_for_long_leaves_vtgate_and_goes_on_where_it_was() -> None:
    """I3: vtgate would end a call whose messages nobody takes, and keeps the rows of a copy in a transaction."""
    log = Log()
    script = copy_script(log, rows_of(range(1, 13)), batch=4, seed=1)
    with ScriptedVtgate(script) as vtgate:
        with copying(vtgate.address, lambda: at(log.head), copied_rows_per_second=0.5) as reader:
            pages = until(reader, lambda page: page.finished)
        assert [page.pause for page in pages if page.changes] == [8.0] * 3
        assert ids(pages) == [*range(1, 13)]
        assert len(vtgate.requests) == 4


def test_a_copy_that_cannot_go_on_where_it_was_rests_no_longer_than_vtgate_waits() -> None:
    """I1, I10: it would begin again after each batch."""
    log = Log()
    script = copy_script(log, rows_of(range(1, 13)), batch=4, seed=1)
    with ScriptedVtgate(script) as vtgate:
        vtgate.key = []
        with copying(vtgate.address, lambda: at(log.head), copied_rows_per_second=0.5) as reader:
            pages = until(reader, lambda page: page.finished)
        assert [page.pause for page in pages if page.changes] == [5.0] * 3
        assert ids(pages) == [*range(1, 13)]
        assert len(vtgate.requests) == 1


def test_a_copy_is_not_silent_because_it_rests() -> None:
    """I10"""
    log, goes_on = Log(), threading.Event()
    whole = copy_script(log, rows_of(range(1, 9)), batch=4, seed=1)

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        for number, step in enumerate(whole(request)):
            if number == 1:
                goes_on.wait(120)
            yield step

    settings: dict[str, Any] = {"copied_rows_per_second": 1, "silence": 2.0}
    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.head), **settings) as reader:
        until(reader, lambda page: bool(page.changes))
        time.sleep(2.1)
        assert not read_page(reader).changes
        goes_on.set()
        assert ids(until(reader, lambda page: page.finished)) == [5, 6, 7, 8]
