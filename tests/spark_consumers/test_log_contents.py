"""What a change log says that it has (I7)."""

from __future__ import annotations

import pytest

from relay.kafka.created_again import NO_ID
from spark_consumers.log_contents import LogContents

BEGIN, END = {"t": {"0": 5, "1": 0}}, {"t": {"0": 9, "1": 0}}


def test_offsets_that_were_appended_are_covered_and_no_others() -> None:
    contents = LogContents().after(BEGIN, END, {})
    assert contents.covered(BEGIN, END) == [("t", 0, 5, 9)]
    assert contents.covered({"t": {"0": 0}}, {"t": {"0": 7}}) == [("t", 0, 5, 7)]
    assert contents.covered({"t": {"0": 9}}, {"t": {"0": 12}}) == []
    assert contents.covered({"t": {"1": 0}}, {"t": {"1": 4}}) == []
    assert contents.covered({"u": {"0": 0}}, {"u": {"0": 9}}) == []


def test_ranges_that_touch_become_one_and_what_lies_between_others_is_not_covered() -> None:
    """A log may begin at the end of a topic, and another checkpoint fetch the rest later."""
    contents = LogContents().after({"t": {"0": 20}}, {"t": {"0": 30}}, {}).after({}, {"t": {"0": 5}}, {})
    assert contents.offsets == {"t": {"0": [[0, 5], [20, 30]]}}
    assert contents.covered({"t": {"0": 4}}, {"t": {"0": 21}}) == [("t", 0, 4, 5), ("t", 0, 20, 21)]
    assert contents.after({"t": {"0": 5}}, {"t": {"0": 20}}, {}).offsets == {"t": {"0": [[0, 30]]}}


@pytest.mark.parametrize(("begin", "offsets"), [(-2, {"t": {"0": [[0, 9]]}}), (-1, {})])
def test_a_batch_that_began_at_an_end_that_nobody_has_noted_covers_nothing(
    begin: int, offsets: dict[str, dict[str, list[list[int]]]]
) -> None:
    assert LogContents().after({"t": {"0": begin}}, {"t": {"0": 9}}, {}).offsets == offsets


def test_a_topic_that_was_created_again_has_other_records_at_the_same_offsets() -> None:
    """I1"""
    contents = LogContents()
    contents.keep_only({"t": "one", "u": "two"})
    contents = contents.after(BEGIN, END, {})
    contents.keep_only({"t": "one", "u": "two"})
    assert contents.covered(BEGIN, END) == [("t", 0, 5, 9)]
    contents.keep_only({"t": "three", "u": "two"})
    assert contents.covered(BEGIN, END) == []


@pytest.mark.parametrize("first", [{}, {"t": NO_ID}])
def test_what_the_log_has_of_a_topic_that_had_no_id_is_kept(first: dict[str, str]) -> None:
    """I7: its brokers have begun to give ids."""
    contents = LogContents()
    contents.keep_only(first)
    contents = contents.after(BEGIN, END, {})
    contents.keep_only({"t": "one"})
    assert contents.covered(BEGIN, END) == [("t", 0, 5, 9)]
    contents.keep_only({"t": "two"})
    assert contents.covered(BEGIN, END) == []


def test_the_newest_change_of_a_table_is_kept() -> None:
    contents = LogContents().after(BEGIN, END, {"s/t": 7, "s/u": 1}).after(BEGIN, END, {"s/t": 5})
    assert (contents.newest, contents.version) == ({"s/t": 7, "s/u": 1}, 2)


def test_contents_are_stored_as_json_beside_the_metadata_of_others() -> None:
    contents = LogContents().after(BEGIN, END, {"s/t": 7})
    assert LogContents.from_json(contents.to_json()) == contents
    for other in (None, "", "nightly vacuum", "{}", "[]", '{"relay.log": 1}', '{"relay.log": {"later": 1}}'):
        assert LogContents.from_json(other) is None
