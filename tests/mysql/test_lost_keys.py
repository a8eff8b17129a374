"""A table that loses its primary key: its rows are lost, and a gap says from where to where."""

from __future__ import annotations

from relay.mysql.binlog.events import COMMIT, BinlogEvent, KeyLost, Rows
from relay.mysql.positions import BinlogPosition
from relay.table import Column
from tests.mysql.fed_shard import Shard, begin, inserted, stated


def lost(shard: Shard, *events: BinlogEvent) -> list[str]:
    """Feed events, and return the changes in pages, and where rows are lost between them."""
    shard.transactions.feed(events)
    found = []
    while True:
        consumed = shard.consume()
        if consumed.lost is not None:
            begin, reason = consumed.lost
            found.append(f"{reason.partition(',')[0]}, {reason[-7:]}, after {begin.to_json()}")
            assert not shard.transactions.has_changes
            assert begin != shard.transactions.position
        found += [f"{each.operation.value} {each.table}" for each in shard.transactions.take()[0]]
        if not consumed.is_full:
            return found


def test_the_rows_of_a_table_without_its_key_are_lost_from_their_place_in_a_transaction_to_the_first_with_a_key() -> (
    None
):
    """I9: the page with what came before ends there, and the position says which gap is published."""
    shard = Shard()
    t, u = shard.layout("id", "a"), shard.layouts("d", "u", [Column("id", "int")], ["id"])
    assert u is not None
    rows = Rows(u, [(None, (1,)), (None, (2,))], 10)
    found = lost(
        shard, *inserted(101, t), begin(102), rows, KeyLost("t"), rows, COMMIT, begin(103), KeyLost("t"), COMMIT
    )
    at = {"gtid": "MariaDB/0-1-101", "transaction": "0-1-102", "rows_done": 1, "rows_of": {"0-1-102": {"u": 1}}}
    assert found == ["INSERT t", "INSERT u", f"left out from here on, table t, after {at}", *["INSERT u"] * 3]
    end = {"gtid": "MariaDB/0-1-103", "left_out": ["t"]}
    assert shard.transactions.position.to_json() == end
    assert BinlogPosition.from_json(end).to_json() == end
    found = lost(shard, *inserted(104, u), *inserted(105, t))
    before = {"gtid": "MariaDB/0-1-104", "left_out": ["t"]}
    assert found == ["INSERT u", f"left out up to here, table t, after {before}", "INSERT t"]
    assert shard.transactions.position.to_json() == {"gtid": "MariaDB/0-1-105"}


def test_the_rows_of_a_table_without_a_key_are_a_gap_once_any_shard_has_relayed_it() -> None:
    """I1, I9: and its own position does not say that it is left out before."""
    shard = Shard()
    rows = begin(101), KeyLost("t"), COMMIT
    assert not lost(shard, *rows)
    assert shard.transactions.position.to_json() == {"gtid": "MariaDB/0-1-101"}
    shard.layouts.skipped.keep(["t"])
    assert lost(shard, begin(102), *rows[1:]) == ["left out from here on, table t, after {'gtid': 'MariaDB/0-1-101'}"]


def test_nothing_of_a_table_is_missing_once_it_is_emptied() -> None:
    """I9: so there is no gap up to a key that it gets then, and another one from the next row without a key."""
    shard = Shard()
    t = shard.layout("id")
    assert len(lost(shard, *inserted(101, t), begin(102), KeyLost("t"), COMMIT)) == 2
    assert lost(shard, *stated(103, "DROP TABLE t"), *inserted(104, t)) == ["TRUNCATE t", "INSERT t"]
    assert len(lost(shard, begin(105), KeyLost("t"), COMMIT)) == 1
    assert len(lost(shard, *stated(106, "TRUNCATE t"), begin(107), KeyLost("t"), COMMIT)) == 2
