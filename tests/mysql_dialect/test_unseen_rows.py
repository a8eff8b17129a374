"""Which statements may change rows that no change shows, and which tables are read again after them."""

from __future__ import annotations

import pytest

from relay.gtid import parse
from relay.mysql_dialect.altered import Shape
from relay.mysql_dialect.followed_tables import TablesNow
from relay.mysql_dialect.statements import classify
from relay.mysql_dialect.tables import lay_out
from relay.table import Column
from tests.mysql_dialect.followed import ITEMS, Followed


def unseen(followed: Followed, sql: str, sql_mode: int = 1 << 21) -> dict[str, str]:
    """Return the relayed tables whose rows a statement of a strict session may have changed unseen, with the reason."""
    applied = followed.tables.apply(classify(sql, "shop"), sql, sql_mode)
    followed.tables.keep()
    return {} if applied is None else dict(applied.unseen)


MAY_DIFFER = {"items": "may have different values now"}


def test_a_statement_that_brings_rows_or_changes_their_values_is_told_from_one_that_keeps_them() -> None:
    """I7."""
    followed = Followed()
    assert unseen(followed, "ALTER TABLE items ADD n INT, ADD INDEX (n)") == {}
    assert unseen(followed, "ALTER TABLE items ADD n INT DEFAULT 5") == MAY_DIFFER
    assert unseen(followed, "ALTER TABLE other ADD n INT DEFAULT 5") == {}
    assert unseen(followed, "RENAME TABLE other TO new, items TO old") == {"new": "has the rows of other now"}
    assert unseen(followed, "RENAME TABLE new TO old, other TO new, new TO x") == {}
    assert unseen(followed, "ALTER TABLE other ADD n INT DEFAULT 5, RENAME new") == {"new": "has the rows of other now"}
    assert unseen(followed, "DROP TABLE items") == unseen(followed, "TRUNCATE new") == {}


def test_a_column_is_known_to_keep_its_values_only_while_its_type_is_known() -> None:
    """I7, I8."""
    followed = Followed()
    types = {"id": "bigint(20)", "name": "varchar(20)", "ssn": "char(9)"}
    shape = Shape(tuple(ITEMS), ("id",), types=types)
    followed.read()
    followed.tables.keep()
    followed.tables.look(TablesNow({"items": shape}, parse("MariaDB/0-1-5"), 1000.0))
    wider = "ALTER TABLE items MODIFY name VARCHAR(30)"
    followed.tables.begin(classify(wider, "shop"), parse("MariaDB/0-1-5"), 1002)
    assert unseen(followed, wider) == {}
    assert unseen(followed, "ALTER TABLE items MODIFY name VARCHAR(20)") == MAY_DIFFER
    followed.read()
    assert unseen(followed, "ALTER TABLE items MODIFY name VARCHAR(20)") == {}
    assert unseen(followed, wider, 0) == MAY_DIFFER
    assert unseen(followed, "ALTER TABLE items RENAME COLUMN name TO n, RENAME COLUMN ssn TO name") == MAY_DIFFER
    assert unseen(followed, "ALTER TABLE items MODIFY n TEXT, MODIFY name CHAR(9)") == {}
    assert unseen(followed, "ALTER TABLE items ADD SYSTEM VERSIONING") == MAY_DIFFER
    followed.read()
    assert unseen(followed, "ALTER TABLE items MODIFY ssn CHAR(9)") == MAY_DIFFER


@pytest.mark.parametrize(
    ("executed", "sql"), [("MariaDB/0-1-5", ""), ("MySQL56/" + f"{'a' * 8}-0000-0000-0000-{'b' * 12}:1-5", "json")]
)
def test_types_are_still_known_when_rows_with_a_new_json_are_read(executed: str, sql: str) -> None:
    """MariaDB makes a LONGTEXT of it, and its binlog shows one."""
    followed = Followed()
    created = "CREATE TABLE items (id BIGINT PRIMARY KEY, name VARCHAR(20), ssn CHAR(9))"
    more = "ALTER TABLE items ADD j JSON"
    for said in (created, more):
        followed.tables.begin(classify(said, "shop"), parse(executed), 1002)
        assert unseen(followed, said) == {}
    columns = [*ITEMS, Column("j", "string", sql)]
    followed.tables.read(lay_out("s", "items", columns, ["id"]))
    assert unseen(followed, "ALTER TABLE items MODIFY name VARCHAR(30)") == {}


def test_text_that_may_have_become_binary_is_not_known_to_keep_its_values() -> None:
    """I7."""
    followed = Followed(text=None)
    created = "CREATE TABLE items (id INT PRIMARY KEY, name VARCHAR(9) CHARACTER SET utf8mb4)"
    assert unseen(followed, created) == {}
    assert unseen(followed, "ALTER TABLE items MODIFY name VARCHAR(9)") == MAY_DIFFER


def test_a_column_that_a_generated_one_may_be_made_of_is_not_known_to_keep_the_values_of_the_row() -> None:
    """I7: only the server, or the statement that created the table, says that it has none."""
    followed = Followed()
    followed.read()
    modified = "ALTER TABLE items MODIFY name VARCHAR(20)"
    assert unseen(followed, modified) == unseen(followed, f"{modified} CHARACTER SET latin1") == MAY_DIFFER
    assert unseen(followed, "ALTER TABLE items ADD n INT") == {}
    assert unseen(followed, "ALTER TABLE items MODIFY n BIGINT") == {}  # made of it, a column would be newer
    assert unseen(followed, "ALTER TABLE items CHANGE ssn s CHAR(9) AFTER id, ADD ssn CHAR(9)") == MAY_DIFFER
    assert unseen(followed, "ALTER TABLE items DROP n, ADD n DECIMAL(10,4)") == MAY_DIFFER
    assert unseen(followed, "ALTER TABLE items MODIFY n BIGINT") == MAY_DIFFER
    for name in ("s", "ssn"):
        assert unseen(followed, f"ALTER TABLE items MODIFY {name} CHAR(9) CHARACTER SET latin1") == MAY_DIFFER


def test_a_statement_that_changed_rows_unseen_is_shown_without_its_values() -> None:
    """The page and the gaps show it to everybody."""
    followed = Followed()
    sql = "ALTER TABLE items ADD s CHAR(9) DEFAULT 'top-secret', ADD n INT DEFAULT 5"
    applied = followed.apply(sql)
    assert applied is not None
    assert (applied.sql, applied.shown) == (sql, "ALTER TABLE items ADD s CHAR(9) DEFAULT ***, ADD n INT DEFAULT ***")


def reread(followed: Followed, sql: str) -> tuple[set[str], set[str]]:
    """Return the tables that a statement changes unseen and a snapshot reads again, and those that it does not."""
    applied = followed.apply(sql)
    assert applied is not None
    return {*applied.reread}, {*applied.unseen} - {*applied.reread}


def test_a_table_is_read_again_only_if_it_is_known_to_have_a_primary_key() -> None:
    """I10: the relay would end with its snapshot."""
    followed = Followed(rereads=lambda _, now: now is not None and Column("f", "float") not in now)
    filled, masked = (f"ALTER TABLE items ADD {name} INT DEFAULT 5" for name in ("n", "m"))
    masked += r" COMMENT 'x\\y'"
    nothing = set[str]()
    assert reread(followed, filled) == (nothing, {"items"})
    for sql in (filled, masked, "ALTER TABLE items ADD g INT AS (id)"):
        followed.read()
        assert reread(followed, sql) == ({"items"}, nothing), sql
    assert reread(followed, filled) == (nothing, {"items"})  # what it is now is not known
    for sql in (
        "ALTER TABLE items DROP name, DROP PRIMARY KEY",
        r"ALTER TABLE items DROP PRIMARY KEY, ADD m INT DEFAULT 5 COMMENT 'x\\y'",
        "ALTER TABLE items ADD f FLOAT DEFAULT 5",
        r"ALTER TABLE items ADD f FLOAT DEFAULT 5 COMMENT 'x\\y'",
    ):
        followed.read()
        assert reread(followed, sql) == (nothing, {"items"}), sql
    followed.tables.read(lay_out("s", "items", ITEMS, [], key=["id"]))
    assert reread(followed, filled) == (nothing, {"items"})
    assert reread(followed, masked) == (nothing, {"items"})


def test_each_table_that_a_statement_changes_unseen_is_read_again_or_not_by_itself() -> None:
    """I7, I10."""
    followed = Followed(rereads=lambda *_: True)
    for name in ("items", "a", "b"):
        followed.apply(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
    followed.apply("DROP INDEX `PRIMARY` ON b")
    renamed = "RENAME TABLE items TO old, a TO items, b TO new"
    assert reread(followed, renamed) == ({"items"}, {"new"})
    assert reread(followed, "RENAME TABLE items TO a, new TO b, a TO new") == ({"new"}, set())
    made = followed.apply("ALTER TABLE new ADD n INT DEFAULT 5")
    assert made is not None
    assert made.reread == ("new",)
