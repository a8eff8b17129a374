"""Values that VStream sends from binlogs, from copies and from older servers, and the carried values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config.protection import NOT_SHOWN, ColumnRule
from relay.errors import RelayError
from relay.mysql_dialect.charsets import NotText
from relay.mysql_dialect.tables import Table, lay_out
from relay.table import Column
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.rows import PartialRow, Uncarried, decoder
from tests.vitess.reading import layout
from tests.vitess.scripted import made

# What is written as Go quotes it, which Vitess does in documents of the binlog, as JSON.
JSON_TEXT = r'"\u0001\u007f\u0007\u000b\n\" \\x01 ' + "\U000e0001" + r' \u200b"'
_ID = pb.Field(name="id", type=265, flags=2, charset=63, column_type="bigint(20)")


def value(column_type: str, raw: bytes, *, charset: int = 45, copied: bool = False, text: bool = True) -> Any:
    column = pb.Field(name="v", charset=charset, column_type=column_type)
    event = pb.FieldEvent(table_name="t", fields=[_ID, column], enum_set_string_values=text)
    found = decoder(event, layout, copied=copied)
    assert found is not None
    row = found.decode(made([b"1", raw]))
    assert row[0] == 1
    return row[1]


@pytest.mark.parametrize(
    ("column_type", "raw", "carried"),
    [
        ("tinyint(1)", b"1", 1),
        ("bigint(20) unsigned", b"18446744073709551615", 18446744073709551615),
        ("int(8) unsigned zerofill", b"00000042", 42),
        ("decimal(30,10)", b"-12345678901234567890.0123456789", Decimal("-12345678901234567890.0123456789")),
        ("decimal(12,0)", b"0", Decimal(0)),
        ("float", b"3.99E+00", 3.99),
        ("float", b"3.99", 3.99),
        ("float(10,2) unsigned", b"1.5E+00", 1.5),
        ("double", b"1E+300", 1e300),
        ("date", b"0000-00-00", "0000-00-00"),
        ("datetime(6)", b"2024-02-29 23:59:59.123456", "2024-02-29 23:59:59.123456"),
        ("time(2)", b"-838:59:59.00", "-838:59:59.00"),
        ("timestamp(3)", b"2024-01-01 00:00:00.125", 1704067200125000),
        ("timestamp", b"1970-01-01 00:00:01", 1000000),
        ("timestamp(6)", b"0000-00-00 00:00:00.000000", 0),
        ("year(4)", b"2024", 2024),
        ("year(4)", b"0000", 0),
        ("char(4)", b"a", "a"),
        ("json", b'{"a": 1.50}', '{"a": 1.50}'),
        ("json", rb'"\x01\x7f\a\v\n\" \\x01 \U000e0001 \u200b"', JSON_TEXT),
        ("json", rb'{"\x1f": "a"}', r'{"\u001f": "a"}'),
        ("longtext", b'{"a": 1.50}', '{"a": 1.50}'),
        ("longtext", rb'"\x01"', r'"\x01"'),
        ("binary(4)", b"ab", b"ab\0\0"),
        ("binary(4)", b"ab\0\0", b"ab\0\0"),
        ("varbinary(4)", b"ab\0", b"ab\0"),
        ("longblob", b"\0\xff", b"\0\xff"),
        ("bit(9)", b"\x01\x55", b"\x01\x55"),
        ("bit(9)", b"\x55", b"\0\x55"),
        ("uuid", bytes.fromhex("123e4567e89b12d3a45642665544"), bytes.fromhex("123e4567e89b12d3a456426655440000")),
        ("inet6", bytes(15) + b"\x01", bytes(15) + b"\x01"),
        ("inet4", b"\x0a", b"\x0a\0\0\0"),
        ("point", b"\0\0\0\0\x01", b"\0\0\0\0\x01"),
        ("geometrycollection", b"\0", b"\0"),
        ("enum('a','it''s, b','c\\\\d')", b"it's, b", "it's, b"),
        ("enum('a','it''s, b','c\\\\d')", b"c\\d", "c\\d"),
        ("enum('a')", b"", ""),
        ("set('x','y','z')", b"x,z", ["x", "z"]),
        ("set('x','y')", b"", []),
    ],
)
def test_each_type_is_carried_exactly(column_type: str, raw: bytes, carried: Any) -> None:
    found = value(column_type, raw)
    assert found == carried
    assert type(found) is type(carried)


@pytest.mark.parametrize(
    ("column_type", "raw", "carried"),
    [
        ("enum('a','1','c')", b"1", "a"),
        ("enum('a','1','c')", b"0", ""),
        ("set('x','y','z')", b"5", ["x", "z"]),
        ("set('x','y','z')", b"0", []),
    ],
)
def test_numbers_of_enum_and_set_members_are_decoded_to_the_members(column_type: str, raw: bytes, carried: Any) -> None:
    assert value(column_type, raw, text=False) == carried


def test_text_is_decoded_by_the_character_set_of_its_column() -> None:
    assert value("varchar(9)", "café €\x81".encode("cp1252", "ignore") + b"\x81", charset=8) == "café €\x81"
    assert value("text", "é表".encode("utf-16-be"), charset=54) == "é表"
    assert value("varchar(9)", "é表".encode(), charset=0) == "é表"  # a collation that Vitess does not know
    assert value("enum('café')", "café".encode("cp1252"), charset=8, copied=True) == "café"
    assert value("enum('café')", "café".encode(), charset=8) == "café"


def test_a_uuid_or_address_decodes_to_the_same_bytes_from_select_and_binlog() -> None:
    assert value("uuid", b"123e4567-e89b-12d3-a456-426655440000", copied=True) == value(
        "uuid", bytes.fromhex("123e4567e89b12d3a45642665544")
    )
    assert value("inet6", b"::1", copied=True) == bytes(15) + b"\x01"
    assert value("inet4", b"10.0.0.0", copied=True) == b"\x0a\0\0\0"


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize(("collation", "kind"), [(25, "varchar(9)"), (45, "text"), (0, "char(4)")])
def test_bytes_that_are_not_text_are_kept_as_such(collation: int, kind: str, copied: bool) -> None:
    """I8: from the binlog and from a copy. `relay.mysql_dialect` decides what becomes of the row."""
    event = pb.FieldEvent(table_name="t", fields=[_ID, pb.Field(name="v", charset=collation, column_type=kind)])
    found = decoder(event, layout, copied=copied)
    assert found is not None
    odd, plain = found.decode(made([b"1", b"a\xff"])), found.decode(made([b"1", b"a"]))
    assert (odd, type(odd[1]), plain) == ((1, b"a\xff"), NotText, (1, "a"))


@pytest.mark.parametrize(
    ("column_type", "raw"),
    [
        ("int(11)", b"x"),
        ("json", b"\xff"),
        ("decimal(5,2)", b"abc"),
        ("enum('a')", b"b"),
        ("set('a','b')", b"a,c"),
        ("timestamp", b"2024-13-01 00:00:00"),
    ],
)
def test_an_invalid_value_is_refused_with_its_column(column_type: str, raw: bytes) -> None:
    column = pb.Field(name="v", charset=45, column_type=column_type)
    event = pb.FieldEvent(table_name="t", fields=[_ID, column], enum_set_string_values=True)
    found = decoder(event, layout)
    assert found is not None
    with pytest.raises(Uncarried, match=r"^column v: "):
        found.decode(made([b"1", raw]))


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pb.Field(name="v", column_type="xmltype"), "xmltype cannot be carried"),
        (pb.Field(name="@2", type=6165), "--track-schema-versions"),
        (pb.Field(name="v", type=6165), "dropped or renamed"),
        (pb.Field(name="v", column_type="varchar(20) /*M!100301 COMPRESSED*/"), "compressed"),
        (pb.Field(name="v", column_type="set('','a')"), "empty member"),
        (pb.Field(name="v", column_type=f"set({','.join(repr(str(n)) for n in range(64))})"), "64th member"),
        (pb.Field(name="v", column_type="varchar(20)", charset=9999), "collation 9999"),
    ],
)
def test_a_column_that_cannot_be_carried_is_refused_with_its_table(column: pb.Field, why: str) -> None:
    event = pb.FieldEvent(table_name="t", fields=[_ID, column], enum_set_string_values=True)
    with pytest.raises(RelayError, match=rf"table t: column {column.name}.*{why}"):
        decoder(event, layout)


def test_a_float_cannot_be_copied_because_select_rounds_it() -> None:
    with pytest.raises(RelayError, match="column v float: SELECT rounds"):
        value("float", b"3.99", copied=True)


@given(
    values=st.lists(
        st.tuples(st.none() | st.integers(), st.none() | st.text(), st.none() | st.binary()), min_size=1, max_size=5
    )
)
def test_rows_with_values_of_any_length_and_nulls_survive_a_round_trip(values: list[tuple[Any, ...]]) -> None:
    columns = [(f"{kind}{at}", kind) for at in range(len(values)) for kind in ("bigint", "text", "blob")]
    event = pb.FieldEvent(
        table_name="t", fields=[_ID, *(pb.Field(name=name, charset=45, column_type=kind) for name, kind in columns)]
    )
    found = decoder(event, layout)
    assert found is not None
    flat = [value for row in values for value in row]
    raw = [
        v if v is None or isinstance(v, bytes) else str(v).encode() if isinstance(v, int) else v.encode() for v in flat
    ]
    assert found.decode(made([b"7", *raw])) == (7, *flat)


def test_the_flags_of_fields_give_the_primary_key() -> None:
    columns = [
        pb.Field(name="a", column_type="int(11)"),
        pb.Field(name="b", column_type="int(11)", flags=53251),
        pb.Field(name="c", column_type="datetime(3)", flags=16387),
    ]
    found = decoder(pb.FieldEvent(table_name="t", fields=columns), layout)
    assert found is not None
    assert [(column.name, column.has_decimals) for column in found.table.schema.key] == [("b", False), ("c", True)]


def test_a_table_that_is_not_wanted_has_no_decoder() -> None:
    assert decoder(pb.FieldEvent(table_name="t", fields=[_ID]), lambda *_: None) is None


def _old(*values: bytes | None, kind: str = "varchar(20)", prose: str = "mediumtext") -> Any:
    """Decode an old row of id, ``name`` NOT NULL, ``prose`` NOT NULL and ``free``, which are of these types."""
    columns = [
        pb.Field(name="id", flags=3, column_type="bigint(20)"),
        pb.Field(name="name", flags=1, charset=45, column_type="varchar(20)"),
        pb.Field(name="prose", flags=1, charset=45, column_type=prose),
        pb.Field(name="free", charset=45, column_type=kind),
    ]
    found = decoder(pb.FieldEvent(table_name="t", fields=columns), layout)
    assert found is not None
    return found.before(made(values))


@pytest.mark.parametrize("values", [(b"1", None, None, None), (b"1", b"a", None, b"b"), (b"1", b"a", None, None)])
def test_a_partly_logged_old_row_is_told_from_a_row_with_null(values: tuple[bytes | None, ...]) -> None:
    """I1: MINIMAL and NOBLOB omit columns, which then arrive as NULL."""
    with pytest.raises(PartialRow):
        _old(*values)


@pytest.mark.parametrize("prose", ["tinytext", "longblob", "json", "multipolygon", "vector(3)"])
def test_noblob_is_told_by_any_type_that_it_leaves_out(prose: str) -> None:
    """I1. MySQL keeps VECTOR as it keeps BLOB."""
    with pytest.raises(PartialRow):
        _old(b"1", b"a", None, b"b", prose=prose)


def test_nulls_of_an_old_row_are_carried_in_a_column_that_became_not_null_later() -> None:
    assert _old(b"1", b"a", b"b", None) == (1, "a", "b", None)
    assert _old(b"1", b"a", b"b", b"c") == (1, "a", "b", "c")
    assert _old(b"1", None, b"b", None) == (1, None, "b", None)
    # Under NOBLOB the other text would be missing too.
    assert _old(b"1", b"a", None, b"c", kind="text") == (1, "a", None, "c")


def test_a_table_with_protected_columns_shows_no_value_that_cannot_be_carried() -> None:
    def protected(name: str, columns: Any, primary: Any) -> Table:
        return lay_out("shop", name, columns, primary, rules={"v": ColumnRule("mask")})

    column = pb.Field(name="v", charset=63, column_type="int(11)")
    for copied in (False, True):
        event = pb.FieldEvent(table_name="t", fields=[_ID, column], enum_set_string_values=True)
        found = decoder(event, protected, copied=copied)
        assert found is not None
        with pytest.raises(Uncarried) as refused:
            found.decode(made([b"1", b"s3cr3t"]))
        assert str(refused.value) == f"column v: {NOT_SHOWN}"
        assert found.table.schema.row == (Column("id", "long"), Column("v", "string"))
        assert found.decode(made([b"1", b"7"])) == (1, 7), "what is published is decided by relay.mysql_dialect"
