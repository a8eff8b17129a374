"""What GTID sets of two servers have in common, and which MariaDB sequence numbers were read."""

from __future__ import annotations

from relay.gtid import parse
from relay.mysql.gtids import SequencesRead, common


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
