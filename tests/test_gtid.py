"""GTID sets: the test vectors of other implementations, and the laws of set algebra."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.gtid import GtidError, GtidSet, parse

A = "00010203-0405-0607-0809-0a0b0c0d0e0f"
B = "00010203-0405-0607-0809-0a0b0c0d0eff"
A16 = "00010203-0405-0607-0809-0a0b0c0d0e10"
A17 = "00010203-0405-0607-0809-0a0b0c0d0e11"
H = "16b1039f-22b6-11ed-b765-0a43f95f28a3"

S1 = f"{A}:20-30:35-40,{A16}:1-5:50"
S2 = f"{A}:20-30:35-40,{A16}:1-5:50:60-70"
S3 = f"{A}:20-30:35-40:42-45,{A16}:1-5:50:60-70"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (f"{A}:1-5", f"{A}:1-5"),
        (f"{A.upper()}:1-5", f"{A}:1-5"),
        (f"{A}:12", f"{A}:12"),
        (f"{A}:1-5:10-20", f"{A}:1-5:10-20"),
        (f"{A}:10-20:1-5", f"{A}:1-5:10-20"),
        (f"{A}:8-7", ""),
        (f"{A}:1-5:8-7:10-20", f"{A}:1-5:10-20"),
        (f"{A}:1-5,{A}:10-20", f"{A}:1-5:10-20"),
        (f"{A}:10-20,{A}:1-5", f"{A}:1-5:10-20"),
        (f"{A}:1-5:10-20,{B}:1-5:50", f"{A}:1-5:10-20,{B}:1-5:50"),
        (f"{A}:1-5:10-20, {B}:1-5:50", f"{A}:1-5:10-20,{B}:1-5:50"),
        pytest.param(f"{B}:1-5,{A}:7", f"{A}:7,{B}:1-5", id="servers are sorted"),
        # Implementations that keep these apart do not find that 1-6 is contained.
        pytest.param(f"{A}:1-3:4-6", f"{A}:1-6", id="adjacent runs become one"),
        pytest.param(f"{A}:1-9:4-6:8-12", f"{A}:1-12", id="overlapping runs become one"),
        pytest.param(f"{A}:7-9:1-5,{A}:6", f"{A}:1-9", id="a gap is closed from elsewhere"),
        pytest.param(f" {A}:1,\n{B}:2,\n", f"{A}:1,{B}:2", id="line breaks as servers print them"),
    ],
)
def test_mysql_sets_are_read_into_their_canonical_text(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(text).position == f"MySQL56/{canonical}"
    assert parse(f"MySQL56/{text}") == parse(text) == parse(canonical)


@pytest.mark.parametrize(
    "text",
    [
        A,
        "00010203-0405-060X-0809-0a0b0c0d0e0f:1-5",
        f"{A}:0-5",
        f"{A}:-5",
        f"{A}:1-2-3",
        f"{A}:1-",
        pytest.param("123:1", id="short"),
        pytest.param("x:1", id="text"),
        pytest.param("00010203-0405-0607-0809-0a0b0c0d0e0x:1", id="digit"),
        pytest.param("00010203-0405-0607-080900A0B0C0D0E0F:1", id="dashes"),
        "foo/0-1-5",
        "FilePos/mysql-bin.000001:4",
        pytest.param("/0-1-5", id="no flavour before the slash"),
        pytest.param("DynamoDB/5", id="not a set at all"),
        pytest.param(f"MariaDB/{A}:1-5", id="one flavour under the other's name"),
        pytest.param("MySQL56/0-1-5", id="the other way round"),
        pytest.param(f"{A}:", id="nothing after the colon"),
        pytest.param(f"{A}:1_0", id="digits as only Python takes them"),
        pytest.param(f"{A}:٣", id="digits of another script"),
        pytest.param(f"{A}:9223372036854775807", id="past the last number"),
        pytest.param(f"{A}:{'9' * 5000}", id="more digits than an int takes"),
        pytest.param(f"{A}:tag:1-5", id="tagged"),
        "12345",
        "1x-33-142",
        "1-2c3-142",
        "1-33-a142",
        "12-34-5678,11-22-33e33",
        pytest.param("0-1-5,", id="an empty member"),
        pytest.param("4294967296-1-5", id="a domain past 32 bits"),
        pytest.param("0-4294967296-5", id="a server past 32 bits"),
        pytest.param("0-1-18446744073709551616", id="a sequence past 64 bits"),
        pytest.param("pos1", id="a made-up position"),
    ],
)
def test_bad_texts_are_refused_with_a_short_reason(text: str) -> None:
    with pytest.raises(GtidError, match=r"\w") as caught:
        parse(text)
    assert len(str(caught.value)) < 250


def test_a_mysql_set_knows_the_gtids_it_contains() -> None:
    gtids = {A: (1, 19, 20, 23, 30, 31), A16: (1, 10, 50, 51), A17: (1,)}
    contained = {
        f"{server}:{n}" for server in gtids for n in gtids[server] if parse(S1).contains(parse(f"{server}:{n}"))
    }
    assert contained == {f"{A}:20", f"{A}:23", f"{A}:30", f"{A16}:1", f"{A16}:50"}
    assert not parse(S1).contains(parse("0-1-1"))


@pytest.mark.parametrize(
    ("other", "contained"),
    [
        (S2, True),
        ("", True),
        (f"{A}:25-30", True),
        (f"{A16}:1-2:4-5:60-70", True),
        (f"{A}:25-30:35-37,{A16}:1-5", True),
        (f"{A}:25-31", False),
        (f"{A}:19-20", False),
        (f"{A}:30-35", False),
        (f"{A}:20-30:35-40:50", False),
        (f"{A17}:1", False),
    ],
)
def test_a_mysql_set_knows_the_sets_it_contains(other: str, contained: bool) -> None:
    assert parse(S2).contains(parse(other)) is contained


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        (S2, True),
        ("0-1-1", False),
        ("", False),
        (f"{A}:20-31:35-40,{A16}:1-5:50:60-70", False),
        (f"{A}:20-30:32-33:35-40,{A16}:1-5:50:60-70", False),
        (f"{A}:20-30:35-40,{A16}:1-5:60-70", False),
        (f"{A}:20-30:35-40,{A17}:1-5:50:60-70", False),
        (f"{S2},{A17}:1-5", False),
        (f"{A}:20-30:35-40", False),
    ],
)
def test_equality_is_symmetric_and_exact(other: str, equal: bool) -> None:
    assert (parse(S2) == parse(other)) is equal
    assert (parse(other) == parse(S2)) is equal
    assert (len({parse(S2), parse(other)}) == 1) is equal


@pytest.mark.parametrize(
    ("gtid", "united"),
    [
        (f"{A}:20", S3),
        (f"{A}:30", S3),
        (f"{A}:25", S3),
        (f"{A}:1", f"{A}:1:20-30:35-40:42-45,{A16}:1-5:50:60-70"),
        (f"{A}:32", f"{A}:20-30:32:35-40:42-45,{A16}:1-5:50:60-70"),
        (f"{A}:50", f"{A}:20-30:35-40:42-45:50,{A16}:1-5:50:60-70"),
        (f"{A16}:49", f"{A}:20-30:35-40:42-45,{A16}:1-5:49-50:60-70"),
        (f"{A16}:51", f"{A}:20-30:35-40:42-45,{A16}:1-5:50-51:60-70"),
        (f"{A}:41", f"{A}:20-30:35-45,{A16}:1-5:50:60-70"),
        (f"{A17}:1", f"{S3},{A17}:1"),
    ],
)
def test_a_single_gtid_is_added_without_changing_the_set(gtid: str, united: str) -> None:
    before = parse(S3)
    assert str(before | parse(gtid)) == united
    assert str(before) == S3


def test_a_union_joins_ranges_that_overlap_or_adjoin() -> None:
    one = parse(f"{A}:20-30:35-40:42-45,{A16}:1-5:20-50:60-70")
    other = parse(f"{A}:20-31:35-37:41-46,{A16}:3-6:22-49:67-72,{A17}:1-45")
    assert str(one | other) == f"{A}:20-31:35-46,{A16}:1-6:20-50:60-72,{A17}:1-45"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("", ""),
        ("MariaDB/", ""),
        (f"{A}:1-5", f"{A}:5"),
        (f"{A}:1-5:10-20", f"{A}:20"),
        (f"{A}:1-5:10-20,{B}:1-5:50", f"{B}:50"),
        ("12-34-5678,11-22-3333,24-52-4523", "24-52-4523"),
    ],
)
def test_the_last_gtid_is_last_in_canonical_order(text: str, last: str) -> None:
    assert parse(text).last == last


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (f"{A}:12", 1),
        (f"{A}:1-5", 5),
        (f"{A}:1-5:11-20", 15),
        (f"{A}:1-5:10-20,{B}:1-5:50", 22),
        ("MariaDB/", 0),
        ("1-2-30,4-5-6", 36),
    ],
)
def test_the_count_is_the_number_of_transactions_in_a_set(text: str, count: int) -> None:
    assert parse(text).count == count


def test_a_flavour_in_front_changes_nothing() -> None:
    assert parse(f"MySQL56/{H}:1-615") == parse(f"{H}:1-615")
    assert parse("MariaDB/0-1-5") == parse("0-1-5")
    assert not parse("")
    assert parse("").position == "MySQL56/"
    assert parse("MariaDB/").position == "MariaDB/"
    assert parse("MariaDB/") != parse("")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("12-345-6789", "12-345-6789"),
        ("12-34-5678,11-22-3333", "11-22-3333,12-34-5678"),
        ("5-4727-1737373,1-1234-5678, 3-4321-9876", "1-1234-5678,3-4321-9876,5-4727-1737373"),
        pytest.param("10-1-1,9-1-1", "9-1-1,10-1-1", id="domains are numbers"),
        ("1-23-9,1-321-10", "1-321-10"),
        pytest.param("1-321-10,1-23-9,0-5-1", "0-5-1,1-321-10", id="any order"),
    ],
)
def test_mariadb_sets_hold_one_gtid_per_domain(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(f"MariaDB/{text}") == parse(text)


@pytest.mark.parametrize(
    ("text", "other", "contained"),
    [
        ("5-4727-300", "5-4727-700", False),
        ("5-4727-9000", "5-5555-100", True),
        ("1-4321-100,5-4727-1234", "1-4321-100,5-4727-1234", True),
        ("4-1-123", "4-1-122,5-4-24602", False),
        pytest.param("1-2-123", "MariaDB/", True, id="empty"),
        pytest.param("1-2-123", "", True, id="empty, of no flavour"),
        pytest.param("1-2-123", f"{A}:1", False, id="other flavour"),
        pytest.param("0-1-5", "0-2-5", True, id="both ways: compare makes UNKNOWN of it"),
        pytest.param("0-2-5", "0-1-5", True, id="the other way"),
    ],
)
def test_a_mariadb_set_contains_by_domain_and_sequence_alone(text: str, other: str, contained: bool) -> None:
    assert parse(text).contains(parse(other)) is contained


@pytest.mark.parametrize(
    ("text", "other", "united"),
    [
        pytest.param("3-5555-1234", "3-5555-1234", "3-5555-1234", id="same"),
        pytest.param("3-5555-5234", "3-5555-1234", "3-5555-5234", id="older"),
        pytest.param("3-5555-1234", "3-5555-5234", "3-5555-5234", id="newer"),
        pytest.param("3-5555-1234", "3-4444-5234", "3-4444-5234", id="other server"),
        pytest.param("3-5555-1234", "5-5555-5234", "3-5555-1234,5-5555-5234", id="other domain"),
        ("3-1-1,4-1-2,5-1-3", "3-1-2,4-1-1,5-1-4", "3-1-2,4-1-2,5-1-4"),
    ],
)
def test_a_mariadb_union_keeps_the_newest_of_each_domain(text: str, other: str, united: str) -> None:
    assert str(parse(text) | parse(other)) == united
    assert str(parse(other) | parse(text)) == united


def test_a_mariadb_difference_keeps_what_is_later_than_in_the_other_set() -> None:
    assert str(parse("1-2-9,2-1-5,3-1-1") - parse("1-2-5,2-1-7")) == "1-2-9,3-1-1"
    assert not parse("1-2-9") - parse("1-7-9")


def test_sets_of_two_flavours_do_not_mix_unless_one_is_empty() -> None:
    """I8: nothing is dropped or merged silently."""
    mysql, mariadb = parse(f"{A}:1-5"), parse("0-1-5")
    with pytest.raises(GtidError, match="cannot join"):
        mysql | mariadb
    with pytest.raises(GtidError, match="subtract"):
        mariadb - mysql
    assert parse("") | mariadb == mariadb | parse("") == mariadb
    assert mysql - parse("MariaDB/") == mysql
    assert parse("") | parse("MariaDB/") == parse("MariaDB/") | parse("")


def test_a_set_with_very_many_runs_is_handled_in_linear_time() -> None:
    """In quadratic time this would run for many minutes."""
    odd = parse(f"{A}:" + ":".join(map(str, range(1, 100_001, 2))))
    even = parse(f"{A}:" + ":".join(map(str, range(2, 100_001, 2))))
    assert (odd | even) == parse(f"{A}:1-100000")
    assert (odd | even).contains(odd)
    assert not odd.contains(even)
    assert (odd | even) - odd == even
    assert odd - even == odd


# Laws. MySQL sets are checked against plain sets of (server, number).

Numbers = frozenset[tuple[str, int]]
runs = st.tuples(st.sampled_from([A, B, H]), st.integers(1, 30), st.integers(0, 6))


@st.composite
def written(draw: st.DrawFn) -> tuple[str, Numbers]:
    """A MySQL set in any of its spellings, and the transactions in it."""
    chosen = draw(st.lists(runs, max_size=8))
    members = [
        f"{draw(st.sampled_from(['', ' ']))}{draw(st.sampled_from([uuid, uuid.upper()]))}"
        + (f":{first}-{first + more}" if more or draw(st.booleans()) else f":{first}")
        for uuid, first, more in chosen
    ]
    numbers = frozenset((uuid, first + n) for uuid, first, more in chosen for n in range(more + 1))
    return draw(st.sampled_from(["", "MySQL56/"])) + ",".join(members), numbers


@given(written(), written())
def test_mysql_sets_behave_as_sets_of_transactions(one: tuple[str, Numbers], other: tuple[str, Numbers]) -> None:
    (a, in_a), (b, in_b) = (parse(one[0]), one[1]), (parse(other[0]), other[1])
    assert a.contains(b) is (in_a >= in_b)
    assert (a == b) is (in_a == in_b)
    assert ((a | b).count, (a - b).count) == (len(in_a | in_b), len(in_a - in_b))
    assert a | b == _of(in_a | in_b)
    assert a - b == _of(in_a - in_b)
    assert bool(a) is bool(in_a)


def _of(numbers: Numbers) -> GtidSet:
    return parse(",".join(f"{server}:{number}" for server, number in numbers))


mysql_sets = written().map(lambda pair: parse(pair[0]))
mariadb_sets = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 9)), max_size=5).map(
    lambda gtids: parse("MariaDB/" + ",".join("-".join(map(str, gtid)) for gtid in gtids))
)


def same_flavour(size: int) -> st.SearchStrategy[tuple[GtidSet, ...]]:
    return st.one_of(st.tuples(*[mysql_sets] * size), st.tuples(*[mariadb_sets] * size))


@given(same_flavour(3))
def test_union_is_commutative_associative_and_idempotent(sets: tuple[GtidSet, ...]) -> None:
    a, b, c = sets
    assert a | b == b | a
    assert (a | b) | c == a | (b | c)
    assert a | a == a
    assert hash(a | b) == hash(b | a)


@given(same_flavour(2))
def test_difference_is_what_a_union_would_add(sets: tuple[GtidSet, ...]) -> None:
    a, b = sets
    assert (a - b) | b == a | b or a.diverges(b)  # at one number of two servers the union keeps either
    assert bool(a - b) is not b.contains(a)
    assert a.contains(a - b)
    assert not a - a


@given(same_flavour(3))
def test_containment_is_a_partial_order_with_unions_above(sets: tuple[GtidSet, ...]) -> None:
    a, b, c = sets
    assert a.contains(a)
    assert (a | b).contains(a)
    assert not (a.contains(b) and b.contains(c)) or a.contains(c)
    assert (a.contains(b) and b.contains(a) and a.same_servers(b)) is (a == b)
    assert a.diverges(b) is b.diverges(a)
    assert a.same_servers(b) is b.same_servers(a)


@given(same_flavour(2))
def test_counts_add_up(sets: tuple[GtidSet, ...]) -> None:
    a, b = sets
    common = sum((a.count, b.count)) - (a | b).count
    assert 0 <= common <= min(a.count, b.count)
    assert (common == a.count) is b.contains(a)


@given(st.one_of(mysql_sets, mariadb_sets))
def test_a_set_is_read_back_from_its_text(gtids: GtidSet) -> None:
    assert parse(gtids.position) == gtids
    assert parse(gtids.position).position == gtids.position
    if gtids:
        assert parse(str(gtids)) == gtids
        assert gtids.contains(parse(gtids.last))
    assert hash(parse(gtids.position)) == hash(gtids)


@given(st.text(max_size=60))
def test_any_text_is_a_set_or_an_error(text: str) -> None:
    try:
        gtids = parse(text)
    except GtidError:
        return
    assert parse(gtids.position) == gtids
