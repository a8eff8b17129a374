"""Values of columns as DynamoDB has them, and back: exactly, or not at all (I8)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.dynamodb.models import Attribute, InvalidValue, Model, Seconds, hash_key, stored_as
from relay.dynamodb.models.conditions import Placeholders
from relay.dynamodb.models.declaration import declaration_of
from relay.dynamodb.models.types import resolve

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAME = TEXT.filter(bool)
DECIMALS = st.builds(
    lambda digits, exponent: Decimal(digits).scaleb(exponent),
    st.integers(-(10**37), 10**37).map(lambda n: Decimal(n)),
    st.integers(-60, 60),
).filter(lambda value: value == +value)
FLOATS = st.floats(1e-120, 1e120) | st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-120)
INTEGERS = st.integers(-(10**38) + 1, 10**38 - 1)
TIMES = st.datetimes(
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]),
)


@dataclass
class Part:
    name: str
    sizes: set[int]
    weight: Decimal | None = None
    inner: list[Any] = field(default_factory=list)


@dataclass
class Defaults:
    """Its fields have defaults of every kind, and one is made by the class itself."""

    part: Part
    parts: list[Part] = field(default_factory=lambda: [Part("made", {1})])
    code: str | None = "none"
    rank: int = field(default=5, kw_only=True)
    label: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.label = f"{self.part.name}-{self.rank}"


@dataclass(frozen=True)
class Euro:
    amount: Decimal


Money = Annotated[Euro, stored_as(Decimal, dump=lambda euro: euro.amount, load=Euro)]

ANYTHING = st.recursive(
    st.none() | st.booleans() | TEXT | DECIMALS | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3),
    max_leaves=8,
)

CASES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, TEXT),
    (int, INTEGERS),
    (Decimal, DECIMALS),
    (float, FLOATS),
    (bool, st.booleans()),
    (bytes, st.binary(max_size=8)),
    (datetime, TIMES),
    (Seconds, TIMES.map(lambda time: time.replace(microsecond=0))),
    (UUID, st.uuids()),
    (set[str], st.sets(TEXT, min_size=1, max_size=4)),
    (set[int], st.sets(INTEGERS, min_size=1, max_size=4)),
    (frozenset[Decimal], st.frozensets(DECIMALS, min_size=1, max_size=4)),
    (set[bytes], st.sets(st.binary(max_size=4), min_size=1, max_size=4)),
    (set[UUID], st.sets(st.uuids(), min_size=1, max_size=4)),
    (set[datetime], st.sets(TIMES, min_size=1, max_size=4)),
    (list[int], st.lists(INTEGERS, max_size=4)),
    (list[str | None], st.lists(st.none() | TEXT, max_size=4)),
    (dict[str, list[bool]], st.dictionaries(NAME, st.lists(st.booleans(), max_size=2), max_size=3)),
    (dict[str, Decimal | None], st.dictionaries(NAME, st.none() | DECIMALS, max_size=3)),
    (Money, DECIMALS.map(Euro)),
    (list[Money], st.lists(DECIMALS.map(Euro), max_size=3)),
    (Part, st.builds(Part, TEXT, st.sets(INTEGERS, max_size=3), st.none() | DECIMALS, st.lists(ANYTHING, max_size=2))),
    (
        Defaults,
        st.builds(
            Defaults,
            st.builds(Part, TEXT, st.just({1}), st.none(), st.just([])),
            st.lists(st.builds(Part, TEXT, st.sets(INTEGERS, max_size=3)), max_size=2),
            st.none() | TEXT,
            rank=INTEGERS,
        ),
    ),
    (Any, ANYTHING),
    (dict[str, Any], st.dictionaries(NAME, ANYTHING, max_size=3)),
]


@pytest.mark.parametrize(("annotation", "values"), CASES, ids=[str(annotation)[:40] for annotation, _ in CASES])
def test_a_value_that_is_dumped_is_loaded_as_the_same_value(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    """I8"""
    kind, _ = resolve(annotation)

    @given(values)
    def round_trip(value: Any) -> None:
        wire = kind.dump(value)
        assert wire is not None
        assert len(wire) == 1
        assert kind.kind in (None, *wire)
        loaded = kind.load(wire)
        assert loaded == value
        assert type(loaded) is type(value)

    round_trip()


@given(st.lists(TIMES, min_size=2, max_size=5))
def test_times_as_text_sort_like_times(times: list[datetime]) -> None:
    kind, _ = resolve(datetime)
    assert sorted(times) == [kind.load({"S": text}) for text in sorted((kind.dump(time) or {})["S"] for time in times)]


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (str, 5, r"'5' \(int\) is not a str"),
        (str, "\ud800", "surrogates not allowed"),
        (int, True, r"'True' \(bool\) is not an int"),
        (int, 1.0, "is not an int"),
        (int, 10**38 + 1, "exceeds the 38 digits"),
        (Decimal, 1, r"'1' \(int\) is not a Decimal"),
        (Decimal, Decimal("NaN"), "NaN is not a number that DynamoDB can store"),
        (Decimal, Decimal("1." + "1" * 38), "exceeds the 38 digits"),
        (Decimal, Decimal("1E+126"), "or the range"),
        (Decimal, Decimal("1E-131"), "or the range"),
        (Decimal, Decimal("1E+999999"), "outside the range"),
        (float, 1, "is not a float"),
        (float, math.inf, "inf is not a number"),
        (float, 1e300, "or the range"),
        (bool, 1, "is not a bool"),
        (bytes, "a", "is not bytes"),
        (datetime, "2026", "is not a datetime"),
        (datetime, datetime(2026, 1, 1), "has no time zone"),
        (Seconds, datetime(2026, 1, 1, microsecond=5, tzinfo=UTC), "is not a whole second"),
        (UUID, "a", "is not a UUID"),
        (set[str], ["a"], "is not a set"),
        (set[str], {1}, "is not a str"),
        (list[str], ("a",), "is not a list"),
        (list[str], [None], "is not a str"),
        (list[set[str]], [set()], "the value at 0 would be stored as no attribute"),
        (dict[str, int], {1: 1}, "is not a non-empty str, as a name in a map must be"),
        (dict[str, int], {"": 1}, "is not a non-empty str"),
        (Any, [{"": 1}], "is not a non-empty str"),
        (Part, {"name": "a"}, "is not a Part"),
        (Part, Part("a", {1}, weight=1), "is not a Decimal"),  # type: ignore[arg-type]
        (Any, object(), "is not a DynamoDB value"),
        (Any, {1, "a"}, "is not a DynamoDB value"),
        (Any, datetime(2026, 1, 1, tzinfo=UTC), "is not a DynamoDB value"),
        (Any, UUID(int=1), "is not a DynamoDB value"),
        (Any, {UUID(int=1)}, "is not a DynamoDB value"),
        (Any, [math.nan], "nan is not a number"),
    ],
)
def test_what_a_type_cannot_hold_exactly_is_refused(annotation: Any, value: Any, message: str) -> None:
    """I8"""
    kind, _ = resolve(annotation)
    with pytest.raises((TypeError, ValueError), match=message):
        kind.dump(value)


@pytest.mark.parametrize(
    ("annotation", "wire"),
    [
        (str, {"N": "1"}),
        (int, {"N": "1.5"}),
        (int, {"S": "1"}),
        (float, {"N": "0.1234567890123456789"}),
        (datetime, {"S": "2026-01-01T00:00:00"}),
        (datetime, {"S": "today"}),
        (Seconds, {"N": "1.5"}),
        (UUID, {"S": "a"}),
        (set[str], {"L": [{"S": "a"}]}),
        (list[int], {"L": [{"S": "a"}]}),
        (Part, {"M": {"sizes": {"NS": ["1"]}}}),
        (Part, {"M": {"name": {"NULL": True}}}),
        (dict[str, Part], {"M": {"a": {"M": {}}}}),
        (Part, {"M": {"name": {"S": "a"}, "color": {"S": "red"}}}),
    ],
)
def test_what_is_not_of_the_type_is_not_loaded(annotation: Any, wire: Any) -> None:
    """I8"""
    kind, _ = resolve(annotation)
    with pytest.raises((KeyError, TypeError, ValueError)):
        kind.load(wire)


def test_an_empty_set_is_stored_as_no_attribute() -> None:
    kind, _ = resolve(set[str])
    assert kind.dump(set()) is None
    assert resolve(Any)[0].dump(set()) is None
    part, _ = resolve(Part)
    assert part.dump(Part("a", set())) == {"M": {"name": {"S": "a"}, "inner": {"L": []}}}


def test_a_type_of_ones_own_may_store_no_attribute() -> None:
    kind = stored_as(str, dump=lambda value: value or None, load=str)
    assert (kind.dump(""), kind.dump("a")) == (None, {"S": "a"})


def test_numbers_are_stored_in_canonical_form() -> None:
    kind, _ = resolve(Decimal)
    assert [kind.dump(Decimal(text)) for text in ("1.50", "-0", "1E+3", "0E-500")] == [
        {"N": "1.5"},
        {"N": "0"},
        {"N": "1000"},
        {"N": "0"},
    ]


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        ("", {"S": ""}),
        (b"", {"B": b""}),
        (7, {"N": "7"}),
        (1.5, {"N": "1.5"}),
        (Decimal("1.50"), {"N": "1.5"}),
        (True, {"BOOL": True}),
        (None, {"NULL": True}),
        ([], {"L": []}),
        ({}, {"M": {}}),
        ({"a", ""}, {"SS": ["", "a"]}),
        ({b"a", b""}, {"BS": [b"", b"a"]}),
        ({2, 1.5, Decimal(10)}, {"NS": ["1.5", "10", "2"]}),
        ([True, {"a": {b"1"}}, None], {"L": [{"BOOL": True}, {"M": {"a": {"BS": [b"1"]}}}, {"NULL": True}]}),
    ],
)
def test_any_value_has_the_type_of_dynamodb_that_fits_it(value: Any, wire: Any) -> None:
    kind, _ = resolve(Any)
    assert kind.dump(value) == wire
    assert kind.load(wire) == value


@pytest.mark.parametrize("wire", [{}, {"S": "a", "N": "1"}, {"s": "a"}, {"X": "a"}, "a", {"L": [{"s": "a"}]}])
def test_what_is_not_a_value_of_one_type_is_not_loaded_as_any(wire: Any) -> None:
    """I8"""
    kind, _ = resolve(Any)
    with pytest.raises((ValueError, TypeError)):
        kind.load(wire)


def test_an_entry_that_another_application_left_out_has_the_default_of_its_field() -> None:
    kind, _ = resolve(Defaults)
    loaded = kind.load({"M": {"part": {"M": {"name": {"S": "a"}}}, "code": {"NULL": True}}})
    assert loaded == Defaults(Part("a", set()), code=None)
    assert loaded.parts is not kind.load({"M": {"part": {"M": {"name": {"S": "a"}}}}}).parts
    # What is optional is None where it is absent: that is how None is stored.
    assert kind.load(kind.dump(Defaults(Part("a", set()), code=None)) or {}).code is None


def test_a_set_is_stored_without_what_is_not_an_attribute_and_without_doubles() -> None:
    """DynamoDB refuses a set that is empty, or has an element twice."""
    trimmed = Annotated[str, stored_as(str, dump=lambda text: text.strip() or None, load=str)]
    kind, _ = resolve(set[trimmed])
    assert kind.dump({" a", "a ", " "}) == {"SS": ["a"]}
    assert kind.dump({" ", ""}) is None


class Ledger(Model):
    """Values that go wrong where they are dumped or loaded, beside being of another type."""

    id: Attribute[str] = hash_key()
    at: Attribute[datetime]
    until: Attribute[Seconds]
    price: Attribute[Money]
    ratio: Attribute[Annotated[int, stored_as(Decimal, dump=lambda n: 1 / Decimal(n), load=lambda d: int(1 / d))]]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (Ledger.at, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
        (Ledger.at, datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-3)))),
        (Ledger.price, "9.50"),
        (Ledger.ratio, 0),
    ],
)
def test_a_value_that_cannot_be_dumped_is_refused_with_its_column(column: Any, value: Any) -> None:
    """I8"""
    with pytest.raises(InvalidValue, match=rf"Ledger\.{column.name}"):
        column.wire(Ledger(**{column.name: value}))
    with pytest.raises(InvalidValue, match=rf"Ledger\.{column.name}"):
        (column == value).render(Placeholders())


@pytest.mark.parametrize(
    ("column", "wire"),
    [
        (Ledger.until, {"N": "1E+30"}),
        (Ledger.until, {"N": "-1E+20"}),
        (Ledger.at, {"S": "0000-00-00"}),
        (Ledger.price, {"S": "free"}),
        (Ledger.ratio, {"N": "0"}),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_its_column(column: Any, wire: Any) -> None:
    """I8"""
    declared = declaration_of(Ledger)
    with pytest.raises(InvalidValue, match=rf"Ledger\.{column.name} \(attribute {column.name}\)"):
        declared.made({"id": {"S": "a"}, column.attribute: wire}, declared.names)
