"""The JSON of positions, which checkpoints keep."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from relay.mysql.positions import BinlogPosition

PARTLY = {"transaction": "0-1-6", "rows_done": 3, "rows_of": {"0-1-6": {"t": 3}}}


@pytest.mark.parametrize(
    "position",
    [
        {"gtid": "MariaDB/0-1-5"},
        {"gtid": "MariaDB/0-1-5", "transaction": "0-1-6", "rows_done": 3, "rows_of": {"0-1-6": {"u": 1, "t": 2}}},
        {"gtid": "MariaDB/0-1-5,9-7-2", **PARTLY, "local": "MariaDB/9-7-2"},
        {"gtid": "MariaDB/0-1-5", **PARTLY, "rows_of": {"0-1-6": {"t": 3}, "1-1-8": {"t": 2}}},
        {"gtid": "MariaDB/0-1-5", **PARTLY, "made_at": {"0-1-6": 1800000000}},
        {"gtid": "MariaDB/0-1-5", "targets": {"-80": "MariaDB/0-2-7", "80-": "MariaDB/0-3-9"}},
    ],
)
def test_a_position_that_is_read_and_written_has_the_same_bytes(position: dict[str, Any]) -> None:
    assert orjson.dumps(BinlogPosition.from_json(position).to_json()) == orjson.dumps(position)


def test_transactions_that_only_a_replica_has_are_not_required_of_other_servers() -> None:
    position = BinlogPosition.from_json(
        {
            "gtid": "MariaDB/0-1-5",
            "transaction": "9-7-2",
            "rows_done": 1,
            "rows_of": {"9-7-2": {"t": 1}, "0-1-6": {"t": 2}},
            "local": "MariaDB/9-7-2",
        }
    )
    assert position.unfinished == ("0-1-6",)


def test_an_object_without_a_gtid_is_not_a_position() -> None:
    with pytest.raises(KeyError, match="gtid"):
        BinlogPosition.from_json({"type": "reshard"})
