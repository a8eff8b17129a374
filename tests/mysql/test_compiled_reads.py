"""Rows of a SELECT in the compiled core against plain Python: the same READs and records (I8)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.avro.compiled_fields import compiled_fields
from relay.errors import RelayError
from relay.mysql.chunks import PRIMARY, ChunkQuery, Part, TableDescription, UniqueIndex
from relay.mysql.text_rows import values_of
from relay.mysql_dialect.compiled_changes import compiled_rows, copied_rows
from relay.mysql_dialect.tables import Row, Table, lay_out
from tests import needs
from tests.examples import examples
from tests.mysql_dialect.copied_reads import NOW, SNAPSHOT, compare, plain_reads

_texts = st.text(max_size=6).map(str.encode)
_integers = st.integers(-(1 << 63), (1 << 63) - 1).map(lambda number: b"%d" % number)
_odd = st.sampled_from([b"", b"+1", b"007", b" 1", b"-0", b"inf", b"\xff", b"9" * 40, b"x" * 70_000])
# By type: its character set, and the texts of usual values.
VALUES: dict[str, tuple[str | None, st.SearchStrategy[bytes]]] = {
    "bigint": (None, _integers),
    "int unsigned zerofill": (None, st.integers(0, 1 << 31).map(lambda number: b"%010d" % number)),
    "bigint unsigned": (None, st.integers(0, (1 << 64) - 1).map(lambda number: b"%d" % number)),
    "year": (None, st.sampled_from([b"0000", b"2024"])),
    "decimal(10,2)": (None, st.decimals(-(10**7), 10**7, places=2).map(lambda number: f"{number:f}".encode())),
    "decimal(65,30)": (None, st.decimals(0, 9, places=30).map(lambda number: f"{number:f}".encode())),
    "float": (None, st.sampled_from([b"3.990000009536743", b"1.5", b"-0"])),
    "double": (None, st.floats(allow_nan=False, allow_infinity=False).map(lambda number: repr(number).encode())),
    "varchar(20)": ("utf8mb4", _texts),
    "varchar(30)": ("latin1", st.binary(max_size=4)),
    "longtext": ("utf8mb4", st.sampled_from([b"", b"x" * 250, b"x" * 251, b"y" * 70_000])),
    "json": (None, st.sampled_from([b"{}", b'{"a": 1}'])),
    "date": (None, st.sampled_from([b"0000-00-00", b"2024-02-29"])),
    "datetime(6)": (None, st.sampled_from([b"2024-02-29 23:59:59.123456"])),
    "time(2)": (None, st.sampled_from([b"-00:00:00.01"])),
    "timestamp(3)": (None, st.sampled_from([b"2024-01-01 00:00:00.125", b"0000-00-00 00:00:00.000"])),
    "varbinary(10)": (None, st.binary(max_size=10)),
    "blob": (None, st.binary(max_size=10)),
    "bit(9)": (None, st.binary(min_size=2, max_size=2)),
    "enum('a','b')": ("utf8mb4", st.sampled_from([b"a", b"b", b""])),
    "set('x','y')": ("utf8mb4", st.sampled_from([b"x", b"x,y", b""])),
    "point": (None, st.binary(min_size=25, max_size=25)),
}
KEYS = ["bigint", "varchar(20)", "varbinary(10)", "enum('a','b')", "decimal(10,2)", "date"]


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


def packet(values: Sequence[bytes | None]) -> bytes:
    """Return a row as the text protocol has it."""
    parts = []
    for value in values:
        if value is None:
            parts.append(b"\xfb")
        elif len(value) < 251:
            parts.append(bytes([len(value)]) + value)
        elif len(value) < 1 << 16:
            parts.append(b"\xfc" + len(value).to_bytes(2, "little") + value)
        else:
            parts.append(b"\xfd" + len(value).to_bytes(3, "little") + value)
    return b"".join(parts)


def laid_out(kinds: Sequence[str], keys: int) -> tuple[Table, ChunkQuery]:
    columns = tuple((f"c{at}", kind, VALUES[kind][0], None) for at, kind in enumerate(kinds))
    found = TableDescription(columns, (UniqueIndex(PRIMARY, tuple(Part(f"c{at}") for at in range(keys))),))
    definition = found.definition("t")
    return lay_out("s", "t", definition.columns, definition.primary), ChunkQuery("d", "t", found)


def both(table: Table, query: ChunkQuery, rows: Sequence[bytes]) -> bool:
    """Make the READs both ways, and return whether the core made them."""

    def read(raw: bytes) -> Row:
        return query.row(values_of(raw))

    rows_as = compiled_rows(table, "s", "", query.cells, compiled_fields(table.schema), read, copied=True)
    compiled = copied_rows(rows_as, "text", rows, SNAPSHOT, NOW)
    try:
        plain = plain_reads(table, "s", rows, read)
    except RelayError:
        assert compiled is None  # I8: plain Python says what is wrong
        return False
    if compiled is not None:
        compare(table, plain, compiled)
    return compiled is not None


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_selected_rows_give_the_same_reads_and_records(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
    kinds = [*keys, *data.draw(st.lists(st.sampled_from(list(VALUES)), max_size=4))]
    table, query = laid_out(kinds, len(keys))
    rows = []
    for _ in range(data.draw(st.integers(0, 4))):
        row = [
            data.draw(VALUES[kind][1] if at < len(keys) else st.one_of(st.none(), *[VALUES[kind][1]] * 6, _odd))
            for at, kind in enumerate(kinds)
        ]
        # Columns of the key that are selected once more, to be compared.
        rows.append(packet([*row, *(b"1" for kind in keys if kind.startswith("enum"))]))
    both(table, query, rows)


@settings(deadline=None, max_examples=examples(50))
@given(st.data())
def test_usual_values_of_every_type_are_in_a_block(data: st.DataObject) -> None:
    kinds = ["bigint", *VALUES]
    table, query = laid_out(kinds, 1)
    assert both(table, query, [packet([data.draw(VALUES[kind][1]) for kind in kinds]) for _ in range(2)])


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=5))
def test_a_packet_has_the_values_of_its_row(values: list[bytes | None]) -> None:
    assert values_of(packet(values)) == tuple(values)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_row_that_is_cut_off_is_not_a_row(cut: int) -> None:
    table, query = laid_out(["bigint", "varchar(20)"], 1)
    raw = packet([b"17", b"hello"])[:-cut]
    with pytest.raises(IndexError):
        values_of(raw)
    rows_as = compiled_rows(table, "s", "", query.cells, compiled_fields(table.schema), lambda _: (1, ""), copied=True)
    assert copied_rows(rows_as, "text", [raw], SNAPSHOT, NOW) is None
