"""Positions and gaps as people read them."""

from __future__ import annotations

import pytest

from relay.records import Gap, Position, position_text


@pytest.mark.parametrize(
    ("position", "text"),
    [
        ({"type": "after_sequence", "sequence": "7"}, "7"),
        ({"since": 12.5}, "12.5"),
        ({"type": "trim_horizon"}, "trim_horizon"),
        ({"stream": "2026-01-01T00:00:00.000"}, "stream 2026-01-01T00:00:00.000"),
        ({"gtid": "MariaDB/0-1-5"}, "MariaDB/0-1-5"),
        ({"gtid": "MariaDB/0-1-5", "transaction": "0-1-6", "rows_done": 3}, "MariaDB/0-1-5 and 3 rows of 0-1-6"),
        ({}, ""),
    ],
)
def test_a_position_is_written_without_its_form(position: Position, text: str) -> None:
    assert position_text(position) == text


def test_a_gap_names_its_shard_only_if_it_has_one() -> None:
    whole = Gap("orders", "2026-02-01", None, "new stream", {"stream": "2026-01-01"}, None, 0.0)
    assert str(whole) == "new stream, stream 2026-02-01, after stream 2026-01-01"
    one = Gap("orders", "2026-02-01", "shard-1", "shard lost", None, None, 0.0)
    assert str(one) == "shard lost, shard shard-1 of stream 2026-02-01, after its start"
