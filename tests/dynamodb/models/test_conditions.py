"""Conditions as expressions of DynamoDB."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.dynamodb.models import Attribute, InvalidCondition, InvalidValue, Model, column, hash_key
from relay.dynamodb.models.conditions import Condition, Placeholders
from tests.dynamodb.models.shop import Euro, Order


class Word(Model, table="words"):
    """Attributes whose names are reserved words, or could not be in an expression."""

    id: Attribute[str] = hash_key("select")
    size: Attribute[int] = column("size")
    dotted: Attribute[str | None] = column("a.b-c")
    tags: Attribute[set[str]]
    pairs: Attribute[dict[str, list[int]]]
    flag: Attribute[bool]
    raw: Attribute[bytes]
    any: Attribute[Any]


ANY_NUMBER: Any = Order.number
"""A column whose type a type checker does not know."""

LESS, MORE = Order.number < 0, Order.number > 1


def rendered(condition: Condition) -> str:
    """Return the expression with the names and values in place of their placeholders."""
    placeholders = Placeholders()
    text = condition.render(placeholders)
    arguments = placeholders.arguments
    for short, name in arguments.get("ExpressionAttributeNames", {}).items():
        text = re.sub(rf"{short}\b", name, text)
    for short, wire in arguments.get("ExpressionAttributeValues", {}).items():
        text = re.sub(rf"{short}\b", repr(next(iter(wire.values()))), text)
    return text


CASES: list[tuple[Condition, str]] = [
    (Order.total == Decimal("1.50"), "(total = '1.5')"),
    (Order.total != Decimal(1), "(total <> '1')"),
    (Order.total < Decimal(1), "(total < '1')"),
    (Order.total <= Decimal(1), "(total <= '1')"),
    (Order.total > Decimal(1), "(total > '1')"),
    (Order.total >= Decimal(1), "(total >= '1')"),
    (Order.number.between(1, 5), "(number BETWEEN '1' AND '5')"),
    (Order.customer.begins_with("a"), "(begins_with(customer, 'a'))"),
    (Order.customer.contains("a"), "(contains(customer, 'a'))"),
    (Order.tags.contains("a"), "(contains(tags, 'a'))"),
    (Order.number.in_([1, 2]), "(number IN ('1', '2'))"),
    (Order.note.is_(None), "(attribute_not_exists(n))"),
    (Order.note == None, "(attribute_not_exists(n))"),  # noqa: E711
    (Order.note.is_not(None), "(attribute_exists(n))"),
    (Order.note != None, "(attribute_exists(n))"),  # noqa: E711
    (Order.tags == set(), "(attribute_not_exists(tags))"),
    (Order.price == Euro(Decimal(3)), "(price = '3')"),
    (Order.total == ANY_NUMBER, "(total = number)"),
    (ANY_NUMBER.between(1, Order.total), "(number BETWEEN '1' AND total)"),
    (Order.address["street"] == "s", "(address.street = 's')"),
    (Order.lines[0]["sku"].begins_with("x"), "(begins_with(lines[0].sku, 'x'))"),
    (Word.pairs["a"][2] > 1, "(pairs.a[2] > '1')"),
    (Order.note.begins_with(Word.dotted), "(begins_with(n, a.b-c))"),
    (Order.customer.contains(Order.note), "(contains(customer, n))"),
    (ANY_NUMBER.in_([3, Order.total, 4]), "(number IN ('3', total, '4'))"),
    (Word.raw.begins_with(b"a"), "(begins_with(raw, b'a'))"),
    (Word.any < 5, "(any < '5')"),
    (Word.any["foo"][4]["x.y"]["foo"].contains("a"), "(contains(any.foo[4].x.y.foo, 'a'))"),
    (Word.pairs["a"].contains(3), "(contains(pairs.a, '3'))"),
    (Word.flag.is_not(False), "(flag <> False)"),
    (Word.flag.in_([True]), "(flag IN (True))"),
    (~(~(Word.flag == True)), "(NOT (NOT (flag = True)))"),  # noqa: E712
    (Word.dotted == "x", "(a.b-c = 'x')"),
    ((Order.number > 1) & (Order.number < 5), "((number > '1') AND (number < '5'))"),
    (
        (Order.number > 1) & (Order.number < 5) & (Order.note == "x"),
        "((number > '1') AND (number < '5') AND (n = 'x'))",
    ),
    ((Order.number > 1) | ~(Order.note == "x"), "((number > '1') OR (NOT (n = 'x')))"),
    (
        ((Order.number > 1) | (Order.number < 0)) & (Order.note == "x"),
        "(((number > '1') OR (number < '0')) AND (n = 'x'))",
    ),
]


@pytest.mark.parametrize(("condition", "expression"), CASES, ids=[expression for _, expression in CASES])
def test_a_condition_is_rendered(condition: Condition, expression: str) -> None:
    assert rendered(condition) == expression


def test_a_name_and_a_value_are_each_sent_once_and_a_type_tells_values_apart() -> None:
    placeholders = Placeholders()
    condition = (Word.id == "1") | (Word.id != "1") | (Word.size == 1) | (Word.size > 1)
    assert condition.render(placeholders) == "((#n0 = :v0) OR (#n0 <> :v0) OR (#n1 = :v1) OR (#n1 > :v1))"
    assert placeholders.arguments == {
        "ExpressionAttributeNames": {"#n0": "select", "#n1": "size"},
        "ExpressionAttributeValues": {":v0": {"S": "1"}, ":v1": {"N": "1"}},
    }


def test_a_step_of_a_path_is_one_name_whatever_it_has_in_it() -> None:
    placeholders = Placeholders()
    condition = (Word.any["foo"]["foo.bar"]["#n0"]["foo"] == 1) & (Word.pairs["foo"][3] == 1)
    assert condition.render(placeholders) == "((#n0.#n1.#n2.#n3.#n1 = :v0) AND (#n4.#n1[3] = :v0))"
    assert placeholders.arguments["ExpressionAttributeNames"] == {
        "#n0": "any",
        "#n1": "foo",
        "#n2": "foo.bar",
        "#n3": "#n0",
        "#n4": "pairs",
    }


def test_a_combined_condition_leaves_its_parts_as_they_were() -> None:
    either = (Order.number == 1) | (Order.number == 2)
    whole = either
    whole |= Order.number == 3
    whole &= Order.total > Decimal(1)
    assert rendered(either) == "((number = '1') OR (number = '2'))"
    assert rendered(whole) == "(((number = '1') OR (number = '2') OR (number = '3')) AND (total > '1'))"


_SIMPLE: st.SearchStrategy[Condition] = st.one_of(
    st.builds(lambda n: Order.number == n, st.integers(0, 3)),
    st.builds(lambda n, m: Order.number.between(n, m), st.integers(0, 3), st.integers(0, 3)),
    st.builds(lambda t: Order.note == t, st.sampled_from([None, "a", "b"])),
    st.builds(lambda t: Order.tags != t, st.sampled_from([set(), {"a"}])),
    st.builds(lambda t: Order.tags.contains(t), st.sampled_from(["a", "b"])),
    st.builds(lambda ns: Order.number.in_(ns), st.lists(st.integers(0, 3), min_size=1, max_size=3)),
    st.builds(lambda t: Order.address["zip"] == t, st.sampled_from([None, "a"])),
)
CONDITIONS = st.recursive(
    _SIMPLE,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=8,
)


@given(CONDITIONS)
def test_every_placeholder_is_explained_and_every_explanation_is_used(condition: Condition) -> None:
    """DynamoDB refuses a request with a name or value that no expression uses."""
    placeholders = Placeholders()
    text = condition.render(placeholders)
    arguments = placeholders.arguments
    assert set(re.findall(r"#n\d+", text)) == set(arguments.get("ExpressionAttributeNames", {}))
    assert set(re.findall(r":v\d+", text)) == set(arguments.get("ExpressionAttributeValues", {}))
    assert text.count("(") == text.count(")")


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (lambda: Order.note < None, r"Order\.note <: a value is None"),
        (lambda: Order.number.between(1, None), r"Order\.number between: a value is None"),  # type: ignore[arg-type]
        (lambda: Order.note.begins_with(None), r"Order\.note begins_with: a value is None"),
        (lambda: Order.tags.contains(None), r"Order\.tags contains: a value is None"),
        (lambda: Order.note.in_(["a", None]), r"Order\.note IN: a value is None"),
        (lambda: Order.number.in_([]), r"Order\.number\.in_\(\) takes 1 to 100 values, not 0"),
        (lambda: Order.number.in_(range(101)), "not 101"),
        (lambda: Order.tags < {"a"}, r"Order\.tags: < compares text, numbers and bytes, not SS"),
        (lambda: Order.lines >= [], r"Order\.lines: >= compares text, numbers and bytes, not L"),
        (lambda: Order.address.between(1, 2), r"Order\.address: between compares .* not M"),  # type: ignore[arg-type]
        (lambda: Word.flag > False, r"Word\.flag: > compares .* not BOOL"),
        (lambda: ANY_NUMBER.begins_with(1), r"Order\.number: begins_with applies to text and bytes, not N"),
        (lambda: Order.tags.begins_with({"a"}), r"Order\.tags: begins_with applies to text and bytes, not SS"),
        (lambda: Order.number.contains(1), r"Order\.number: contains applies to text, bytes, sets and lists, not N"),
        (lambda: Word.pairs.contains("a"), r"Word\.pairs: contains applies to .*, not M"),
        (lambda: Word.pairs["a"] < [1], r"Word\.pairs\['a'\]: < compares .* not L"),
        (lambda: Word.any.contains(set()), r"Word\.any contains: a value is None, or stored as no attribute"),
        (lambda: Order.tags["a"] == 1, r"Order\.tags has no \['a'\]"),
        (lambda: Word.flag[0] == 1, r"Word\.flag has no \[0\]"),
        (lambda: Word.any[True] == 1, r"Word\.any has no \[True\]"),
        (lambda: Order.number["a"] == 1, r"Order\.number has no \['a'\]"),
        (lambda: Order.lines["a"] == 1, r"Order\.lines has no \['a'\]: a list takes a number"),
        (lambda: Order.lines[-1] == 1, r"Order\.lines has no \[-1\]"),
        (lambda: Order.address["city"] == 1, r"Order\.address has no \['city'\]: it has street, zip"),
        (lambda: (Order.number == 1) & True, "True is not a condition"),  # type: ignore[operator]
        (lambda: (Order.number == 1) and (Order.number == 2), "combine conditions with & | ~"),
    ],
)
def test_a_condition_that_cannot_be_is_refused_with_its_column(condition: Any, message: str) -> None:
    placeholders = Placeholders()
    with pytest.raises(InvalidCondition, match=message):
        condition().render(placeholders)
    assert placeholders.arguments == {}


def test_a_value_of_another_type_is_refused_with_its_column() -> None:
    """I8"""
    with pytest.raises(InvalidValue, match=r"Order\.number: '1' \(str\) is not an int"):
        (ANY_NUMBER == "1").render(Placeholders())
    with pytest.raises(InvalidValue, match=r"Order\.address\['zip'\]: '5' \(int\) is not a str"):
        (Order.address["zip"] == 5).render(Placeholders())


def test_a_condition_shows_what_it_says() -> None:
    assert repr((Order.number == 1) & ~Order.tags.contains("a")) == (
        "((Order.number = 1) AND (NOT (Order.tags contains 'a')))"
    )


def test_a_column_is_not_iterated() -> None:
    with pytest.raises(TypeError, match=r"Order\.lines is a column, not a value"):
        list(Order.lines)
