"""Protected columns of SQL tables: no change has a value of one, whatever becomes of the change."""

from __future__ import annotations

import hmac
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from relay.avro.schema import change_schema
from relay.change import Snapshot, Uncarriable
from relay.config.protection import NOT_SHOWN, ColumnRule
from relay.errors import ConfigError, RelayError
from relay.mysql_dialect.changes import TransactionChanges
from relay.mysql_dialect.charsets import NotText
from relay.mysql_dialect.protection import check_first, check_followed, check_protected
from relay.mysql_dialect.snapshot_times import reads
from relay.mysql_dialect.statement_text import shown
from relay.mysql_dialect.tables import lay_out
from relay.table import Column

SALT = "pepper"
RULES = {"ssn": ColumnRule("exclude"), "phone": ColumnRule("mask"), "EMAIL": ColumnRule("hash", SALT)}
COLUMNS = [Column(name, kind) for name, kind in (("ssn", "string"), ("id", "int"), ("phone", "long"),
                                                  ("email", "string"), ("note", "string"))]  # fmt: skip
TABLE = lay_out("s", "t", COLUMNS, ["id"], rules=RULES)


def hashed(text: bytes) -> str:
    return hmac.digest(SALT.encode(), text, "sha256").hex()


def test_bytes_that_are_not_text_are_not_shown() -> None:
    """Those of a protected column are replaced like any other value."""
    changes = TransactionChanges("s", "s/k/-")
    changes.begin("0-1-1", "MariaDB/0-1-1", 100)
    odd = NotText(b"s3cr3t\xff")
    changes.row_of(TABLE)(TABLE, None, (odd, 1, odd, odd, "a"))
    changes.row_of(TABLE)(TABLE, None, (odd, 2, odd, odd, odd))
    changes.end()
    first, second = changes.take()
    assert first.new == {"id": 1, "phone": "***", "email": hashed(b"\xff" + odd), "note": "a"}
    assert isinstance(second.new, Uncarriable)
    assert second.new.reason == f"column 'note': {NOT_SHOWN}"


def test_changes_and_copied_rows_have_no_value_of_a_protected_column() -> None:
    changes = TransactionChanges("s", "s/k/-")
    changes.begin("0-1-1", "MariaDB/0-1-1", 100)
    before, after = ("123", 1, 555, "ada@x", "a"), ("456", 1, None, None, "a")
    changes.row_of(TABLE)(TABLE, None, before)
    changes.row_of(TABLE)(TABLE, before, after)
    changes.row_of(TABLE)(TABLE, after, None)
    changes.end()
    first = {"id": 1, "phone": "***", "email": hashed(b"ada@x"), "note": "a"}
    last = {"id": 1, "phone": None, "email": None, "note": "a"}
    assert [(change.old, change.new) for change in changes.take()] == [(None, first), (first, last), (last, None)]
    (read,) = reads("s", TABLE, [before], Snapshot("s1", 5), 9.0)
    assert read.new == first


def test_the_schema_says_which_columns_are_protected() -> None:
    schema = change_schema(TABLE.schema)
    assert schema["relay.protected"] == {"ssn": "exclude", "phone": "mask", "email": "hash"}
    row = next(field["type"][1] for field in schema["fields"] if field["name"] == "old")
    assert [(field["name"], field["relay.type"]) for field in row["fields"]] == [
        ("id", "int"),
        ("phone", "string"),
        ("email", "string"),
        ("note", "string"),
    ]
    masked = lay_out("s", "t", COLUMNS, ["id"], rules={**RULES, "EMAIL": ColumnRule("mask")})
    other = next(field["type"][1] for field in change_schema(masked.schema)["fields"] if field["name"] == "old")
    assert row["name"] != other["name"], "a reader could not tell a hash from a mask"
    assert "relay.protected" not in change_schema(lay_out("s", "t", COLUMNS, ["id"]).schema)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (Column("v", "string"), "naïve", "naïve".encode()),
        (Column("v", "int"), -7, b"-7"),
        (Column("v", "decimal(20,0)"), 18446744073709551615, b"18446744073709551615"),
        (Column("v", "decimal(5,2)"), Decimal("1.50"), b"1.5"),
        (Column("v", "decimal(6,3)"), Decimal("1.500"), b"1.5"),
        (Column("v", "decimal(65,0)"), Decimal("9" * 65), b"9" * 65),
        (Column("v", "decimal(5,2)"), Decimal("-0.00"), b"0"),
        (Column("v", "double"), 0.1, b"0.1"),
        (Column("v", "double"), -0.0, b"0"),
        (Column("v", "double"), 1e22, b"10000000000000000000000"),
        (Column("v", "string"), NotText(b"\xc3\xa9"), b"\xff\xc3\xa9"),  # in another character set, not an é
        (Column("v", "bytes"), b"\0\xff", b"\0\xff"),
        (Column("v", "set"), ["a", "b"], b"a,b"),
        (Column("v", "timestamp"), 1704067200125000, b"2024-01-01 00:00:00.125000"),
        (Column("v", "string", sql="datetime"), "2024-01-01 00:00:00.500", b"2024-01-01 00:00:00.5"),
        (Column("v", "string", sql="datetime"), "2024-01-01 10:00:00", b"2024-01-01 10:00:00"),
    ],
)
def test_a_hash_is_of_the_same_text_for_equal_values(column: Column, value: Any, text: bytes) -> None:
    """Also after the column's type got more digits or decimals."""
    table = lay_out("s", "t", [Column("id", "int"), column], ["id"], rules={"v": ColumnRule("hash", SALT)})
    assert table.replaced["v"](value) == hashed(text)


@pytest.mark.parametrize("options", [{}, {"key": ["note"]}, {"hash_key": ["id"]}])
def test_a_column_of_the_key_or_of_the_primary_key_has_no_rule(options: Any) -> None:
    with pytest.raises(ConfigError, match=r"source s: `protect\.t\.id`: it is part of the key"):
        lay_out("s", "t", COLUMNS, ["id"], rules={"Id": ColumnRule("mask")}, **options)
    with pytest.raises(ConfigError, match=r"`protect\.t\.note`"):
        lay_out("s", "t", COLUMNS, ["id"], hash_key=["note"], rules={"note": ColumnRule("exclude")})


def test_a_rule_of_a_column_that_the_table_does_not_have_is_refused() -> None:
    check_protected("s", {"t": RULES, "u": {"a": ColumnRule("mask", may_be_absent=True)}}, [TABLE.schema])
    with pytest.raises(ConfigError, match=r"source s: there is no table u, which `protect\.u\.a` names"):
        check_protected("s", {"u": {"a": ColumnRule("mask")}}, [TABLE.schema])
    check_protected("s", {"t": {"snn": ColumnRule("mask", may_be_absent=True)}}, [TABLE.schema])
    with pytest.raises(ConfigError, match=r"source s: table t has no column snn, which `protect\.t\.snn` names"):
        check_protected("s", {"t": {"snn": ColumnRule("mask")}}, [TABLE.schema])


def test_a_protected_column_that_may_have_been_renamed_ends_the_stream() -> None:
    def followed_by(*names: str) -> None:
        columns = [Column(name, "string") for name in names]
        check_followed(TABLE.schema, lay_out("s", "t", columns, ["id"], rules=RULES).schema)

    everything = ("ssn", "id", "phone", "email", "note")
    followed_by(*everything, "added")
    followed_by(*everything[1:])
    followed_by("id", "note")
    for gone in ("ssn", "phone", "email"):
        with pytest.raises(RelayError, match=f"no longer has column {gone}.*has the new column added"):
            followed_by(*(name for name in (*everything, "added") if name != gone))


def test_the_first_columns_of_a_stream_may_lack_a_protected_one_only_if_its_rule_says_so() -> None:
    """They may be earlier than those that the table has now, or later."""
    old = lay_out("s", "t", [Column("id", "int"), Column("note", "string"), Column("old", "string")], ["id"]).schema
    absent = {name: replace(rule, may_be_absent=True) for name, rule in RULES.items()}
    check_first(TABLE.schema, absent, old)
    check_first(TABLE.schema, RULES, TABLE.schema)
    one = {"ssn": RULES["ssn"], "tax_id": replace(RULES["ssn"], may_be_absent=True)}
    now = lay_out("s", "t", [Column("id", "int"), Column("ssn", "string")], ["id"], rules=one).schema
    columns = [Column("id", "int"), Column("tax_id", "string"), Column("old", "string")]
    check_first(now, one, lay_out("s", "t", columns, ["id"], rules=one).schema)  # ssn was called tax_id then
    with pytest.raises(RelayError, match=r"column email.*the new column old"):
        check_first(TABLE.schema, RULES, old)
    with pytest.raises(RelayError, match=r"column phone.*the new column old"):
        check_first(TABLE.schema, {**absent, "phone": RULES["phone"]}, old)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("ALTER TABLE orders2 DROP PARTITION p0", "ALTER TABLE orders2 DROP PARTITION p0"),
        ("INSERT INTO t1 VALUES (123, 'x')", "INSERT INTO t1 VALUES (..."),
        ("UPDATE `t` SET a = 'secret'", "UPDATE `t` SET a = ..."),
        ('UPDATE t SET a="secret"', "UPDATE t SET a=..."),
        ("UPDATE t SET a=x'00'", "UPDATE t SET a=x..."),
        ("UPDATE t SET a=.5", "UPDATE t SET a=..."),
        ("DROP TABLE " + "a" * 300, "DROP TABLE " + "a" * 189 + "..."),
    ],
)
def test_a_message_shows_a_statement_up_to_its_first_value(sql: str, said: str) -> None:
    assert shown(sql) == said
