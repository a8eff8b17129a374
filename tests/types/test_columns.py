"""The table of column types, and that all that is chosen by a type has something for each."""

from __future__ import annotations

from collections.abc import Collection

import fastavro
import pytest

from relay.avro import columns as avro
from relay.dynamodb import columns as dynamodb
from relay.operations import compared_rows
from relay.types.columns import TYPES, ColumnKind, column_type
from tests.avro.strategies import VALUES

DECLARED = [each.kind for each in TYPES if each.attribute]


@pytest.mark.parametrize(
    ("chosen", "kinds"),
    [
        (avro.WRITERS, list(ColumnKind)),
        (compared_rows.FORMS, list(ColumnKind)),
        (dynamodb.CONVERTS, DECLARED),
        ({kind.partition("(")[0] for kind in [*VALUES, "rest"]}, list(ColumnKind)),
    ],
    ids=["written as Avro", "compared", "declared for DynamoDB", "drawn by tests"],
)
def test_each_kind_of_column_has_its_code(chosen: Collection[str], kinds: Collection[ColumnKind]) -> None:
    assert set(chosen) == set(kinds)


def test_each_kind_has_one_entry() -> None:
    assert [each.kind for each in TYPES] == list(ColumnKind)


@pytest.mark.parametrize("kind", [kind for kind in ColumnKind if kind is not ColumnKind.DECIMAL])
def test_the_name_of_a_kind_is_that_of_its_type(kind: ColumnKind) -> None:
    found = column_type(kind)
    assert (found.kind, str(found)) == (kind, kind.value)
    fastavro.parse_schema(found.avro)


@pytest.mark.parametrize(
    ("text", "digits", "avro_type"), [("decimal(38,10)", (38, 10), "bytes"), ("decimal(39, 10)", (39, 10), "string")]
)
def test_a_decimal_has_its_digits(text: str, digits: tuple[int, int], avro_type: str) -> None:
    found = column_type(text)
    assert (found.precision, found.scale) == digits
    assert str(found) == text.replace(" ", "")
    assert (found.avro if found.is_wide else found.avro["type"]) == avro_type
