"""What a replay reads next, what it refuses, and what a snapshot makes up for: plain rules, without services."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from relay.config import Config
from relay.errors import ConfigError
from relay.kafka.created_again import NO_ID
from relay.kafka.group_offsets import Offsets, count_between
from spark_consumers.replay.bounds import Mark, beginnings, uncovered
from spark_consumers.replay.state import ReplayState, StateFile, refuse_another, refuse_emptied, refuse_lost

CONFIG = Config.model_validate(
    {
        "name": "shop",
        "kafka": {"bootstrap_servers": "b:1"},
        "sources": [{"name": "orders", "type": "dynamodb", "table": "all", "region": "us-east-1"}],
    }
)


def state(reached: Offsets | None = None) -> ReplayState:
    start: Offsets = {"shop.all": {"0": 0, "1": 100, "2": 7}, "shop.gaps": {"0": 0}}
    end: Offsets = {"shop.all": {"0": 1000, "1": 110, "2": 7}, "shop.gaps": {"0": 3}}
    return ReplayState({"--from": "earliest", "--to": "latest"}, {"shop.all": "a"}, start, end, reached or start)


def test_batches_read_the_gaps_first_and_then_every_partition_to_its_end() -> None:
    replayed = state()
    sizes = []
    while not replayed.is_complete:
        after = replayed.next_end(100, "shop.gaps")
        sizes.append(count_between(replayed.reached, after))
        assert after["shop.gaps"]["0"] == 3
        replayed.reached = after
    assert sizes[0] == 3
    assert sum(sizes) == replayed.total == replayed.done == 1013
    assert all(0 < size <= 101 for size in sizes)


def test_a_state_is_kept_for_each_kind_and_target_and_goes_on_with_the_same_options_only(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path), "copy", "delta:///new")
    file.write(state())
    assert StateFile(str(tmp_path), "copy", "delta:///new").read() == state()
    assert StateFile(str(tmp_path), "copy", "delta:///other").read() is None
    refuse_another(state(), state().asked, state().topics, file.path)
    with pytest.raises(ConfigError, match="began with --to latest, not -2h"):
        refuse_another(state(), {"--to": "-2h"}, state().topics, file.path)
    with pytest.raises(ConfigError, match=r"topic shop\.all was created again"):
        refuse_another(state(), state().asked, {"shop.all": "b"}, file.path)
    for without in {}, dict.fromkeys(state().topics, NO_ID):
        refuse_another(replace(state(), topics=without), state().asked, state().topics, file.path)


def test_records_that_were_removed_before_they_were_read_are_not_passed_over(tmp_path: Path) -> None:
    """I9"""
    refuse_lost(state(), {"shop.all": {"0": 0, "1": 100, "2": 500}, "shop.gaps": {"0": 0}}, tmp_path)
    with pytest.raises(ConfigError, match=r"shop.all\[0\]: Kafka has removed the records from offset 0 to 9 since"):
        refuse_lost(state(), {"shop.all": {"0": 9, "1": 0, "2": 0}, "shop.gaps": {"0": 0}}, tmp_path)


def test_a_replay_whose_table_has_left_the_config_says_so_and_one_that_was_added_does_not_matter(
    tmp_path: Path,
) -> None:
    """I12: a consumer reads an added table from its beginning, even after a swap."""
    first: Offsets = {"shop.all": {"0": 0, "1": 100, "2": 7}, "shop.gaps": {"0": 0}}
    refuse_lost(state(), {**first, "shop.added": {"0": 5}}, tmp_path)
    said = rf"topic shop\.all is no longer in the config, .*: add its table again; or, .* the target and {tmp_path}$"
    with pytest.raises(ConfigError, match=said):
        refuse_lost(state(), {"shop.gaps": {"0": 0}}, tmp_path)


def test_a_replay_does_not_go_on_in_a_target_that_lacks_what_it_has_written(tmp_path: Path) -> None:
    """I1, I7: a swap would put it in the place of the present one. Nothing is noted before the first batch."""
    begun = state({"shop.all": {"0": 500, "1": 105, "2": 7}, "shop.gaps": {"0": 3}})
    refuse_emptied(begun, begun.reached, "new", tmp_path)
    # A crash comes after the note and before the state. The gaps are in no note.
    refuse_emptied(begun, {"shop.all": {"0": 600, "1": 110, "2": 7}}, "new", tmp_path)
    refuse_emptied(state(), {"shop.all": {}}, "new", tmp_path)
    said = rf"new lacks shop\.all\[0\] from offset {{}} to 500, which .* there: remove it and {tmp_path} to start over"
    for lost, first in ({}, 0), ({"0": 499, "1": 105, "2": 7}, 499):
        with pytest.raises(ConfigError, match=said.format(first)):
            refuse_emptied(begun, {"shop.all": lost}, "new", tmp_path)


def test_only_a_snapshot_from_its_begin_to_its_end_makes_up_for_a_lost_beginning() -> None:
    """I9"""
    missing = beginnings(CONFIG, {"shop.all": {"0": 0, "1": 100}, "shop.gaps": {"0": 5}})
    assert missing == {("shop.all", "1"): 100}

    def marks(*kinds: str, partition: int = 1, table: str = "a", snapshot: str = "s") -> list[Mark]:
        return [("shop.all", partition, 100 + at, table, snapshot, kind) for at, kind in enumerate(kinds)]

    one, two = [("shop.all", "a")], [("shop.all", "a"), ("shop.all", "b")]
    assert uncovered(missing, marks("begin", "end"), one) == []
    assert uncovered(missing, marks("begin", "end"), two) == [("shop.all", "1")]
    assert uncovered(missing, marks("begin", "end") + marks("begin", "end", table="b"), two) == []
    for lacking in (
        [],
        marks("end", "begin"),
        marks("begin", "end", partition=0),
        [*marks("begin"), *marks("end", snapshot="t")],
    ):
        assert uncovered(missing, lacking, one) == [("shop.all", "1")]
