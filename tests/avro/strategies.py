"""Random tables and changes, and the datum for which fastavro writes the same bytes as our encoder.

Values are drawn by column type: add new types here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from relay.avro.schema import escape
from relay.change import Change, Images, Operation, Snapshot, Transaction
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken, OriginToken

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.integers(0, 4_000_000_000_000_000) | st.integers(8190, 8194)
NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(["a-b", "ab", "1x", "_x", "_x0041_", "id"])


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    return unscaled.map(lambda number: Decimal(f"{number}E-{scale}"))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(),
    "bytes": st.binary(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "decimal(5,2)": _decimals(5, 2),
    "decimal(38,0)": _decimals(38, 0),
    "decimal(38,38)": _decimals(38, 38),
    "timestamp": st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)).map(
        lambda time: time.astimezone()
    ),
    "set": st.lists(st.text(max_size=5), max_size=4),
    "json": st.text(),
}
KINDS = sorted({*VALUES, "decimal(10,2)", "decimal(40,0)", "decimal(65,30)", "rest"})
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.integers(-(1 << 15), 1 << 15)
    | st.floats()
    | st.decimals()
    | st.decimals(places=2)
    | st.decimals(places=30)
    | st.text()
    | st.sampled_from(["\ud800", "x" * 8191, "x" * 8192, "é" * 4096])
    | st.binary()
    | st.lists(st.text(max_size=3), max_size=3)
    | st.sampled_from([Decimal(each) for each in ("1.2E+5", "1E+2", "-0.00", "NaN", "Infinity", "-Infinity", "sNaN")])
)
_KEY_VALUES = {"S": st.text(), "N": st.integers().map(str), "B": st.binary(), "string": st.text(), "long": LONGS}


@st.composite
def tables(draw: st.DrawFn) -> TableSchema:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    kinds = draw(st.lists(st.sampled_from(sorted(_KEY_VALUES)), min_size=len(names), max_size=len(names)))
    row = None
    if draw(st.booleans()):
        columns = draw(st.lists(NAMES, max_size=5, unique=True))
        row = tuple(Column(name, draw(st.sampled_from(sorted(VALUES)))) for name in columns)
    key = tuple(KeyColumn(name, kind) for name, kind in zip(names, kinds, strict=True))
    return TableSchema(draw(NAMES), draw(NAMES), key, 1, row)


def _image(table: TableSchema) -> st.SearchStrategy[Any]:
    if table.row is None:
        # From 8192 bytes on the length takes three bytes.
        return st.none() | st.text() | st.integers(8180, 8200).map("x".__mul__)
    columns = {column.name: st.none() | VALUES[column.type] for column in table.row}
    return st.none() | st.fixed_dictionaries(columns)


@st.composite
def changes(draw: st.DrawFn, table: TableSchema) -> Change:
    origin = st.none() | st.builds(OriginToken, LONGS, st.text(), st.text())
    key = {column.name: draw(_KEY_VALUES[column.type]) for column in table.key}
    operation = draw(st.sampled_from(Operation))
    return Change(
        event_id=draw(st.text()),
        operation=operation,
        source=table.source,
        table=table.table,
        key=None if operation is Operation.TRUNCATE and draw(st.booleans()) else key,
        old=draw(_image(table)),
        new=draw(_image(table)),
        images=draw(st.sampled_from(Images)),
        token=draw(st.none() | st.builds(EventToken, LONGS, st.text(), st.text(), origin)),
        committed_at=draw(TIMES),
        relayed_at=draw(TIMES),
        resume_timestamp=draw(LONGS),
        snapshot=draw(st.none() | st.builds(Snapshot, st.text(), LONGS)),
        transaction=draw(st.none() | st.builds(Transaction, st.text(), VALUES["int"], st.booleans())),
        keyspace_id=draw(st.none() | st.binary()),
        attributes=draw(st.dictionaries(st.text(), st.text(), max_size=3)),
    )


def datum(change: Change) -> dict[str, Any]:
    """Return the change as fastavro takes it."""

    def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
        return {escape(name): value for name, value in values.items()}

    def image(value: Any) -> Any:
        return value if value is None or isinstance(value, str) else renamed(value)

    def plain(part: Any, *names: str) -> Any:
        return None if part is None else {name: getattr(part, name) for name in names}

    token = plain(change.token, "timestamp", "shard", "position", "origin")
    if token is not None:
        token["origin"] = plain(token["origin"], "timestamp", "shard", "position")
    return {
        "event_id": change.event_id,
        "operation": change.operation.value,
        "source": change.source,
        "table": change.table,
        "key": None if change.key is None else renamed(change.key),
        "old": image(change.old),
        "new": image(change.new),
        "images": change.images.value,
        "token": token,
        "snapshot": plain(change.snapshot, "id", "as_of"),
        "transaction": plain(change.transaction, "id", "order", "last"),
        "keyspace_id": change.keyspace_id,
        "resume_timestamp": change.resume_timestamp,
        "committed_at": change.committed_at,
        "relayed_at": change.relayed_at,
        "attributes": dict(change.attributes),
    }
