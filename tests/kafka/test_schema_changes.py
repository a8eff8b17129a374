"""The record of a statement, and what is left out of one that its topic does not take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relay.change import AlteredTable, SchemaChange, StatementText, TableColumns
from relay.errors import RelayError
from relay.kafka.limits import record_size
from relay.kafka.schema_changes import statement_record
from relay.table import Column
from relay.token import EventToken

TABLE = TableColumns(tuple(Column(f"c{n}", "int") for n in range(40)), ("c0",))
CHANGE = SchemaChange(
    "id",
    "ALTER",
    "shop",
    "d",
    "ALTER TABLE t COMMENT '" + "x" * 3000 + "'",
    StatementText.COMPLETE,
    (AlteredTable("t", TABLE, "rows", TABLE, "statement"),),
    EventToken(1, "shop/d/-", "MariaDB/0-1-2"),
    "0-1-2",
    5,
)


def value(largest: float) -> dict[str, Any]:
    record, key, headers = statement_record(CHANGE, 3, 4, "shop.ddl", largest)
    assert record_size(record, key, headers) <= largest
    found: dict[str, Any] = json.loads(record)
    return found


def test_a_record_that_is_too_large_loses_its_text_first_and_then_its_columns() -> None:
    """I8, I10: what is left out is said."""
    whole = value(10_000)
    assert (whole["statement"], whole["statement_text"]) == (CHANGE.statement, "COMPLETE")
    without_text = value(4_500)
    assert (without_text["statement"], without_text["statement_text"]) == (None, "OMITTED")
    assert without_text["tables"] == whole["tables"]
    least = value(1_000)
    assert least["tables"] == [
        {"table": "t", "renamed_to": None, **dict.fromkeys(("before", "before_known_by", "after", "after_known_by"))}
    ]
    assert {name: least[name] for name in ("event_id", "token", "transaction")} == {
        name: whole[name] for name in ("event_id", "token", "transaction")
    }


def test_a_record_that_is_too_large_in_any_form_stops_the_relay_with_the_limit_to_raise() -> None:
    """I1"""
    with pytest.raises(RelayError, match=r"statement id takes \d+ bytes, but topic shop.ddl allows 300: raise"):
        statement_record(CHANGE, 3, 4, "shop.ddl", 300)


def test_all_statements_of_a_shard_have_the_same_key() -> None:
    """I2"""
    _, key, headers = statement_record(CHANGE, 3, 4, "shop.ddl", 10_000)
    assert key == b"shop/d/-"
    assert dict(headers) == {"event_id": b"id", "token": CHANGE.token.to_json_bytes()}
