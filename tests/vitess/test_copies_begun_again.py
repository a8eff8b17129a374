"""Copies that begin again after each interruption, since vtgate would leave out rows after a key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from relay.vitess.proto import vtgate_pb2 as pb
from tests.vitess.copies import at, ids, rows_of
from tests.vitess.reading import copying, until
from tests.vitess.scripted import Log, ScriptedVtgate, Step, copy_script

UNSORTED: list[dict[str, str | None]] = [
    {"column_name": "id", "column_type": "enum('b','a')", "collation_name": "utf8mb4_bin"}
]


@pytest.mark.parametrize("key", [UNSORTED, []])
def test_a_table_whose_rows_vtgate_cannot_find_after_a_key_is_copied_from_its_begin_again(key: Any) -> None:
    """I1: ENUMs are sorted by their numbers and compared by their texts; without a key, nothing is after NULL."""
    log = Log()
    with (
        ScriptedVtgate(copy_script(log, rows_of(range(1, 10)), batch=4, seed=1)) as vtgate,
        copying(vtgate.address, lambda: at(log.head)) as reader,
    ):
        vtgate.key = key
        page = until(reader, lambda page: bool(page.changes))[-1]
        assert ids([page]) == [1, 2, 3, 4]
        with copying(vtgate.address, lambda: at(log.head), after=page) as again:
            assert ids(until(again, lambda page: page.finished))[-9:] == list(range(1, 10))
        assert not any(request.vgtid.shard_gtids[0].table_p_ks for request in vtgate.requests)


def test_such_a_table_is_copied_again_if_vtgate_goes_on_after_a_key_by_itself() -> None:
    """I1"""
    log, calls = Log(), itertools.count()
    whole = copy_script(log, rows_of(range(1, 10)), batch=4, seed=1)
    nothing_more = copy_script(log, {"customer": []}, batch=4, seed=1)

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        steps = whole(request)
        if next(calls) == 0:
            yield next(steps)
            steps = nothing_more(request)
        yield from steps

    with ScriptedVtgate(script) as vtgate, copying(vtgate.address, lambda: at(log.head)) as reader:
        vtgate.key = UNSORTED
        assert set(ids(until(reader, lambda page: page.finished))) == set(range(1, 10))
