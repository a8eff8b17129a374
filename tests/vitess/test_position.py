"""Positions of a shard, their JSON in checkpoints, and executed sets."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay import gtid
from relay.vitess.position import VStreamPosition, added, canonical, including

UUID = "16b1039f-22b6-11ed-b765-0a43f95f28a3"
OTHER = "06b1039f-22b6-11ed-b765-0a43f95f28a3"

domains = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 3), st.integers(1, 50)), min_size=1)
servers = st.dictionaries(
    st.sampled_from([UUID, OTHER]), st.lists(st.integers(1, 40), min_size=1, max_size=6), min_size=1
)
mariadb = domains.map(lambda found: "MariaDB/" + ",".join(f"{d}-{s}-{n}" for d, (s, n) in found.items()))
mysql = servers.map(lambda found: "MySQL56/" + ",".join(f"{u}:{':'.join(map(str, n))}" for u, n in found.items()))


@given(text=mariadb | mysql)
def test_positions_survive_a_round_trip_through_json(text: str) -> None:
    for position in (
        VStreamPosition(canonical(text)),
        VStreamPosition(canonical(text), transaction="0-1-5", done={"t": 7, "u": 1}),
    ):
        assert VStreamPosition.from_json(orjson.loads(orjson.dumps(position.to_json())), "shard") == position


@given(text=mariadb, domain=st.integers(0, 4), server=st.integers(1, 3), number=st.integers(1, 60))
def test_including_a_mariadb_transaction_is_the_union_with_it(text: str, domain: int, server: int, number: int) -> None:
    one = f"{domain}-{server}-{number}"
    assert including(canonical(text), one) == (gtid.parse(text) | gtid.parse(one)).position


@given(text=mysql, uuid=st.sampled_from([UUID, OTHER]), number=st.integers(1, 60))
def test_including_a_mysql_transaction_is_the_union_with_it_and_the_difference_names_it(
    text: str, uuid: str, number: int
) -> None:
    before, one = canonical(text), f"{uuid}:{number}"
    after = including(before, one)
    assert after == (gtid.parse(text) | gtid.parse(one)).position
    if after != before:
        assert added(before, after) == one


@given(text=mariadb | mysql)
def test_a_position_has_one_canonical_form(text: str) -> None:
    assert canonical(text) == gtid.parse(text).position == canonical(canonical(text))


def test_rows_that_show_what_is_published_show_the_open_transaction_too() -> None:
    """I7: part of it is on the topic."""
    position = VStreamPosition("MariaDB/0-1-5", transaction="0-1-6", done={"t": 1})
    assert position.needed == gtid.parse("MariaDB/0-1-6")
    assert VStreamPosition("MariaDB/0-1-5").needed == gtid.parse("MariaDB/0-1-5")


@pytest.mark.parametrize("text", ["MariaDB/0-1-0", "MariaDB/0-1-5"])
def test_single_gtids_are_sets(text: str) -> None:
    assert canonical(text) == text
