"""The table of SQL types, and the column types of definitions as servers print them."""

from __future__ import annotations

import pytest

from relay.types.columns import column_type
from relay.types.sql import TYPES, Form, defined


def test_each_form_is_that_of_a_type() -> None:
    assert {each.form for each in TYPES.values()} == set(Form)


@pytest.mark.parametrize("name", TYPES)
def test_each_type_is_carried_by_a_column_type(name: str) -> None:
    for attributes in ("", " unsigned"):
        column_type(defined(name + attributes).carried)


def test_no_name_stands_for_two_types() -> None:
    names = [name for each in set(TYPES.values()) for name in (each.name, *each.also)]
    assert sorted(names) == sorted(TYPES)


def test_what_is_in_parentheses_may_have_some_of_its_own() -> None:
    found = defined("ENUM('a','b)','unsigned') ")
    assert (found.type.name, found.inside, found.attributes) == ("enum", "'a','b)','unsigned'", "")


@pytest.mark.parametrize("definition", ["frobnicate(3)", "", "(3)", "int(3", "real"])
def test_a_type_that_is_not_known_is_refused(definition: str) -> None:
    """I8. REAL is a FLOAT or a DOUBLE, as the session has it."""
    with pytest.raises(ValueError, match=r"cannot (be carried|read)"):
        defined(definition)
