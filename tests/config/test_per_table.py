"""Which rows are published: what the file may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.configs import change, only, read, refused


def test_conditions_are_by_table_and_column(file: Path) -> None:
    source = only(read(file, change("key: hash", "where: {orders: {region: eu, tenant: 7}}")))
    assert source.conditions("orders") == {"region": "eu", "tenant": 7}
    assert source.conditions("others") == {}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("[a]", "where`: must be {table: {column: value}}"),
        ("{orders: {}}", "where.orders`: must be {column: value}"),
        ("{orders: {a: 1.5}}", "where.orders.a`: must be text or an integer"),
        ("{orders: {a: true}}", "where.orders.a`: must be text or an integer"),
        ("{other: {a: 1}}", "where.other`: is not a table of this source; did you mean `orders`?"),
    ],
)
def test_a_wrong_condition_is_refused_with_its_place(file: Path, where: str, said: str) -> None:
    (problem,) = refused(file, change("key: hash", f"where: {where}"))
    assert problem.startswith("13:")
    assert problem.endswith(f" `sources[0].{said}")
