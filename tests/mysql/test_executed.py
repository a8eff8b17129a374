"""The executed set of a stream is the union of its transactions, at every step, in both flavours."""

from __future__ import annotations

import struct
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.errors import RelayError
from relay.gtid import parse
from relay.mysql.gtids import Executed, sid_block

SERVERS = [str(uuid.UUID(int=each)) for each in range(4)]


@given(
    st.lists(st.tuples(st.sampled_from(SERVERS), st.integers(1, 30)), max_size=60),
    st.dictionaries(st.sampled_from(SERVERS), st.integers(1, 10)),
)
@settings(deadline=None)
def test_for_mysql_it_is_the_union_in_any_order(numbers: list[tuple[str, int]], start: dict[str, int]) -> None:
    """I4."""
    expected = parse("MySQL56/" + ",".join(f"{server}:1-{last}" for server, last in start.items()))
    executed = Executed(expected, "MySQL56")
    for server, number in numbers:
        expected |= parse(f"{server}:{number}")
        assert executed.add_mysql(server, number) == expected.position
        assert parse(executed.position) == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 9)), max_size=60), st.booleans())
@settings(deadline=None)
def test_for_mariadb_it_is_the_last_gtid_of_each_domain(steps: list[tuple[int, int, int]], begun: bool) -> None:
    """I4."""
    expected = parse("MariaDB/1-7-3,2-1-1" if begun else "MariaDB/")
    executed = Executed(expected, "MariaDB")
    last = {1: 3, 2: 1} if begun else {}
    for domain, server, step in steps:
        last[domain] = last.get(domain, 0) + step
        expected |= parse(f"MariaDB/{domain}-{server}-{last[domain]}")
        assert executed.add_mariadb(domain, server, last[domain]) == expected.position
        assert parse(executed.position) == expected


@pytest.mark.parametrize("sequence", [4, 5])
def test_a_mariadb_gtid_that_is_out_of_order_is_refused(sequence: int) -> None:
    """I4."""
    executed = Executed(parse("MariaDB/0-1-5,1-1-9"), "MariaDB")
    executed.add_mariadb(1, 2, 10)
    with pytest.raises(RelayError, match="gtid_strict_mode"):
        executed.add_mariadb(0, 2, sequence)
    assert executed.position == "MariaDB/0-1-5,1-2-10"


def test_it_can_be_restored_to_an_earlier_position() -> None:
    executed = Executed(parse("MariaDB/0-1-5"), "MariaDB")
    executed.add_mariadb(3, 1, 1)
    executed.restore("MariaDB/0-1-5")
    assert executed.add_mariadb(0, 1, 6) == "MariaDB/0-1-6"


def test_the_set_in_a_dump_command_has_exclusive_ends() -> None:
    a, b = SERVERS[1:3]
    assert sid_block(parse(f"{a}:20-30:35-40,{b}:1-5")) == (
        struct.pack("<Q", 2)
        + uuid.UUID(a).bytes
        + struct.pack("<5Q", 2, 0x14, 0x1F, 0x23, 0x29)
        + uuid.UUID(b).bytes
        + struct.pack("<3Q", 1, 1, 6)
    )
    assert sid_block(parse("")) == bytes(8)
    with pytest.raises(RelayError, match="MySQL"):
        sid_block(parse("0-1-5"))
