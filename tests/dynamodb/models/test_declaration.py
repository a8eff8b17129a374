"""What a class declares, and what it cannot."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

import pytest

from relay.dynamodb.models import (
    Attribute,
    GlobalIndex,
    InvalidModel,
    LocalIndex,
    Model,
    Seconds,
    column,
    columns_of,
    hash_key,
    range_key,
)
from relay.dynamodb.models.declaration import declaration_of
from tests.dynamodb.models.shop import Order


@dataclass
class Tree:
    name: str
    branches: list[Tree] = field(default_factory=list)


@dataclass
class Lost:
    part: Elsewhere  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Initial:
    name: str
    only: InitVar[int]


class Versioned(Model, abstract=True, stream="NEW_IMAGE"):
    id: Attribute[str] = hash_key()
    version: Attribute[int]
    by_version = GlobalIndex(hash="version")


class Page(Versioned, table="pages"):
    version: Attribute[int] = column("v")
    body: str
    kept_for: ClassVar[int] = 7


def test_annotations_are_columns_and_class_variables_are_not() -> None:
    declared = declaration_of(Order)
    assert list(declared.columns) == [
        "customer",
        "number",
        "total",
        "price",
        "tags",
        "note",
        "address",
        "lines",
        "expires",
    ]
    assert [*map(id, declared.key)] == [id(Order.customer), id(Order.number)]
    assert declared.ttl is Order.expires
    assert (Order.note.name, Order.note.attribute, Order.note.optional) == ("note", "n", True)
    assert (Order.total.attribute, Order.total.type.kind, Order.total.optional) == ("total", "N", False)
    assert "kept_for" not in declaration_of(Page).columns


def test_a_bare_annotation_is_a_column_too() -> None:
    assert isinstance(vars(Page)["body"], Attribute)
    assert Page(id="a", body="b").body == "b"


def test_a_class_inherits_columns_indexes_and_options_and_has_a_table_of_its_own() -> None:
    declared = declaration_of(Page)
    assert list(declared.columns) == ["id", "version", "body"]
    assert declared.table == "pages"
    assert declared.stream == "NEW_IMAGE"
    assert declared.indexes["by_version"].key[0] is Page.version
    assert Page.version.attribute == "v"
    assert Versioned.version.attribute == "version"
    assert repr(Page.id) == "Page.id"
    assert repr(Versioned.id) == "Versioned.id"


def test_a_table_is_called_like_its_class_unless_it_is_named() -> None:
    class Invoice(Model):
        id: Attribute[int] = hash_key()

    assert declaration_of(Invoice).table == "Invoice"


def test_two_bases_give_their_columns_to_one_class() -> None:
    class Dated(Model, abstract=True):
        at: Attribute[Seconds]

    class Both(Dated, Versioned):
        pass

    assert set(declaration_of(Both).columns) == {"id", "version", "at"}


def test_an_abstract_class_has_no_table() -> None:
    with pytest.raises(InvalidModel, match="Versioned declares no table"):
        Versioned(id="a")


def test_an_index_has_the_keys_and_what_it_projects() -> None:
    indexes = declaration_of(Order).indexes
    assert indexes["by_total"].columns == {"customer", "number", "total", "note"}
    assert indexes["by_note"].columns == {"customer", "number", "note"}
    assert indexes["by_note"].name == "by-note"
    assert indexes["by_price"].columns == {"customer", "number", "price"}
    assert declaration_of(Page).indexes["by_version"].columns == {"id", "version", "body"}


def test_the_columns_of_a_source_come_from_the_class() -> None:
    assert columns_of(Order) == {
        "customer": "string",
        "number": "long",
        "total": "decimal(38,10)",
        "price": "decimal(38,10)",
        "tags": "set",
        "n": "string",
        "address": "json",
        "lines": "json",
        "expires": "timestamp",
    }


def test_a_column_may_have_another_type_in_the_columns_of_a_source() -> None:
    class Invoice(Model):
        id: Attribute[int] = hash_key(columns="int")
        total: Attribute[Decimal] = column(columns="decimal( 12, 2)")

    assert columns_of(Invoice) == {"id": "int", "total": "decimal(12,2)"}


def test_objects_are_made_of_values_by_name() -> None:
    order = Order(customer="ada", number=1)
    assert (order.customer, order.number, order.note) == ("ada", 1, None)
    assert repr(order) == "Order(customer='ada', number=1)"
    with pytest.raises(AttributeError, match=r"Order\.total has no value"):
        _ = order.total
    with pytest.raises(TypeError, match="Order has no column 'costumer': it has customer, number"):
        Order(costumer="ada")


def test_defaults_are_values_or_functions_that_make_them() -> None:
    class Basket(Model):
        id: Attribute[str] = hash_key(default=lambda: "made")
        items: Attribute[list[str]] = column(default=list)
        size: Attribute[int] = column(default=0)

    first, second = Basket(), Basket(size=2)
    assert (first.id, first.items, first.size, second.size) == ("made", [], 0, 2)
    assert first.items is not second.items


def declare(**columns: Any) -> Any:
    """Declare a class ``Bad`` with columns given as annotation, or as pairs of annotation and value."""
    options = columns.pop("options", {})
    annotations = {n: c[0] if isinstance(c, tuple) else c for n, c in columns.items() if c is not None}
    values = {n: c[1] for n, c in columns.items() if isinstance(c, tuple)}
    return type("Bad", (Model,), {"__annotations__": annotations, "__module__": __name__, **values}, **options)


KEY: Any = (Attribute[str], hash_key())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": str}, "Bad has no hash key"),
        ({"a": (str, range_key())}, "Bad has no hash key"),
        ({"a": (str, hash_key()), "b": (str, hash_key())}, "Bad has two hash keys, a and b"),
        ({"a": (str, hash_key()), "b": (str, range_key()), "c": (str, range_key())}, "Bad has two range keys, b and c"),
        ({"a": (bool, hash_key())}, "Bad.a is a hash key: a key must be text, a number or bytes"),
        ({"a": (str | None, hash_key())}, "Bad.a is a hash key.*never None"),
        ({"a": (set[str], hash_key())}, "Bad.a is a hash key"),
        ({"k": KEY, "a": complex}, "Bad.a: <class 'complex'> is not a type of columns"),
        ({"k": KEY, "a": list}, "Bad.a: <class 'list'> is not a type of columns"),
        ({"k": KEY, "a": dict[int, str]}, "Bad.a: .* is not a type of columns"),
        ({"k": KEY, "a": int | str}, "Bad.a: .* is a choice of types"),
        ({"k": KEY, "a": set[bool]}, "Bad.a: .* cannot be in a set"),
        ({"k": KEY, "a": set[str | None]}, "Bad.a: .* cannot be in a set"),
        ({"k": KEY, "a": list[complex]}, "Bad.a: <class 'complex'>"),
        ({"k": KEY, "a": Tree}, "Bad.a: Tree contains itself"),
        ({"k": KEY, "a": Lost}, "Bad.a: name 'Elsewhere' is not defined"),
        ({"k": KEY, "a": Initial}, "Bad.a: Initial takes only, which is not one of its fields"),
        ({"k": KEY, "a": (list[str], column(default=[]))}, r"Bad.a: the default \[\] would be shared .* default=list"),
        ({"k": KEY, "a": (dict[str, int], column(default={"a": 1}))}, r"Bad.a: the default .* would be shared"),
        ({"k": KEY, "a": "Nowhere"}, "Bad: name 'Nowhere' is not defined in an annotation"),
        ({"k": KEY, "a": (int, 5)}, r"Bad.a has a value: use column\(default=...\)"),
        ({"k": KEY, "a": (str, column("k"))}, "Bad.a and Bad.k are both the attribute 'k'"),
        ({"k": KEY, "a": (str, column("x" * 256))}, "Bad.a: an attribute name must consist of 1 to 255 bytes"),
        ({"k": KEY, "a": (str, column(columns="text"))}, "Bad.a: unknown type 'text'"),
        ({"k": KEY, "__init__": str}, "Bad.__init__"),
        ({"k": KEY, "options": {"ttl": "a"}}, "Bad: ttl='a' is not a column: its columns are k"),
        ({"k": KEY, "options": {"ttl": "k"}}, "Bad.k: a time to live must be a number of seconds"),
        ({"k": KEY, "options": {"stream": "NEW"}}, "Bad: stream='NEW' is not a view type"),
        ({"k": KEY, "options": {"stream": True}}, "Bad: stream=True is not a view type"),
        ({"k": KEY, "options": {"stream": ["NEW_IMAGE"]}}, "Bad: stream=.* is not a view type"),
        ({"k": KEY, "a": datetime, "options": {"ttl": "a"}}, "Bad.a: a time to live .* annotate it as Seconds"),
        (
            {"k": KEY, "options": {"table": "a table"}},
            "Bad: a table name must consist of 3 to 255 letters.*; 'a table' does not",
        ),
        ({"k": KEY, "options": {"cache_keys": ["k:{k"]}}, "Bad: cache key: .* unmatched"),
        ({"k": KEY, "options": {"cache_keys": ["k:{x}"]}}, "Bad: the cache key 'k:{x}' names 'x'"),
        ({"k": KEY, "a": set[str], "options": {"cache_keys": ["k:{a}"]}}, "Bad.a cannot be in the cache key"),
    ],
)
def test_a_wrong_declaration_names_the_class_and_the_column(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        declare(**columns)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (GlobalIndex(hash="x"), r"Bad.by has the key 'x', which is not a column: its columns are a, b, c"),
        (GlobalIndex(hash="c"), "Bad.by has the key Bad.c: a key must be text, a number or bytes"),
        (GlobalIndex(hash="b", projection=["x"]), "Bad.by projects 'x', which is not a column of Bad"),
        (GlobalIndex(hash="b", projection="some"), 'Bad.by: the projection must be "all", "keys" or a list'),
        (GlobalIndex(hash="b", range="b"), "Bad.by has the key Bad.b twice"),
        (GlobalIndex(hash="b", name="by"), "Bad.by: an index name must consist of 3 to 255 letters.*; 'by' does not"),
        (
            GlobalIndex(hash="b", name="by b"),
            "Bad.by: an index name must consist of 3 to 255 letters.*; 'by b' does not",
        ),
        (LocalIndex(range="b"), "Bad.by is a local index, so Bad needs a range key"),
    ],
)
def test_a_wrong_index_names_the_class_the_index_and_the_column(index: Any, message: str) -> None:
    columns = {"a": Attribute[str], "b": Attribute[str], "c": Attribute[bool]}
    with pytest.raises(InvalidModel, match=message):
        type("Bad", (Model,), {"__annotations__": columns, "__module__": __name__, "a": hash_key(), "by": index})


def test_two_indexes_cannot_have_one_name() -> None:
    with pytest.raises(InvalidModel, match=r"Twice.second: there are two indexes named 'by-a'"):

        class Twice(Model):
            a: Attribute[str] = hash_key()
            first = GlobalIndex(hash="a", name="by-a")
            second = GlobalIndex(hash="a", name="by-a")


def test_an_unhashable_class_is_refused() -> None:
    with pytest.raises(InvalidModel, match="Same is unhashable, since it has __eq__"):

        class Same(Model):
            a: Attribute[str] = hash_key()

            def __eq__(self, other: object) -> bool:
                return self is other


def test_a_column_without_an_annotation_is_refused() -> None:
    with pytest.raises(InvalidModel, match=r"Untyped.a needs an annotation with the type"):

        class Untyped(Model):
            a = hash_key()


def test_an_index_is_called_like_its_attribute_unless_it_is_named() -> None:
    names = {name: each.name for name, each in declaration_of(Order).indexes.items()}
    assert names == {"by_total": "by_total", "by_note": "by-note", "by_price": "by_price"}


def test_an_object_that_was_read_is_made_without_its_constructor_and_its_defaults() -> None:
    class Careful(Model):
        id: Attribute[str] = hash_key()
        size: Attribute[int] = column(default=7)

        def __init__(self, id: str) -> None:
            raise AssertionError("an object that is read is not constructed")

    declared = declaration_of(Careful)
    found = declared.made({"id": {"S": "a"}}, declared.names)
    assert vars(found) == {"id": "a"}
