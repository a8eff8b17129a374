"""Counts of changed keys: the same whether they are kept in memory or in a file."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.mysql_dialect.makers import KeyCounts


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("tu"), st.binary(max_size=2))), st.integers(0, 5))
def test_every_key_is_counted_from_zero(keys: list[tuple[str, bytes]], in_memory: int) -> None:
    """I11."""
    counts, truth = KeyCounts(in_memory), Counter[tuple[str, bytes]]()
    for key in keys:
        assert counts.next(*key) == truth[key]
        truth[key] += 1
    counts.clear()


def test_counts_start_again_after_a_transaction_that_was_counted_in_a_file() -> None:
    counts = KeyCounts(1)
    for _ in range(2):
        assert [counts.next("t", key) for key in (b"a", b"b", b"c", b"a")] == [0, 0, 0, 1]
        counts.clear()


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("tu"), st.binary(max_size=1))), st.integers(0, 5), st.integers(0, 9))
def test_keys_that_others_have_counted_are_counted_on(
    keys: list[tuple[str, bytes]], in_memory: int, before: int
) -> None:
    """I3, I11."""
    truth = Counter(keys[:before])
    counts = KeyCounts(in_memory)
    counts.load([(table, key, count) for (table, key), count in truth.items()])
    for key in keys[before:]:
        assert counts.next(*key) == truth[key]
        truth[key] += 1
    counts.clear()
