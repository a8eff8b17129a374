"""Which statements invalidate the namespace of a cache (I6)."""

from __future__ import annotations

import orjson
import pytest

from relay.change import SchemaChange
from relay.gtid import parse
from relay.kafka.schema_changes import statement_record
from relay.mysql_dialect.followed_tables import FollowedTables
from relay.mysql_dialect.statements import classify
from relay.token import EventToken
from spark_consumers.cache_batches import statement_bump

TABLES = {"orders", "customers"}
TOKEN = EventToken(1000, "legacy/shop/-", "MariaDB/0-1-7")


def record(sql: str, *, hides_values: bool = False, largest: float = 1e9) -> bytes | None:
    """Return the record of a statement in the database ``shop``, all of whose tables are relayed."""
    followed = FollowedTables("shop", lambda name: True, lambda name: {}, lambda: True, hides_values=hides_values)
    said = classify(sql, "shop")
    followed.begin(said, parse(""), 0)
    applied = followed.apply(said, sql, False)
    if applied is None:
        return None
    what = (applied.kind, "legacy", "shop", applied.sql, applied.text, applied.tables)
    return statement_record(SchemaChange("id", *what, TOKEN, "0-1-7", 0), 0, 0, "t", largest)[0]


def bumps(sql: str, *, hides_values: bool = False, largest: float = 1e9) -> bool:
    found = record(sql, hides_values=hides_values, largest=largest)
    assert found is not None
    return statement_bump(found, TABLES) is not None


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE orders DROP COLUMN total",
        "ALTER TABLE orders ADD total INT NOT NULL DEFAULT 7",
        "ALTER TABLE orders ADD (total INT, KEY (total))",
        "ALTER TABLE orders ADD INDEX (a), DROP b",
        "alter table shop.`orders` modify total varchar(3)",
        "ALTER TABLE orders CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE orders ADD PRIMARY KEY (id)",
        "ALTER TABLE orders ADD CONSTRAINT p PRIMARY KEY (id)",
        "ALTER TABLE orders ADD CONSTRAINT PRIMARY KEY (id)",
        "ALTER TABLE orders ADD INDEX (id), DROP INDEX `PRIMARY`",
        "ALTER TABLE orders ADD `key` INT",
        'ALTER TABLE orders ADD "index" INT',
        "ALTER TABLE orders ADD INDEX (a) /*!40000 , DROP COLUMN b */",
        "ALTER TABLE orders ADD INDEX (a) /*M! , DROP COLUMN b */",
        "ALTER TABLE orders COMMENT /*M! = ' */ , DROP COLUMN a /*M! ' */",
        "ALTER TABLE orders COMMENT 'it\\'s', DROP COLUMN a -- '",
        "ALTER TABLE orders RENAME other",
        "ALTER TABLE other RENAME TO orders, ADD INDEX (a)",
        "ALTER TABLE orders COMMENT = 'a' CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE orders COMMENT 'x' ENGINE BLACKHOLE",
        "ALTER TABLE orders COMMENT ENGINE BLACKHOLE",
        "ALTER TABLE orders ENGINE=BLACKHOLE",
        "ALTER TABLE orders FORCE ENGINE BLACKHOLE",
        "ALTER TABLE orders ROW_FORMAT=DYNAMIC ENGINE=BLACKHOLE",
        "ALTER TABLE orders ALTER total SET DEFAULT 'x' ENGINE BLACKHOLE",
        "ALTER TABLE orders ADD `partition` INT",
        "ALTER TABLE orders DROP PARTITION p0",
        "ALTER TABLE orders TRUNCATE PARTITION p0",
        "ALTER TABLE orders EXCHANGE PARTITION p0 WITH TABLE other",
        "ALTER TABLE orders",
        "RENAME TABLE orders TO old, new TO orders",
        "RENAME TABLE archive.orders TO customers",
        "RENAME TABLE orders TO archive.orders",
        "TRUNCATE orders",
        "DROP TABLE IF EXISTS other, orders",
    ],
)
def test_a_statement_after_which_a_table_may_have_other_rows_invalidates_the_namespace(sql: str) -> None:
    """I6: no change on the topic of the table shows them."""
    assert bumps(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE orders ADD INDEX by_total (total, `drop b`) COMMENT 'a, DROP b'",
        "ALTER TABLE orders ADD UNIQUE (total), ADD FULLTEXT KEY k (name), DROP INDEX i, ALGORITHM = COPY, LOCK=NONE",
        "ALTER TABLE orders ADD CONSTRAINT FOREIGN KEY (c) REFERENCES customers (id), DROP FOREIGN KEY f",
        "ALTER TABLE orders ADD CONSTRAINT u UNIQUE (total), DROP CONSTRAINT v, RENAME KEY a TO b",
        "ALTER TABLE orders COMMENT 'a, DROP b'",
        "ALTER TABLE orders AUTO_INCREMENT = 7",
        "ALTER TABLE orders ADD PARTITION (PARTITION p1 VALUES LESS THAN (10), PARTITION p2 VALUES LESS THAN (20))",
        "ALTER TABLE orders ADD PARTITION PARTITIONS 2",
        "ALTER TABLE orders REORGANIZE PARTITION p1, p2 INTO (PARTITION p1 VALUES LESS THAN (20))",
        "ALTER TABLE orders ANALYZE PARTITION p1, p2",
        "ALTER TABLE orders CHECK PARTITION ALL",
        "ALTER TABLE orders REBUILD PARTITION p1",
        "ALTER TABLE orders OPTIMIZE PARTITION p1",
        "ALTER TABLE orders ENGINE=InnoDB",
        "ALTER TABLE orders ENGINE InnoDB, FORCE, ROW_FORMAT = DYNAMIC",
        "ALTER TABLE orders STATS_PERSISTENT=1, STATS_AUTO_RECALC = DEFAULT, STATS_SAMPLE_PAGES 20",
        "ALTER TABLE orders DISABLE KEYS",
        "ALTER TABLE orders ENABLE KEYS",
        "ALTER TABLE orders ALTER INDEX i INVISIBLE, ALTER INDEX j VISIBLE",
        "ALTER TABLE orders ALTER COLUMN total SET DEFAULT -1, ALTER b SET DEFAULT 'a, DROP b', ALTER c DROP DEFAULT",
        "ALTER TABLE orders ALTER made SET DEFAULT (uuid())",
        "CREATE INDEX i ON orders (total)",
        "CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY)",
        "ALTER TABLE other DROP total",
        "RENAME TABLE other TO another",
    ],
)
def test_a_statement_that_leaves_the_rows_as_they_are_invalidates_nothing(sql: str) -> None:
    """A cache would lose all its values for nothing."""
    assert not bumps(sql)


def test_a_statement_whose_text_is_not_published_in_full_counts_for_what_is_left_of_it() -> None:
    """I6: with protected columns, or where the record would be too large."""
    assert not bumps("ALTER TABLE orders ADD INDEX i (total)", hides_values=True)
    assert not bumps("ALTER TABLE orders COMMENT 'x', AUTO_INCREMENT = 7", hides_values=True)
    assert bumps("ALTER TABLE orders COMMENT 'x' ENGINE BLACKHOLE", hides_values=True)
    assert bumps("ALTER TABLE orders ADD INDEX i (total), COMMENT 'x', DROP ssn", hides_values=True)
    assert bumps(f"ALTER TABLE orders ADD INDEX i (total) -- {'x' * 5000}", largest=2000)
    assert bumps(
        "ALTER TABLE orders ADD INDEX i (a) COMMENT 'it\\'s', DROP b", hides_values=True
    )  # cut off at the text


@pytest.mark.parametrize("value", [b"", b"{}", b"not JSON", orjson.dumps({"kind": "ALTER", "statement": None})])
def test_a_record_that_cannot_be_read_invalidates_the_namespace(value: bytes) -> None:
    """I6: it may be about any table."""
    assert statement_bump(value, TABLES) is not None


def test_a_kind_of_statement_that_is_not_known_yet_invalidates_the_namespace() -> None:
    """I6: a later version of the relay may publish more."""
    found = record("CREATE INDEX i ON orders (total)")
    assert found is not None
    assert statement_bump(orjson.dumps(orjson.loads(found) | {"kind": "OTHER"}), TABLES) is not None
