"""Event tokens: their JSON, and the rules of ``compare`` one by one. ``test_token_truth`` tests them together."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.gtid import GtidError, parse
from relay.token import EventToken, Order, OriginToken, compare
from tests.token_orders import EQUAL, MIRROR, NEWER, OLDER, UNKNOWN

U = "33333333-3333-3333-3333-333333333333"
V = "44444444-4444-4444-4444-444444444444"


def token(
    timestamp: int, shard: str = "", position: str = "", origin: tuple[int, str, str] | None = None
) -> EventToken:
    return EventToken(timestamp, shard, position, OriginToken(*origin) if origin else None)


def check(a: EventToken | None, b: EventToken | None, order: Order, *, timestamp_first: bool = False) -> None:
    assert compare(a, b, timestamp_first=timestamp_first) is order
    assert compare(b, a, timestamp_first=timestamp_first) is MIRROR[order]


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        # Other implementations answer -1, as for older, where nothing is known. Here that is unknown.
        (None, None, UNKNOWN),
        (token(123), None, UNKNOWN),
        (None, token(123), UNKNOWN),
        (token(123), token(123), UNKNOWN),
        (token(200), token(100), NEWER),
        (token(100), token(200), OLDER),
        (token(100), token(100), UNKNOWN),
        (token(100, "s1"), token(100, "s2"), UNKNOWN),
        (token(100, "s1"), token(100, "s1"), UNKNOWN),
        (token(100, "s1", "pos1"), token(100, "s1"), UNKNOWN),
        (token(100, "s1"), token(100, "s1", "pos2"), UNKNOWN),
        (token(100, "s1", "pos1"), token(100, "s1", "pos2"), UNKNOWN),
        (token(100, "s1", "MariaDB/0-1-123"), token(100, "s1", f"MySQL56/{U}:456-789"), UNKNOWN),
        (token(100, "s1", "MariaDB/0-1-200"), token(100, "s1", "MariaDB/0-1-100"), NEWER),
        (token(100, "s1", "MariaDB/0-1-100"), token(100, "s1", "MariaDB/0-1-200"), OLDER),
        (token(100, "s1", "MariaDB/0-1-100"), token(100, "s1", "MariaDB/0-1-100"), EQUAL),
        (token(100, "s1", f"MySQL56/{U}:1-200"), token(100, "s1", f"MySQL56/{U}:1-100"), NEWER),
        (token(100, "s1", f"MySQL56/{U}:1-100"), token(100, "s1", f"MySQL56/{U}:1-200"), OLDER),
        (token(100, "s1", f"MySQL56/{U}:1-100"), token(100, "s1", f"MySQL56/{U}:1-100"), EQUAL),
        (token(100, "s1", f"MySQL56/{U}:1-5,{V}:1-2"), token(100, "s1", f"MySQL56/{U}:1-4,{V}:1-3"), UNKNOWN),
        # Shards with different names are different shards, even if their key ranges are equal.
        (token(100, "s/k/80-", "MariaDB/0-1-5"), token(100, "s/k/8000-", "MariaDB/0-1-5"), UNKNOWN),
        # The clock was set back. By Vitess' rule the timestamp would decide.
        (token(200, "s1", "MariaDB/0-1-100"), token(100, "s1", "MariaDB/0-1-200"), OLDER),
        # Elsewhere each is newer than the other, which is a defect: these are two transactions.
        (token(100, "s1", "MariaDB/0-1-5"), token(100, "s1", "MariaDB/0-2-5"), UNKNOWN),
        (token(0, "s1", "MariaDB/0-1-5"), token(100, "s1", "MariaDB/0-1-9"), UNKNOWN),
        (token(2**40, "s/k/a"), token(1, "s/k/b"), NEWER),
    ],
)
def test_comparisons_of_other_implementations_hold(a: EventToken | None, b: EventToken | None, order: Order) -> None:
    check(a, b, order)


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        pytest.param("DynamoDB/99", "DynamoDB/100", OLDER, id="sequence numbers are integers"),
        pytest.param("DynamoDB/000000000000000000007", "DynamoDB/7", EQUAL, id="leading zeros are ignored"),
        pytest.param("DynamoDB/" + "9" * 40, "DynamoDB/1" + "0" * 40, OLDER, id="of any length"),
        pytest.param("DynamoDB/-5", "DynamoDB/5", None, id="a sequence number has no sign"),
        pytest.param("DynamoDB/", "DynamoDB/5", None, id="no sequence number"),
        pytest.param("DynamoDB/" + "9" * 5000, "DynamoDB/5", None, id="more digits than an int takes"),
        pytest.param("DynamoDB/5", "MariaDB/0-1-5", None, id="number and set"),
        pytest.param("MariaDB/0-1-5", f"MySQL56/{U}:1-9", None, id="two flavours"),
        pytest.param("MySQL56/", f"MySQL56/{U}:1-9", None, id="an empty set is not a position"),
        pytest.param("MariaDB/", "MariaDB/", None, id="two empty sets are not equal"),
        pytest.param("", "", None, id="no positions"),
        pytest.param(f"{U}:1-5", f"MySQL56/{U}:1-5", EQUAL, id="the flavour may be left out"),
        pytest.param(f"MySQL56/{U}:1-3:4-5", f"MySQL56/{U.upper()}:1-5", EQUAL, id="spelling is ignored"),
        pytest.param(f"MySQL56/{U}:1-5", f"MySQL56/{U}:1-5,{V}:1", OLDER, id="after a failover"),
        pytest.param(f"MySQL56/{U}:1-5", f"MySQL56/{U}:1-4,{V}:1", None, id="after a failover that lost one"),
        pytest.param("MariaDB/0-1-5", "MariaDB/0-2-6", OLDER, id="after a failover in MariaDB"),
        pytest.param("MariaDB/0-1-5", "MariaDB/0-1-5,1-1-7", OLDER, id="a domain joined"),
        pytest.param("MariaDB/0-1-5,1-1-7", "MariaDB/0-1-6,1-1-6", None, id="two domains disagree"),
        pytest.param("MariaDB/0-1-5,1-1-7", "MariaDB/0-1-5,2-1-7", None, id="each has a domain of its own"),
    ],
)
def test_positions_of_one_shard_decide_before_timestamps(a: str, b: str, order: Order | None) -> None:
    """Rule 2. None: the positions cannot be compared, so the timestamps decide."""
    for ours, theirs, by_timestamp in ((100, 100, UNKNOWN), (100, 101, OLDER)):
        check(token(ours, "s/k/-", a), token(theirs, "s/k/-", b), order or by_timestamp)
    if "0-2" not in b:  # see the test on failovers and clocks
        check(token(101, "s/k/-", a), token(100, "s/k/-", b), order or NEWER)


@pytest.mark.parametrize("others", ["", ",1-1-7", ",1-1-9"])
@pytest.mark.parametrize("timestamps", [(100, 100), (100, 200), (200, 100)])
def test_one_sequence_number_of_two_servers_is_unknown_whatever_else_is_known(
    others: str, timestamps: tuple[int, int]
) -> None:
    """Rule 2: neither other domains nor timestamps decide (I5)."""
    a = token(timestamps[0], "s/k/-", "MariaDB/0-1-5,1-1-7")
    check(a, token(timestamps[1], "s/k/-", f"MariaDB/0-2-5{others}"), UNKNOWN)
    replayed = token(timestamps[1], "s/k/80-", "MariaDB/0-9-1", (timestamps[1], "s/k/-", f"MariaDB/0-2-5{others}"))
    check(a, replayed, UNKNOWN)


def test_sequence_numbers_of_two_servers_that_contradict_the_clock_are_unknown() -> None:
    """A failover lost 0-1-100 to 0-1-105, and 0-2-100 replaced them: it is newer than 0-1-105.

    Without a failover between the two, the position decides.
    """
    lost, after = token(100, "s/k/-", "MariaDB/0-1-105"), token(101, "s/k/-", "MariaDB/0-2-100")
    check(lost, after, UNKNOWN)
    check(lost, replace(after, position="MariaDB/0-2-106"), OLDER)
    check(lost, replace(after, position="MariaDB/0-1-100"), NEWER)


def test_the_same_position_is_equal_whatever_the_clock_said() -> None:
    check(token(100, "s/k/-", f"MySQL56/{U}:1-5"), token(300, "s/k/-", f"MySQL56/{U}:1-5"), EQUAL)
    check(token(100, "s/k/-", "DynamoDB/5"), token(300, "s/k/-", "DynamoDB/5"), EQUAL)


def test_tokens_of_two_sources_are_unknown() -> None:
    """Rule 1: the source is the part before the first slash."""
    check(token(100, "a/k/-", "DynamoDB/5"), token(200, "b/k/-", "DynamoDB/6"), UNKNOWN)
    check(token(100, "a/x/-"), token(200, "a/y/-"), OLDER)
    check(token(100, "a"), token(200, "a/y/-"), OLDER)
    check(token(100, ""), token(200, "a/y/-"), UNKNOWN)


def test_positions_without_a_shard_are_not_compared() -> None:
    check(token(100, "", "MariaDB/0-1-5"), token(100, "", "MariaDB/0-1-6"), UNKNOWN)
    check(token(200, "", "MariaDB/0-1-5"), token(100, "", "MariaDB/0-1-6"), NEWER)
    check(token(200, "", "MariaDB/0-1-5"), token(100, "", "", (99, "", "MariaDB/0-1-6")), UNKNOWN)


@pytest.mark.parametrize(("position", "order"), [("0-1-4", OLDER), ("0-1-5", EQUAL), ("0-1-6", NEWER)])
@pytest.mark.parametrize("timestamps", [(100, 100), (100, 200), (200, 100)])
def test_the_origin_of_a_change_decides_across_shards(position: str, order: Order, timestamps: tuple[int, int]) -> None:
    """Rule 3: one token's origin is on the other's shard, or both origins are on one shard."""
    ours, theirs = timestamps
    source = token(ours, "s/k/-", f"MariaDB/{position}")
    replayed = token(theirs, "s/k/80-", "MariaDB/0-7-900", (99, "s/k/-", "MariaDB/0-1-5"))
    check(source, replayed, order)
    sibling = token(ours, "s/k/c0-", "MariaDB/0-8-1", (98, "s/k/-", f"MariaDB/{position}"))
    check(sibling, replayed, order)


@pytest.mark.parametrize("timestamps", [(100, 100), (100, 200), (200, 100)])
def test_an_origin_on_a_third_shard_decides_nothing(timestamps: tuple[int, int]) -> None:
    """Timestamps would be wrong where a reshard is replicated back (I5).

    S was split, and then its child T; both are replicated back. A write to U, the child of T, is replicated to T and
    on to S, where the relay, which does not know about U yet, reads it with an origin on T. Later the relay reads U
    from its start: older changes of the item, whose timestamps are raised to the last one of S.
    """
    ours, theirs = timestamps
    check(token(ours, "s/k/s", "", (9, "s/k/t", "MariaDB/0-1-5")), token(theirs, "s/k/u", "MariaDB/0-1-9"), UNKNOWN)
    check(
        token(ours, "s/k/s", "", (9, "s/k/t", "MariaDB/0-1-5")),
        token(theirs, "s/k/u", "", (9, "s/k/v", "MariaDB/0-1-9")),
        UNKNOWN,
    )


def test_tokens_of_two_readers_are_compared_by_position_only() -> None:
    a, b = token(100, "s/k/-", f"MySQL56/{U}:1-5"), token(200, "s/k/-", f"MySQL56/{U}:1-4:6")
    for x, y, order in (
        (a, b, UNKNOWN),
        (a, replace(b, position=f"MySQL56/{U}:1-4"), NEWER),
        (a, replace(b, shard="s/k/80-"), UNKNOWN),
        (a, replace(b, shard="s/k/80-", origin=OriginToken(9, "s/k/-", f"MySQL56/{U}:1-5")), EQUAL),
        (a, None, UNKNOWN),
    ):
        assert compare(x, y, positions_only=True) is order
        assert compare(y, x, positions_only=True) is MIRROR[order]
    with pytest.raises(ValueError, match="not both"):
        compare(a, b, positions_only=True, timestamp_first=True)


@pytest.mark.parametrize("position", [f"MySQL56/{U}:1-3", "MariaDB/0-1-5", "MySQL56/", "pos1"])
def test_an_origin_with_an_incomparable_position_decides_nothing(position: str) -> None:
    """Timestamps would be wrong here (I5).

    Transactions 2 and 4 change one item, 3 and 5 change others. Replicas that apply in parallel may commit the
    independent 3 at any time: the relay read 1, 2, 4, 5 of the source on one replica, the replication to the target
    read 1, 3, 2 on another. So the replay of 2 has the origin 1-3, which the relay has not fully read: it is not
    dropped, and its timestamp is raised to that of 5, past that of 4. By timestamps 2 would be newer than 4.
    """
    source = token(1_004, "s/k/-", f"MySQL56/{U}:1-2:4")
    check(source, token(1_005, "s/k/80-", f"MySQL56/{V}:1-9", (1_002, "s/k/-", position)), UNKNOWN)


def test_two_origins_that_contradict_each_other_are_unknown() -> None:
    a = token(100, "s/k/a", "MariaDB/0-1-9", (100, "s/k/b", "MariaDB/0-2-1"))
    b = token(200, "s/k/b", "MariaDB/0-2-9", (200, "s/k/a", "MariaDB/0-1-1"))
    check(a, b, UNKNOWN)
    check(a, replace(b, position="pos1"), NEWER)  # one comparison is enough if the other one is impossible


def test_timestamp_first_is_the_rule_of_vitess() -> None:
    """Vitess' "Update Stream" design, "Event Token": timestamps, then positions of one shard, else unknown."""
    old, new = "MariaDB/0-1-100", "MariaDB/0-1-200"
    check(token(200, "s/k/-", old), token(100, "s/k/-", new), NEWER, timestamp_first=True)
    check(token(100, "s/k/-", old), token(100, "s/k/-", new), OLDER, timestamp_first=True)
    check(token(100, "s/k/-", "MariaDB/0-1-5"), token(101, "s/k/-", "MariaDB/0-2-5"), OLDER, timestamp_first=True)
    check(token(100, "s/k/-", "MariaDB/0-1-5"), token(100, "s/k/-", "MariaDB/0-2-5"), UNKNOWN, timestamp_first=True)
    check(token(100, "s/k/-", "pos1"), token(100, "s/k/-", new), UNKNOWN, timestamp_first=True)
    check(token(100, "s/k/a", old), token(100, "s/k/b", "", (9, "s/k/a", new)), UNKNOWN, timestamp_first=True)
    check(token(0, "s/k/-", old), token(100, "s/k/-", new), UNKNOWN, timestamp_first=True)
    check(token(100, "a/k/-", old), token(200, "b/k/-", new), UNKNOWN, timestamp_first=True)
    check(None, token(100, "s/k/-", new), UNKNOWN, timestamp_first=True)


def test_a_token_is_json_with_its_keys_in_order_and_no_spaces() -> None:
    plain = token(100, "s/k/ß", "DynamoDB/5")
    assert plain.to_json() == '{"timestamp":100,"shard":"s/k/ß","position":"DynamoDB/5","origin":null}'
    replayed = replace(plain, origin=OriginToken(99, "s/k/-", "DynamoDB/4"))
    assert replayed.to_json() == (
        '{"timestamp":100,"shard":"s/k/ß","position":"DynamoDB/5",'
        '"origin":{"timestamp":99,"shard":"s/k/-","position":"DynamoDB/4"}}'
    )
    assert EventToken.from_json(replayed.to_json().encode()) == replayed
    assert OriginToken.from_json('{"position": "p", "shard": "s", "timestamp": 1}') == OriginToken(1, "s", "p")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        b"\xff",
        '{"timestamp":1,"shard":"s"}',
        '{"timestamp":1,"shard":"s","position":"p","orgin":null}',
        '{"timestamp":"1","shard":"s","position":"p"}',
        '{"timestamp":1.0,"shard":"s","position":"p"}',
        '{"timestamp":true,"shard":"s","position":"p"}',
        '{"timestamp":-1,"shard":"s","position":"p"}',
        '{"timestamp":9223372036854775808,"shard":"s","position":"p"}',
        '{"timestamp":99999999999999999999,"shard":"s","position":"p"}',
        '{"timestamp":1,"shard":null,"position":"p"}',
        '{"timestamp":1,"shard":"s","position":5}',
        '{"timestamp":1,"shard":"s","position":"p","origin":{}}',
        '{"timestamp":1,"shard":"s","position":"p","origin":{"timestamp":1,"shard":"s","position":"p","origin":null}}',
    ],
)
def test_a_malformed_token_is_refused(text: str | bytes) -> None:
    """I8."""
    with pytest.raises(ValueError, match=r"\w"):
        EventToken.from_json(text)


# Properties of tokens of every kind, sensible or not.

shards = st.sampled_from(["s/k/a", "s/k/b", "s/k/c", "t/k/a", ""])
timestamps = st.sampled_from([0, 1, 100, 101, 2**40])
numbers = st.integers(1, 4)
positions = st.one_of(
    st.lists(st.tuples(st.sampled_from([U, V]), numbers), min_size=1, max_size=4).map(
        lambda gtids: "MySQL56/" + ",".join(f"{uuid}:1-{last}" for uuid, last in gtids)
    ),
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2), numbers), min_size=1, max_size=3).map(
        lambda gtids: "MariaDB/" + ",".join("-".join(map(str, gtid)) for gtid in gtids)
    ),
    numbers.map(lambda number: f"DynamoDB/{number}"),
    st.sampled_from(["", "pos1", "MySQL56/", "DynamoDB/x"]),
)
origins = st.builds(OriginToken, timestamps, shards, positions)
tokens = st.builds(EventToken, timestamps, shards, positions, st.none() | origins)


@given(st.none() | tokens, st.none() | tokens, st.booleans())
def test_the_order_is_antisymmetric(a: EventToken | None, b: EventToken | None, timestamp_first: bool) -> None:
    check(a, b, compare(a, b, timestamp_first=timestamp_first), timestamp_first=timestamp_first)


@given(tokens, tokens)
def test_positions_only_drops_only_what_timestamps_decide(a: EventToken, b: EventToken) -> None:
    order = compare(a, b, positions_only=True)
    assert order in (compare(a, b), UNKNOWN)
    assert compare(b, a, positions_only=True) is MIRROR[order]


@given(tokens, tokens)
def test_equal_tokens_name_one_position_of_one_shard(a: EventToken, b: EventToken) -> None:
    if compare(a, b) is EQUAL:
        assert _named(a) & _named(b)


@given(tokens)
def test_a_token_with_a_time_a_shard_and_a_position_equals_itself(a: EventToken) -> None:
    known = a.timestamp > 0 and a.shard != "" and _named(replace(a, origin=None)) != set()
    assert a.origin is not None or compare(a, a) is (EQUAL if known else UNKNOWN)


@given(tokens)
def test_a_token_survives_its_json(a: EventToken) -> None:
    assert EventToken.from_json(a.to_json()) == a
    assert list(json.loads(a.to_json())) == ["timestamp", "shard", "position", "origin"]


def _named(a: EventToken) -> set[tuple[str, str]]:
    """Return the positions a token names, with their shards and in canonical form, without malformed ones."""
    named = {(a.shard, a.position)} | ({(a.origin.shard, a.origin.position)} if a.origin else set())
    canonical = set()
    for shard, position in named:
        if position.startswith("DynamoDB/") and position != "DynamoDB/x":
            canonical.add((shard, position))
        try:
            if gtids := parse(position):
                canonical.add((shard, gtids.position))
        except GtidError:
            continue
    return canonical


def test_long_positions_are_not_kept() -> None:
    """I11: the GTID sets of servers with a long history may have megabytes."""
    tracemalloc.start()
    try:
        for number in range(200):
            position = "no GTID set" + f"{number}" * 50_000
            token = EventToken(1000, "s/k/-", position)
            assert compare(token, EventToken(1001, "s/k/-", "MariaDB/0-1-1")) is Order.OLDER
        del position, token
        assert tracemalloc.get_traced_memory()[0] < 2 << 20
    finally:
        tracemalloc.stop()
