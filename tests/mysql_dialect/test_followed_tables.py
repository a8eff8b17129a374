"""What is known of tables from statement to statement, and what is published of each. I8: nothing is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from relay.change import StatementText
from relay.config.protection import ColumnRule
from relay.gtid import parse
from relay.mysql_dialect.altered import Shape
from relay.mysql_dialect.followed_tables import TablesNow
from relay.mysql_dialect.statement_text import BRACKETS
from relay.mysql_dialect.statements import classify
from relay.table import Column
from tests.mysql_dialect.followed import ALL, Followed, shown


@pytest.mark.parametrize("copied", ["LIKE ITEMS", "LIKE Shop.Items", "(LIKE Items)", "( LIKE SHOP . `ITEMS` )"])
def test_a_copied_table_is_found_in_any_case_where_the_server_has_names_in_lower_case(copied: str) -> None:
    followed = Followed()
    followed.read()
    applied = followed.apply(f"CREATE TABLE New {copied}", lower_case=True)
    assert applied is not None
    assert [shown(table) for table in applied.tables] == [("new", None, None, ALL)]


def test_a_copied_table_without_a_database_is_one_of_the_database_in_which_the_statement_was_executed() -> None:
    """I8."""
    followed = Followed()
    followed.read()
    applied = followed.apply("CREATE TABLE shop.new LIKE items", database="other")
    assert applied is not None
    assert [shown(table) for table in applied.tables] == [("new", None, None, "?")]


def test_what_follows_from_rows_and_statements_is_known_and_nothing_else() -> None:
    followed = Followed()
    assert followed.tables_of("ALTER TABLE items ADD a INT") == [("items", None, "?", "?")]
    followed.read()
    assert followed.tables_of("ALTER TABLE items ADD a INT") == [("items", None, ALL, f"{ALL} a")]
    assert followed.tables_of("ALTER TABLE items ADD b INT AS (id)") == [("items", None, f"{ALL} a", "?")]
    assert followed.tables_of("DROP TABLE IF EXISTS items") == [("items", None, "?", None)]
    assert followed.tables_of("CREATE TABLE items (id INT PRIMARY KEY)") == [("items", None, None, "id")]
    assert followed.tables_of("TRUNCATE items") == [("items", None, "id", "id")]


def test_how_columns_are_known_is_said() -> None:
    followed = Followed()
    followed.read()
    kinds = []
    for sql in ("ALTER TABLE items ADD a INT", "CREATE INDEX i ON items (name)", "ALTER TABLE items ADD COLUMN b REAL"):
        applied = followed.apply(sql)
        assert applied is not None
        kinds.append((applied.kind, applied.tables[0].before_by, applied.tables[0].after_by))
    assert kinds == [("ALTER", "rows", "statement"), ("INDEX", "statement", "statement"), ("ALTER", "statement", None)]


def test_rows_after_a_statement_that_is_not_understood_are_believed_also_if_their_layout_stayed() -> None:
    followed = Followed()
    followed.read()
    followed.apply("ALTER TABLE items ADD SYSTEM VERSIONING")
    assert "items" not in followed.tables.layouts
    followed.read()
    assert followed.tables_of("TRUNCATE items") == [("items", None, ALL, ALL)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "ALTER TABLE x.items ADD a INT",
        "DROP TEMPORARY TABLE items",
        "CREATE TEMPORARY TABLE items (id INT)",
        "DROP DATABASE x",
        "CREATE VIEW items AS SELECT 1",
        "CREATE TRIGGER t BEFORE INSERT ON items FOR EACH ROW SET @a = 1",
        "GRANT SELECT ON items TO a",
        "RENAME TABLE other TO another, x.items TO y.items",
        "SET PASSWORD = 'x'",
        "/* ALTER TABLE items ADD a INT */ ANALYZE TABLE items",
    ],
)
def test_a_statement_that_changes_no_relayed_table_is_left_out(sql: str) -> None:
    followed = Followed()
    followed.read()
    assert followed.apply(sql) is None
    assert followed.tables_of("TRUNCATE items") == [("items", None, ALL, ALL)]


def test_several_tables_are_renamed_and_dropped_in_their_order() -> None:
    followed = Followed()
    followed.read()
    followed.apply("CREATE TABLE new (id INT PRIMARY KEY)")
    assert followed.tables_of("RENAME TABLE items TO tmp, `new` TO items, tmp TO /* back */ shop.new") == [
        ("items", "tmp", ALL, ALL),
        ("new", "items", "id", "id"),
        ("tmp", "new", ALL, ALL),
    ]
    assert followed.tables_of("DROP TABLE other, items, `x`.`new`, new") == [
        ("items", None, "id", None),
        ("new", None, ALL, None),
    ]


def test_a_table_that_leaves_the_database_and_comes_back_is_no_longer_known() -> None:
    followed = Followed()
    followed.read()
    assert followed.tables_of("RENAME TABLE items TO x.items") == [("items", "x.items", ALL, ALL)]
    assert followed.tables_of("RENAME TABLE x.items TO items") == [("x.items", "items", "?", "?")]


def test_a_table_that_is_altered_and_renamed_at_once_shows_both() -> None:
    followed = Followed()
    followed.read()
    assert followed.tables_of("ALTER TABLE items DROP ssn, RENAME AS new") == [("items", "new", ALL, "id name")]
    followed.apply("ALTER TABLE new RENAME old")
    assert followed.tables_of("ALTER TABLE old ADD a INT, RENAME items") == [("old", "items", "id name", "id name a")]


def test_the_shadow_table_of_an_online_change_gives_the_columns_after_its_exchange() -> None:
    """As gh-ost and pt-online-schema-change do it; neither shadow is relayed."""
    followed = Followed()
    followed.read()
    assert followed.tables_of("create /* gh-ost */ table `shop`.`_items_gho` like `shop`.`items`") == []
    assert followed.tables_of("alter table `shop`.`_items_gho` add a int") == []
    assert followed.tables_of("rename table `shop`.`items` to `_items_del`, `shop`.`_items_gho` to `shop`.`items`") == [
        ("items", "_items_del", ALL, ALL),
        ("_items_gho", "items", f"{ALL} a", f"{ALL} a"),
    ]
    assert followed.tables_of("drop table _items_del") == []


def test_a_shadow_table_that_is_not_seen_leaves_the_columns_unknown() -> None:
    followed = Followed()
    followed.read()
    assert followed.tables_of("rename table items to _vt_swap, _vt_vrp to items") == [
        ("items", "_vt_swap", ALL, ALL),
        ("_vt_vrp", "items", "?", "?"),
    ]


def test_a_database_is_dropped_with_all_its_tables() -> None:
    followed = Followed()
    followed.read()
    applied = followed.apply("DROP DATABASE shop", ("items", "new"))
    assert applied is not None
    assert applied.kind == "DROP DATABASE"
    assert [shown(table) for table in applied.tables] == [("items", None, ALL, None), ("new", None, "?", None)]


def test_a_table_that_is_created_if_it_is_not_there_may_be_another_one() -> None:
    followed = Followed()
    create = "CREATE TABLE IF NOT EXISTS items (id INT PRIMARY KEY)"
    assert followed.tables_of(create) == [("items", None, "?", "?")]
    followed.read()
    assert followed.tables_of(create) == [("items", None, ALL, ALL)]
    followed.apply("DROP TABLE items")
    assert followed.tables_of(create) == [("items", None, None, "id")]
    assert followed.tables_of("CREATE OR REPLACE TABLE items (a INT PRIMARY KEY)") == [("items", None, "id", "a")]


def test_text_is_not_taken_for_text_where_a_table_may_be_binary() -> None:
    followed = Followed(text=None)
    followed.read()
    assert followed.tables_of("ALTER TABLE items ADD a INT") == [("items", None, ALL, f"{ALL} a")]
    assert followed.tables_of("ALTER TABLE items ADD b TEXT") == [("items", None, f"{ALL} a", "?")]
    created = followed.apply("CREATE OR REPLACE TABLE items (id INT PRIMARY KEY, b CHAR(3)) CHARSET=binary")
    assert created is not None
    assert created.tables[0].after is not None
    assert [column.type for column in created.tables[0].after.columns] == ["int", "bytes"]


def test_what_the_server_says_counts_for_statements_that_began_later_once_all_before_is_read() -> None:
    """I8"""

    def followed(*, said: str = "", executed: int = 10, at: int = 1002) -> Any:
        followed = Followed()
        followed.tables.look(TablesNow({"items": Shape((Column("id", "int"),), ("id",))}, parse("0-1-10"), 1000.5))
        if said:
            followed.tables.begin(classify(said, "shop"), parse("0-1-5"), 900)
            followed.apply(said)
        followed.tables.begin(classify("TRUNCATE items", "shop"), parse(f"0-1-{executed}"), at)
        applied = followed.apply("TRUNCATE items")
        assert applied is not None
        return applied.tables[0].before_by

    assert followed() == "database"
    assert followed(executed=9) is None
    assert followed(at=1001) is None
    assert followed(said="ALTER TABLE items ADD b INT") is None
    assert followed(said="CREATE INDEX i ON items (id)") is None
    assert followed(said="RENAME TABLE other TO items") is None
    assert followed(said="DROP DATABASE shop") is None
    assert followed(said="ALTER TABLE other ADD b INT") == "database"


def test_a_statement_that_writes_a_name_in_another_case_may_be_about_the_table() -> None:
    """I8: some servers ignore the case of names."""
    followed = Followed()
    followed.read()
    followed.apply("ALTER TABLE Items ADD a INT")
    assert followed.tables_of("TRUNCATE items") == [("items", None, "?", "?")]
    followed.tables.look(TablesNow({"items": Shape((Column("id", "int"),), ("id",))}, parse("0-1-10"), 1000.0))
    followed.tables.begin(classify("ALTER TABLE ITEMS ADD b INT", "shop"), parse("0-1-9"), 900)
    followed.tables.begin(classify("TRUNCATE items", "shop"), parse("0-1-10"), 1002)
    assert followed.tables_of("TRUNCATE items") == [("items", None, "?", "?")]


def test_rows_say_more_than_the_server() -> None:
    followed = Followed()
    followed.tables.look(TablesNow({"items": Shape((Column("id", "int"),), ("id",))}, parse("0-1-10"), 1000.0))
    followed.read()
    followed.tables.begin(classify("TRUNCATE items", "shop"), parse("0-1-10"), 1002)
    assert followed.tables_of("TRUNCATE items") == [("items", None, ALL, ALL)]


def test_a_table_that_is_created_was_not_there() -> None:
    followed = Followed()
    assert followed.tables_of("CREATE TABLE items (id INT PRIMARY KEY)") == [("items", None, None, "id")]
    assert followed.tables_of("CREATE OR REPLACE TABLE new (id INT PRIMARY KEY)") == [("new", None, "?", "id")]
    followed.apply("CREATE TABLE x.items (a INT PRIMARY KEY)")
    assert followed.tables_of("TRUNCATE items") == [("items", None, "id", "id")]


def test_what_is_read_again_is_followed_again() -> None:
    followed = Followed()
    followed.read()
    followed.tables.keep()
    sql = "ALTER TABLE items ADD a INT"
    first = followed.tables.apply(classify(sql, "shop"), sql, False)
    followed.tables.undo()
    assert followed.tables.apply(classify(sql, "shop"), sql, False) == first
    followed.tables.keep()
    followed.tables.undo()
    assert followed.tables_of("TRUNCATE items") == [("items", None, f"{ALL} a", f"{ALL} a")]


def test_statements_about_protected_columns_are_masked_as_the_session_reads_them() -> None:
    """I8: in brackets a quote is a part of a name, and begins no literal."""
    followed = Followed({"items": {"ssn": ColumnRule("exclude")}})
    followed.read()
    sql = "ALTER TABLE items CHANGE [a'b] x VARCHAR(9) DEFAULT 'bob', DROP COLUMN [c'd]"
    applied = followed.tables.apply(classify(sql, "shop", BRACKETS), sql, BRACKETS)
    assert applied is not None
    assert applied.sql == "ALTER TABLE items CHANGE [a'b] x VARCHAR(9) DEFAULT ***, DROP COLUMN [c'd]"


def test_statements_about_protected_columns_have_no_values_and_columns_as_they_are_published() -> None:
    protect = {"items": {"ssn": ColumnRule("exclude"), "name": ColumnRule("mask")}}
    followed = Followed(protect)
    followed.read()
    applied = followed.apply("ALTER TABLE items MODIFY name INT DEFAULT 'bob', ADD a VARCHAR(9) DEFAULT 'bob' -- bob")
    assert applied is not None
    assert applied.text is StatementText.WITHOUT_VALUES
    assert applied.sql == "ALTER TABLE items MODIFY name INT DEFAULT ***, ADD a VARCHAR(9) DEFAULT ***"
    (table,) = applied.tables
    assert table.after is not None
    assert table.after.columns == (Column("id", "long"), Column("name", "string"), Column("a", "string"))
    assert dict(table.after.protected) == {"ssn": "exclude", "name": "mask"}
    # Another table's statement may have them too.
    copied = followed.apply("CREATE TABLE new (id INT PRIMARY KEY, a INT DEFAULT 5) COMMENT 'of bob'")
    assert copied is not None
    assert copied.sql == "CREATE TABLE new (id INT PRIMARY KEY, a INT DEFAULT ***) COMMENT ***"


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """I11"""
    monkeypatch.setattr("relay.mysql_dialect.followed_tables._KEPT", 50)
    followed = Followed()
    for n in range(200):
        followed.apply(f"CREATE TABLE t{n} (id INT PRIMARY KEY)")
    assert len(followed.tables._known) <= 51


def test_a_table_that_was_there_when_it_is_created_was_removed_without_a_statement() -> None:
    """I1: a CREATE TABLE fails while there is one."""
    plain = "CREATE TABLE items (id INT PRIMARY KEY)"

    def gone(sql: str) -> list[str]:
        return followed.tables.gone_unseen(classify(sql, "shop"))

    followed = Followed()
    assert gone(plain) == []  # whether it was there is not known
    followed.read()
    others = ("other.items", "IF NOT EXISTS items", "new")
    for sql in (*(plain.replace("items", other) for other in others), plain.replace("TABLE", "TEMPORARY TABLE")):
        assert gone(sql) == [], sql
    assert gone(plain.replace("CREATE", "CREATE OR REPLACE")) == []
    assert gone(plain) == ["items"]
    followed.apply(plain)
    assert gone(plain) == ["items"]
    for sql in ("DROP TABLE items", "RENAME TABLE items TO other.items", "DROP DATABASE shop"):
        followed.apply(sql)
        assert gone(plain) == [], sql
        followed.apply(plain)
