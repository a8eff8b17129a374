"""Key ranges and shard names: Vitess' own cases, and properties of any division of the key space."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relay.keyrange import KeyRange, overlapping, shard_range, shards_covering

FOUR = ["-40", "40-80", "80-c0", "c0-"]


def ranges(text: str) -> list[KeyRange]:
    return [KeyRange.parse(part) for part in text.split()]


@pytest.mark.parametrize(
    "text", ["-", "00-", "-80", "40-80", "80-", "a0-", "-A0", "0", "4000-8000", "00-80", "7fff-8000"]
)
def test_key_ranges_are_read(text: str) -> None:
    assert KeyRange.parse(text) == KeyRange.parse(text.lower())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "11",
        "-1",
        "-111",
        "1-2",
        "x-80",
        "-80x",
        "select",
        "+",
        "---",
        "40-80-c0",
        "00",
        "8 0-",
        " -80",
        "-80\n",
        "٤٠-",
    ],
)
def test_a_text_that_is_not_a_key_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a key range"):
        KeyRange.parse(text)


@pytest.mark.parametrize("text", ["80-80", "80-30", "80-8000", "8000-80", "c0-80", "-00", "00-00"])
def test_empty_key_ranges_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"{text} is empty"):
        KeyRange.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("0", "-"), ("00-", "-"), ("-8000", "-80"), ("80-C000", "80-c0"), ("1100220033-", "1100220033-")],
)
def test_zero_bytes_at_the_end_of_a_bound_are_ignored(text: str, canonical: str) -> None:
    assert str(KeyRange.parse(text)) == canonical
    assert KeyRange.parse(text) == KeyRange.parse(canonical)
    assert hash(KeyRange.parse(text)) == hash(KeyRange.parse(canonical))


@pytest.mark.parametrize(
    ("text", "keyspace_id", "inside"),
    [
        ("3000000000000000-", "3000000000000000", True),
        ("-3000000000000000", "3000000000000000", False),
        ("3000000000000000-", "4000000000000000", True),
        ("3000000000000000-", "2000000000000000", False),
        ("-", "", True),
        ("80-", "80", True),
        ("8000-", "80", True),
        ("-8000", "80", False),
        ("-80", "7fffffffffffffffff", True),
        ("80-", "", False),
        ("80-", "ffff", True),
        ("40-80", "4000", True),
    ],
)
def test_a_start_is_inside_and_an_end_is_not(text: str, keyspace_id: str, inside: bool) -> None:
    assert KeyRange.parse(text).contains(bytes.fromhex(keyspace_id)) is inside


@pytest.mark.parametrize(
    ("pair", "joined"),
    [
        ("-80 80-", "-"),
        ("80- -80", "-"),
        ("-40 40-80", "-80"),
        ("40-80 80-c0", "40-c0"),
        ("80-c0 40-80", "40-c0"),
        ("40-80 8000000000000000-c000000000000000", "40-c0"),
        ("80- -40", None),
        ("-40 80-", None),
        ("- -", None),
        ("-80 40-", None),
    ],
)
def test_ranges_that_adjoin_can_be_joined(pair: str, joined: str | None) -> None:
    a, b = ranges(pair)
    if joined is None:
        with pytest.raises(ValueError, match="do not adjoin"):
            a + b
    else:
        assert str(a + b) == joined


@pytest.mark.parametrize(
    ("pair", "adjoin"),
    [
        ("-40 40-80", True),
        ("40-80 -40", False),
        ("- -40", False),
        ("40-80 c0-", False),
        ("40-80 8000000000000000-c000000000000000", True),
        ("- -", False),
        ("80- -80", False),
    ],
)
def test_one_range_follows_another(pair: str, adjoin: bool) -> None:
    a, b = ranges(pair)
    assert a.adjoins(b) is adjoin


@pytest.mark.parametrize("pair", ["-80 80-", "80- -80", "40-80 c0-d0", "40-80 20-40", "4000-8000 20-40", "-8000 80-"])
def test_ranges_beside_each_other_do_not_intersect(pair: str) -> None:
    a, b = ranges(pair)
    assert not a.intersects(b)
    assert not b.intersects(a)


@pytest.mark.parametrize(
    "pair",
    [
        "- -",
        "- -80",
        "-80 -",
        "-8000 -80",
        "4000- 40-",
        "-80 40-80",
        "80- 8000-c000",
        "40-80 60-a0",
        "40-80 10-50",
        "40-80 50-60",
        "40-80 30-90",
    ],
)
def test_ranges_that_share_keyspace_ids_intersect(pair: str) -> None:
    a, b = ranges(pair)
    assert a.intersects(b)
    assert b.intersects(a)


@pytest.mark.parametrize(
    ("pair", "covers"),
    [
        ("- -", True),
        ("- 40-60", True),
        ("- 80-", True),
        ("40-60 4000-6000", True),
        ("40-80 40-50", True),
        ("40-80 7000-8000", True),
        ("40-80 5000-7000", True),
        ("-c0 -", False),
        ("80- -", False),
        ("40-60 50-", False),
        ("40-60 5000-", False),
        ("40-60 -50", False),
    ],
)
def test_one_range_covers_another(pair: str, covers: bool) -> None:
    a, b = ranges(pair)
    assert a.covers(b) is covers


@pytest.mark.parametrize(
    ("name", "canonical"), [("0", "-"), ("-", "-"), ("-80", "-80"), ("-A0", "-a0"), ("main", "-"), ("customer_1", "-")]
)
def test_a_shard_without_a_dash_in_its_name_is_the_whole_key_space(name: str, canonical: str) -> None:
    assert str(shard_range(name)) == canonical


@pytest.mark.parametrize("name", ["", "-8", "--", "80-40", "a/b", "x-80", "a b"])
def test_a_text_that_is_not_a_shard_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="shard"):
        shard_range(name)


@pytest.mark.parametrize(
    ("asked", "shards", "covering"),
    [
        ("-40", FOUR, ["-40"]),
        ("-80", FOUR, ["-40", "40-80"]),
        ("40-c0", FOUR, ["40-80", "80-c0"]),
        ("-", FOUR, FOUR),
        ("-", FOUR[::-1], FOUR),
        ("-8000", FOUR, ["-40", "40-80"]),
        ("-80", ["8000-", "-8000"], ["-8000"]),
        ("0", ["0"], ["0"]),
        ("-", ["main"], ["main"]),
        ("00-", ["-"], ["-"]),
        ("-80", ["-80", "80-c0", "80-"], ["-80"]),  # shards that overlap elsewhere do not matter
    ],
)
def test_whole_shards_cover_a_key_range(asked: str, shards: list[str], covering: list[str]) -> None:
    """Vitess' "Update Stream" design, "Vtgate Changes": only key ranges that exactly match one or more shards."""
    assert shards_covering(KeyRange.parse(asked), shards) == covering


@pytest.mark.parametrize(
    ("asked", "shards", "message"),
    [
        ("60-a0", FOUR, r"only a part of 40-80 and 80-c0.*; use 40-c0 \(shards: -40, 40-80, 80-c0, c0-\)"),
        ("-60", FOUR, r"only a part of 40-80.*; use -80 or -40"),
        ("-60", ["0"], r"only a part of 0.*; use - \(shards: 0\)"),
        ("-", FOUR[1:], r"no shard holds -40; use 40- "),
        ("-", ["-40", "80-c0"], r"no shard holds 40-80 or c0-; use -40 or 80-c0"),
        ("-", [], r"no shard holds - \(shards: none\)"),
        ("-80", ["80-"], r"no shard holds -80 \(shards: 80-\)"),
        ("-", ["-80", "-40", "40-80", "80-"], "shards -40 and -80 overlap"),
        ("-", ["-", "0"], "shards - and 0 overlap"),
        ("-", ["-80", "8", "80-"], "shards -80 and 8 overlap"),
        ("-", ["-80", "80-8"], "shard 80-8: '80-8' is not a key range"),
    ],
)
def test_a_key_range_that_does_not_match_complete_shards_is_refused_with_alternatives(
    asked: str, shards: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        shards_covering(KeyRange.parse(asked), shards)


def test_overlapping_shards_are_the_shards_that_a_reshard_moves_rows_between() -> None:
    both = ["-40", "40-80", "-80", "80-"]
    assert overlapping("-80", both) == ["-40", "40-80"]
    assert overlapping("40-80", both) == ["-80"]
    assert overlapping("80-", both) == []
    assert overlapping("0", both) == ["-40", "-80", "40-80", "80-"]
    assert overlapping("40-80", ["4000-6000", "60-80", "-"]) == ["-", "4000-6000", "60-80"]


# Properties of any division of the key space. Bounds have one to three bytes, so some need padding.

bounds = st.binary(min_size=1, max_size=3)
divisions = st.lists(bounds, max_size=8).map(lambda found: sorted({bound.rstrip(b"\0") for bound in found} - {b""}))


@st.composite
def shard_lists(draw: st.DrawFn) -> tuple[list[bytes], list[str]]:
    """The edges of a division, and the names of its shards in any order, bounds padded with zero bytes."""
    edges = draw(divisions)
    padded = [(edge + b"\0" * draw(st.integers(0, 2))).hex() for edge in edges]
    names = [f"{start}-{end}" for start, end in zip(["", *padded], [*padded, ""], strict=True)]
    return edges, draw(st.permutations(names))


@given(shard_lists(), st.binary(max_size=9))
def test_every_keyspace_id_is_in_exactly_one_shard(division: tuple[list[bytes], list[str]], keyspace_id: bytes) -> None:
    _, names = division
    assert sum(shard_range(name).contains(keyspace_id) for name in names) == 1
    assert not any(overlapping(name, names) for name in names)


@given(shard_lists(), st.binary(max_size=3), st.binary(max_size=3), st.data())
def test_a_key_range_is_covered_only_if_its_bounds_are_bounds_of_shards(
    division: tuple[list[bytes], list[str]], start: bytes, end: bytes, data: st.DataObject
) -> None:
    edges, names = division
    if data.draw(st.booleans()):
        start = data.draw(st.sampled_from([b"", *edges]))
    if data.draw(st.booleans()):
        end = data.draw(st.sampled_from([b"", *edges]))
    assume(not end or start.rstrip(b"\0") < end.rstrip(b"\0"))
    asked = KeyRange(start, end)
    if {asked.start, asked.end} <= {b"", *edges}:
        covering = shards_covering(asked, names)
        found = [shard_range(name) for name in covering]
        assert sum(found[1:], start=found[0]) == asked
        assert set(covering) == {name for name in names if asked.intersects(shard_range(name))}
    else:
        with pytest.raises(ValueError, match="only a part of"):
            shards_covering(asked, names)


@given(shard_lists(), st.data())
def test_no_key_range_is_covered_with_a_shard_missing_or_doubled(
    division: tuple[list[bytes], list[str]], data: st.DataObject
) -> None:
    _, names = division
    one = data.draw(st.sampled_from(names))
    with pytest.raises(ValueError, match="no shard holds"):
        shards_covering(KeyRange(), [name for name in names if name != one])
    with pytest.raises(ValueError, match="overlap"):
        shards_covering(KeyRange(), [*names, "0"])


spans = st.lists(
    bounds.filter(lambda bound: bound.strip(b"\0")), min_size=2, max_size=2, unique_by=lambda b: b.rstrip(b"\0")
)


@given(spans, spans, st.binary(max_size=4))
def test_ranges_agree_with_the_keyspace_ids_in_them(a: list[bytes], b: list[bytes], keyspace_id: bytes) -> None:
    x, y = KeyRange(*sorted(a)), KeyRange(*sorted(b))
    assert KeyRange.parse(str(x)) == x
    assert x.intersects(y) is (x.contains(y.start) or y.contains(x.start))
    if x.covers(y):
        assert x.intersects(y)
        assert x.contains(keyspace_id) or not y.contains(keyspace_id)
