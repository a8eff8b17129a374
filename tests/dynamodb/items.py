"""Items of every type that DynamoDB has, to draw from."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from relay.avro.decode import decode
from relay.avro.encode import ChangeEncoder
from relay.avro.framing import fingerprint, single_object_header
from relay.avro.schema import change_schema
from relay.change import Change
from relay.table import TableSchema
from tests.avro.known import Known

NUMBERS = st.builds(
    lambda sign, digits, exponent: f"{sign}{digits}E{exponent}",
    st.sampled_from(["", "-", "+"]),
    st.text("0123456789", min_size=1, max_size=38),
    st.integers(-167, 125),
)

TYPED = st.recursive(
    st.one_of(
        st.text().map(lambda v: {"S": v}),
        NUMBERS.map(lambda v: {"N": v}),
        st.binary().map(lambda v: {"B": v}),
        st.booleans().map(lambda v: {"BOOL": v}),
        st.just({"NULL": True}),
        st.lists(st.text(), min_size=1).map(lambda v: {"SS": v}),
        st.lists(NUMBERS, min_size=1).map(lambda v: {"NS": v}),
        st.lists(st.binary(), min_size=1).map(lambda v: {"BS": v}),
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: {"L": v})
        | st.dictionaries(st.text(), inner, max_size=3).map(lambda v: {"M": v})
    ),
    max_leaves=8,
)


def with_base64(part: Any) -> Any:
    """Return typed values as DynamoDB JSON."""
    if isinstance(part, bytes):
        return b64encode(part).decode()
    if isinstance(part, dict):
        return {name: with_base64(value) for name, value in part.items()}
    if isinstance(part, list):
        return [with_base64(value) for value in part]
    return part


def carried(change: Change, table: TableSchema) -> dict[str, Any]:
    """Return a change as a reader of the topic sees it."""
    schema = change_schema(table)
    header = single_object_header(fingerprint(schema))
    return decode(Known({header: schema}), ChangeEncoder(schema, header).encode(change))


def item_of(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Convert a typed row back to DynamoDB JSON, by ``schemas/README.md`` and not with the relay's code.

    ``columns``: ``relay.type`` by original name, ``rest`` among them.
    """
    item = {name: _attribute(columns[name], value) for name, value in row.items() if value is not None}
    rest = item.pop("rest", {})
    assert not item.keys() & rest.keys()
    return {**item, **rest}


def _attribute(kind: str, value: Any) -> Any:
    if kind in ("json", "rest"):
        return json.loads(value)
    if kind == "timestamp":
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        return {"N": str(Decimal(since.days * 86400 + since.seconds) + Decimal(since.microseconds).scaleb(-6))}
    tag = {"string": "S", "bytes": "B", "boolean": "BOOL", "set": "SS"}.get(kind, "N")
    return {tag: str(value) if tag == "N" else with_base64(value)}


def same_item(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two items in DynamoDB JSON are equal: top-level numbers by value, all else exactly."""

    def worth(value: Any) -> Any:
        return Decimal(value["N"]) if isinstance(value, dict) and set(value) == {"N"} else json.dumps(value)

    return {name: worth(value) for name, value in one.items()} == {name: worth(value) for name, value in other.items()}
