"""Databases that lose a transaction of which rows are published, as EmergencyReparentShard may make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.errors import RelayError
from relay.source import Page
from relay.vitess.client import TABLET_TYPES
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.reader import READ_AT_ONCE
from tests.vitess.reading import NOW, START, failure, is_at_head, new, opened, until
from tests.vitess.scripted import HOLDS, Log, ScriptedVtgate, Step


def half() -> Page:
    """Return the page that ends inside the transaction 0-1-11."""
    log = Log(chunk=1)
    log.add(*new(1, 2, 3, 4, 5, text=b"x" * READ_AT_ONCE))  # each answer is read by itself, however many have come

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield from log.script(request)
        else:
            yield from [*log.play(log.transactions, set())][:4]
            yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, now=NOW, page_bytes=1) as reader:
        return until(reader, lambda page: bool(page.changes))[-1]


@pytest.mark.parametrize(
    ("rows", "names", "error"),
    [
        ([], True, "shop/commerce/0 never executed MariaDB/0-1-11, and is at MariaDB/0-1-10"),
        (new(9), True, "shop/commerce/0 is at 0-2-11 without 0-1-11, of which rows were read"),
        (new(9), False, "shop/commerce/0 is at 0-2-11 without 0-1-11, of which rows were read"),
        ([("other", None, (b"1", b"x"))], True, "shop/commerce/0 is at 0-2-11 without 0-1-11, of which rows were read"),
    ],
)
def test_a_shard_that_has_lost_a_transaction_of_which_rows_are_published_is_not_read_on(
    rows: list[Any], names: bool, error: str
) -> None:
    """I10, I7: copies keep these rows, and it would seem that nothing is missing."""
    log = Log(names=names)
    if rows:
        log.add(*rows).gtid = "0-2-11"
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, START, now=NOW, after=half()) as reader,
        pytest.raises(RelayError, match=error),
    ):
        until(reader, is_at_head)


def test_a_replica_that_never_gets_the_rest_of_a_transaction_of_which_rows_were_read_is_named() -> None:
    """I10: it is at its head, and it would seem that nothing is missing."""

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == "current":
            yield [
                Log().vgtid("MariaDB/0-1-11" if request.tablet_type == TABLET_TYPES["PRIMARY"] else "MariaDB/0-1-10")
            ]
        yield HOLDS

    with ScriptedVtgate(script) as vtgate, opened(vtgate.address, START, silence=0.2, now=NOW, after=half()) as reader:
        assert "the REPLICA tablet is at MariaDB/0-1-10, behind MariaDB/0-1-11" in failure(reader, "behind")
