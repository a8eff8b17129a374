"""What GTID sets of two servers have in common, and which MariaDB sequence numbers were read."""

from __future__ import annotations

import pytest

from relay.gtid import parse
from relay.mysql.gtids import SequencesRead, common, went_back

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_the_common_part_of_two_gtid_sets() -> None:
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    assert common(parse(f"{uuid}:1-50"), parse(f"{uuid}:40-90")) == parse(f"{uuid}:40-50")
    assert common(parse("MariaDB/0-1-5,1-1-9"), parse("MariaDB/0-2-7,1-1-3,2-1-1")) == parse("MariaDB/0-1-5,1-1-3")
    assert common(parse("MariaDB/0-1-5"), parse("MariaDB/0-1-9")) == parse("MariaDB/0-1-5")


def test_a_binlog_state_is_taken_over_only_as_far_as_it_was_read() -> None:
    read = SequencesRead()
    read.learn("0-1-100,0-2-110,1-1-7", parse("MariaDB/0-1-105,2-1-1"))
    assert read.by_domain == {"0": {"1": 100}}
    read.add(["0-2-106", "1-3-8"])
    assert read.by_domain == {"0": {"1": 100, "2": 106}, "1": {"3": 8}}


@pytest.mark.parametrize(
    ("before", "now", "is_lost"),
    [
        ("MariaDB/0-1-7,5-1-2", "MariaDB/0-2-9,5-1-2", False),
        ("MariaDB/0-1-7,5-1-2", "MariaDB/0-1-7", False),
        ("MariaDB/0-1-7,5-1-2", "MariaDB/", False),
        ("MariaDB/0-1-7,5-1-2", "MariaDB/0-1-1,5-1-2", True),
        (f"MySQL56/{A}:1-7", f"MySQL56/{A}:1-8,{B}:1", False),
        (f"MySQL56/{A}:1-7", f"MySQL56/{A}:1-6,{B}:1-9", True),
        (f"MySQL56/{A}:1-7", "MySQL56/", True),
    ],
)
def test_a_server_that_was_reset_has_lost_what_it_had(before: str, now: str, is_lost: bool) -> None:
    """I9: and one of which a domain was deleted has not."""
    assert went_back(parse(before), parse(now)) is is_lost
