"""Which tables a stream has, and what it asks vtgate for."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from relay.vitess.settings import Portion

NAMES = st.text(st.sampled_from("abé_/.^]"), min_size=1, max_size=4)


def matches(rule: str, table: str) -> bool:
    """As vstreamer matches a rule, in the syntax of Go."""
    assert rule.startswith("/")
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: re.escape(chr(int(found[1], 16))), rule.strip("/"))
    return re.search(python, table) is not None


@given(st.sets(NAMES), NAMES)
@example({"customer"}, "customer_seq")
@example({"customer", "customer_seq"}, "customer_s")
def test_a_stream_asks_for_every_table_but_those_it_is_without(without: set[str], table: str) -> None:
    """Also for those that are created later. A tablet ends a stream at rows of a table that it lacks by now."""
    assert matches(Portion(without=tuple(without)).pattern, table) == (table not in without)


def test_a_stream_that_loses_its_last_table_goes_on_if_others_may_be_added() -> None:
    assert Portion(("a", "b")).less(["a"], ["7"]) == Portion(("b",), moves=("7",))
    assert Portion(("a", "b")).less(["a", "b"], ["7"]) is None
    assert Portion(without=("b",), moves=("5",)).less(["a"], ["5", "7"]) == Portion((), ("a", "b"), ("5", "7"))
