"""Columns as ``information_schema`` describes them, and the types that carry them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from relay.mysql_dialect.catalog import ask, carried_column
from relay.table import Column


@pytest.mark.parametrize(
    ("definition", "carried"),
    [
        ("tinyint(1)", "int"),
        ("int(10) unsigned zerofill", "long"),
        ("bigint(20)", "long"),
        ("bigint unsigned", "decimal(20,0)"),
        ("mediumint unsigned", "int"),
        ("decimal(30,10)", "decimal(30,10)"),
        ("decimal(65,30) unsigned", "decimal(65,30)"),
        ("decimal", "decimal(10,0)"),
        ("float", "float"),
        ("double(8,2) unsigned", "double"),
        ("varchar(255)", "string"),
        ("longtext", "string"),
        ("mediumblob", "bytes"),
        ("binary(4)", "bytes"),
        ("bit(9)", "bytes"),
        ("datetime(6)", "string"),
        ("time", "string"),
        ("timestamp(3)", "timestamp"),
        ("year(4)", "int"),
        ("enum('a','b)','unsigned')", "string"),
        ("set('x','y')", "set"),
        ("json", "string"),
        ("multipolygon", "bytes"),
        ("uuid", "bytes"),
        ("inet6", "bytes"),
    ],
)
def test_a_definition_determines_the_carried_type(definition: str, carried: str) -> None:
    found = carried_column("c", definition)
    assert (found.name, found.type) == ("c", carried)
    told = {"datetime(6)": "datetime", "time": "time", "timestamp(3)": "timestamp", "json": "json"}
    assert found.sql == told.get(definition, "")
    assert found.has_decimals == (definition in ("datetime(6)", "time"))
    assert found.is_address == (definition in ("uuid", "inet6"))
    assert found == Column("c", carried, found.sql)  # as a stream has it


def test_of_an_unknown_type_the_column_and_the_problem_are_named() -> None:
    """I12: and other tables are found."""
    found = ask(lambda _: [("t", "c", "frobnicate(3)", None), ("u", "c", "int", None)], "shop")
    assert found["t"].problem.startswith("cannot be relayed with its column c: columns of type frobnicate cannot be")
    assert not found["u"].problem


def test_tables_have_their_columns_and_keys_in_order() -> None:
    rows = [
        *(("a", "x", "int(11)", 2), ("a", "y", "text", 1)),
        *(("b", "z", "blob", None), ("c", "w", "nonsense", None), ("other", "q", "int", 1)),
    ]
    found = ask(lambda _: rows, "shop", wanted=["a", "b"])
    assert list(found) == ["a", "b"]
    assert found["a"].columns == [Column("x", "int"), Column("y", "string")]
    assert found["a"].primary == ["y", "x"]
    assert found["b"].primary == []


def test_columns_and_keys_come_from_one_answer() -> None:
    """I8: vtgate may send a second statement to a new replica that is still empty: no table would have a key there."""
    servers: list[list[Sequence[object]]] = [
        [("items", b"b", "int(11)", 2), ("items", "a", "text", "1"), ("items", "c", "blob", None)]
    ]
    found = ask(lambda statement: servers.pop() if servers else [], "shop")
    assert [column.name for column in found["items"].columns] == ["b", "a", "c"]
    assert found["items"].primary == ["a", "b"]
