"""Columns and indexes that a class has from its bases, and from what it shares with other classes."""

from __future__ import annotations

from typing import Any

import pytest

from relay.dynamodb.models import Attribute, GlobalIndex, InvalidModel, Model, column, hash_key, range_key
from relay.dynamodb.models.declaration import declaration_of


class Keyed(Model, abstract=True):
    id: Attribute[str] = hash_key()
    size: Attribute[int] = column("size-of-keyed")
    by_size = GlobalIndex(hash="size", name="of-keyed")


class Plain(Keyed, abstract=True):
    """Changes nothing."""


class Resized(Keyed, abstract=True):
    size: Attribute[str] = column("size-of-resized")  # type: ignore[assignment]
    by_size = GlobalIndex(hash="size", name="of-resized", projection="keys")


class Renamed(Keyed, abstract=True):
    size: Attribute[int] = column("size-of-renamed")


def test_of_two_bases_with_one_column_the_first_one_is_taken() -> None:
    class First(Resized, Renamed):  # type: ignore[misc]
        pass

    class Second(Renamed, Resized):  # type: ignore[misc]
        pass

    assert (First.size.attribute, First.size.type.kind) == ("size-of-resized", "S")
    assert (Second.size.attribute, Second.size.type.kind) == ("size-of-renamed", "N")
    assert declaration_of(First).indexes["by_size"].name == "of-resized"
    assert declaration_of(First).indexes["by_size"].key[0] is First.size
    assert declaration_of(Second).indexes["by_size"].key[0] is Second.size


def test_what_a_base_inherits_does_not_hide_what_another_base_declares() -> None:
    """As with any attribute of a class: Plain has none of its own, so that of Resized comes before Keyed's."""

    class Both(Plain, Resized):
        pass

    assert Both.size.attribute == "size-of-resized"
    assert declaration_of(Both).indexes["by_size"].name == "of-resized"


def test_a_mixin_need_not_be_a_table() -> None:
    class Owned:
        owner: Attribute[str]
        team: Attribute[str | None] = column("t")
        rank: int  # for a type checker only: bare annotations are columns of tables alone
        by_team = GlobalIndex(hash="team", projection="keys")

        def is_mine(self, name: str) -> bool:
            return self.owner == name

    class Before(Owned, Keyed):
        pass

    class After(Keyed, Owned):
        pass

    for model in (Before, After):
        declared = declaration_of(model)
        assert set(declared.columns) == {"id", "size", "owner", "team"}
        assert declared.indexes["by_team"].key[0] is declared.columns["team"]
        assert declared.columns["team"].attribute == "t"
        assert repr(declared.columns["owner"]) == f"{model.__name__}.owner"
        assert model(id="a", owner="ada").is_mine("ada")


def test_a_mixin_without_columns_may_be_annotated_with_what_is_not_known_here() -> None:
    class Logged:
        log: Elsewhere  # type: ignore[name-defined]  # noqa: F821

    class Both(Logged, Keyed):
        pass

    assert set(declaration_of(Both).columns) == {"id", "size"}
    Owned = type("Owned", (), {"__annotations__": {"a": "Attribute[Elsewhere]"}, "__module__": __name__})
    with pytest.raises(InvalidModel, match="Bad: name 'Elsewhere' is not defined in an annotation"):
        type("Bad", (Owned, Keyed), {"__module__": __name__})


def test_a_column_with_another_type_or_key_takes_the_place_of_the_inherited_one() -> None:
    class Numbered(Keyed, table="numbered"):
        id: Attribute[int] = hash_key()  # type: ignore[assignment]
        size: Attribute[int] = range_key()

    declared = declaration_of(Numbered)
    assert list(declared.columns) == ["id", "size"]
    assert (declared.key[0].type.kind, declared.key[1]) == ("N", Numbered.size)
    assert declared.indexes["by_size"].columns == {"id", "size"}
    assert (Keyed.size.role, Keyed.size.attribute) == (None, "size-of-keyed")


def test_an_inherited_key_is_not_replaced_by_one_of_another_name() -> None:
    with pytest.raises(InvalidModel, match="Other has two hash keys, id and number"):

        class Other(Keyed):
            number: Attribute[int] = hash_key()


@pytest.mark.parametrize("hidden", ["size", "by_size"])
@pytest.mark.parametrize("value", [None, 5, property(lambda self: 5)])
def test_an_inherited_column_or_index_cannot_be_hidden(hidden: str, value: Any) -> None:
    with pytest.raises(InvalidModel, match=rf"Hiding\.{hidden} hides .* that Hiding inherits"):
        type("Hiding", (Keyed,), {hidden: value, "__module__": __name__})


def test_a_column_and_an_index_cannot_hide_each_other() -> None:
    with pytest.raises(InvalidModel, match=r"Bad\.by_size hides an index that Bad inherits"):
        type("Bad", (Keyed,), {"__annotations__": {"by_size": int}, "__module__": __name__})
    with pytest.raises(InvalidModel, match=r"Bad\.size hides a column that Bad inherits"):
        type("Bad", (Keyed,), {"size": GlobalIndex(hash="id"), "__module__": __name__})


def test_one_column_or_index_may_be_used_in_several_places() -> None:
    shared, index = column(), GlobalIndex(hash="left")

    class Left(Model):
        id: Attribute[str] = hash_key()
        left: Attribute[int] = shared
        by_left = index

    class Right(Model):
        id: Attribute[str] = hash_key()
        right: Attribute[str] = shared
        left: Attribute[str | None] = shared
        by_left = index
        again = index

    assert (Left.left.name, Left.left.attribute, Left.left.type.kind) == ("left", "left", "N")
    assert [(each.name, each.attribute, each.type.kind) for each in (Right.right, Right.left)] == [
        ("right", "right", "S"),
        ("left", "left", "S"),
    ]
    assert [each.name for each in declaration_of(Right).indexes.values()] == ["by_left", "again"]
    assert declaration_of(Left).indexes["by_left"].key[0] is Left.left


def test_what_is_wrong_with_an_abstract_class_is_said_where_it_is_created() -> None:
    with pytest.raises(InvalidModel, match=r"Twice\.b and Twice\.a are both the attribute 'x'"):

        class Twice(Model, abstract=True):
            a: Attribute[str] = column("x")
            b: Attribute[str] = column("x")

    with pytest.raises(InvalidModel, match="Two has two range keys, a and b"):

        class Two(Model, abstract=True):
            a: Attribute[str] = range_key()
            b: Attribute[str] = range_key()
