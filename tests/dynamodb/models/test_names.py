"""Attributes and entries of maps whose names an expression could not have as they stand, on DynamoDB Local."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from relay.dynamodb.models import (
    Attribute,
    ConstraintViolation,
    Engine,
    GlobalIndex,
    Model,
    column,
    hash_key,
    range_key,
)

pytestmark = pytest.mark.services

NAMES = ["select", "a.b", "a-b", "#n0", ":v0", "[0]", " ", "1", "\u00e9", "\U0001f600", '"', "x" * 200]
"""Reserved words, steps of paths, placeholders and what else is not a plain name."""


class Odd(Model, table="odd-names"):
    key: Attribute[str] = hash_key("table")
    order: Attribute[int] = range_key("a.b.c")
    value: Attribute[str] = column("values")
    entries: Attribute[dict[str, int]] = column("#entries")
    by_value = GlobalIndex(hash="value", range="order", projection=["entries"], name="by.value-1")


def declare(name: str) -> Any:
    """Return a class with a column whose attribute has this name."""
    columns = {"key": Attribute[str], "order": Attribute[int], "odd": Attribute[str | None]}
    members = {"key": hash_key("table"), "order": range_key("a.b.c"), "odd": column(name)}
    return type("Named", (Model,), {"__annotations__": columns, "__module__": __name__, **members}, table="odd-names")


@pytest.mark.parametrize("name", NAMES)
def test_an_attribute_may_have_any_name(engine: Engine, name: str) -> None:
    engine.bind(Odd)
    named = declare(name)
    saved = named(key=uuid.uuid4().hex, order=1, odd="first")
    engine.save(saved, atomic=True)
    found = engine.query(named, named.key == saved.key, filter=named.odd == "first", projection=[named.odd]).one()
    found.odd = "second"
    engine.save(found, atomic=True, condition=named.odd.begins_with("f") & named.odd.is_not(None))
    with pytest.raises(ConstraintViolation):
        engine.save(saved, atomic=True)
    engine.load(saved, consistent=True)
    assert saved.odd == "second"
    saved.odd = None
    engine.save(saved, atomic=True)
    engine.delete(saved, atomic=True, condition=named.odd.is_(None))


def test_an_entry_of_a_map_may_have_any_name(engine: Engine) -> None:
    engine.bind(Odd)
    saved = Odd(key=uuid.uuid4().hex, order=1, value="v", entries={name: at for at, name in enumerate(NAMES)})
    engine.save(saved)
    for at, name in enumerate(NAMES):
        there = engine.query(Odd, Odd.key == saved.key, filter=Odd.entries[name] == at)
        assert there.one().entries == saved.entries
        with pytest.raises(ConstraintViolation):
            engine.save(saved, condition=Odd.entries[name] > at)


def test_an_index_may_have_keys_of_any_name(engine: Engine) -> None:
    engine.bind(Odd)
    saved = Odd(key=uuid.uuid4().hex, order=7, value=uuid.uuid4().hex, entries={"a": 1})
    engine.save(saved)
    of = (Odd.value == saved.value) & Odd.order.between(7, 8)
    found = engine.query(Odd, of, index=Odd.by_value, filter=Odd.entries["a"] >= 1).one()
    assert vars(found) == vars(saved)
