"""An ALTER TABLE that may take rows away without logging them is a change: I1."""

from __future__ import annotations

import pytest

from relay.mysql_dialect.statements import Kind, classify

TAKES_ROWS = [
    "ENGINE/**/=BLACKHOLE",
    "ADD n INT, ENGINE 'blackhole'",
    "COMMENT 'x' ENGINE=`MRG_MyISAM` UNION=(a)",
    "UNION (a, b)",
    "COMMENT='x', CONNECTION='y'",
    "TYPE = BLACKHOLE",
    "REPAIR PARTITION p",
    "ADD SYSTEM VERSIONING",
    "DROP SYSTEM VERSIONING",
    "ENGINE=InnoDB WITH SYSTEM VERSIONING",
    "WAIT 5 DROP PARTITION p",
    "ADD n INT, ARCHIVE ROWS",
    "FORGET (id)",
    "STORAGE ENGINE BLACKHOLE",
    "SECONDARY_ENGINE NULL, ENGINE = BLACKHOLE",
    "WITH VALIDATION, ENGINE = BLACKHOLE",
    "WITH SYSTEM VERSIONING",
    "PARTITION BY HASH (id), CONNECTION 'x'",
]
KEEPS_ROWS = [
    "COMMENT 'was ENGINE=BLACKHOLE'",
    "DROP tablespace, DROP COLUMN engine, ADD engine INT AFTER engine",
    "ADD system INT WITHOUT SYSTEM VERSIONING",
    "ADD connection VARCHAR(9), ADD INDEX `union` (connection)",
    "NOWAIT ENGINE 'InnoDB', LOCK NONE",
    "`page_compressed`=1 ENCRYPTED=NO, page_size=7",
    "REORGANIZE PARTITION a, b INTO (PARTITION c VALUES LESS THAN (20) ENGINE = InnoDB)",
    "ADD n INT PARTITION BY HASH (id)",
    "ORDER BY v; -- ENGINE=BLACKHOLE",
    "FORCE",
    "REBUILD PARTITION a, b",
    "ORDER BY v, id",
    "ORDER BY id, connection, `union`",
    "SECONDARY_ENGINE NULL",
    "SECONDARY_ENGINE RAPID",
    "AUTOEXTEND_SIZE 4M",
    "ENGINE_ATTRIBUTE '{}'",
    "SECONDARY_ENGINE_ATTRIBUTE '{}'",
    "CHAR SET utf8mb4",
    "STORAGE ENGINE InnoDB",
    "TABLE_CHECKSUM 1",
    "PAGE_CHECKSUM 1",
    "TRANSACTIONAL 1",
    "DELAY_KEY_WRITE 1",
    "INSERT_METHOD LAST",
    "WITH VALIDATION",
    "ENGINE=Columnstore",
    "ENGINE=S3",
    "ENGINE = 'mroonga'",
    "ENGINE INNOBASE",
]


@pytest.mark.parametrize("what", TAKES_ROWS)
def test_a_part_that_adds_or_removes_rows_or_is_not_known_changes_the_table(what: str) -> None:
    """I1."""
    said = classify(f"ALTER TABLE orders {what}", "shop")
    assert (said.kind, said.names) == (Kind.CHANGE, (("shop", "orders"),))


@pytest.mark.parametrize("what", KEEPS_ROWS)
def test_a_part_that_keeps_the_rows_does_not(what: str) -> None:
    assert classify(f"ALTER TABLE orders {what}", "shop").kind is Kind.ALTER


def test_exchanging_a_partition_changes_the_rows_of_both_tables() -> None:
    said = classify("ALTER TABLE orders EXCHANGE PARTITION p0 WITH TABLE `old`.`swap` WITHOUT VALIDATION", "shop")
    assert said.kind is Kind.CHANGE
    assert said.names == (("shop", "orders"), ("old", "swap"))


def test_converting_a_partition_to_a_table_changes_the_rows_of_both_tables() -> None:
    said = classify("ALTER TABLE old CONVERT PARTITION p0 TO TABLE orders", "shop")
    assert said.kind is Kind.CHANGE
    assert said.names == (("shop", "old"), ("shop", "orders"))


def test_converting_a_table_to_a_partition_changes_the_rows_of_both_tables() -> None:
    said = classify("ALTER TABLE orders CONVERT TABLE x.old TO PARTITION p0 VALUES LESS THAN (5)", "shop")
    assert said.kind is Kind.CHANGE
    assert said.names == (("shop", "orders"), ("x", "old"))


@pytest.mark.parametrize("key", ["UNIQUE (v)", "UNIQUE KEY x (v)", "PRIMARY KEY (v)", "CONSTRAINT c UNIQUE (v)"])
def test_adding_a_unique_key_with_ignore_removes_rows_that_are_not_logged(key: str) -> None:
    """I8."""
    said = classify(f"ALTER IGNORE TABLE orders ADD COLUMN w INT DEFAULT (1), ADD {key}", "shop")
    assert (said.kind, said.names) == (Kind.CHANGE, (("shop", "orders"),))
    assert classify(f"ALTER TABLE orders ADD {key}", "shop").kind is Kind.ALTER
    assert classify("ALTER IGNORE TABLE orders ADD COLUMN w INT, ADD KEY (w)", "shop").kind is Kind.ALTER


@pytest.mark.parametrize(
    "what",
    [
        "MODIFY v CHAR(1)",
        "CHANGE v w CHAR(1)",
        "CONVERT TO CHARACTER SET ascii",
        "ADD COLUMN (w INT DEFAULT 1, UNIQUE (w))",
        "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (2))",
        "ADD CHECK (v > 1)",
        "ADD CONSTRAINT c CHECK (v > 1)",
        "ADD PERIOD FOR p (v, w)",
    ],
)
def test_what_gives_rows_another_key_partition_or_condition_removes_some_with_ignore(what: str) -> None:
    """I8."""
    said = classify(f"ALTER IGNORE TABLE orders {what}", "shop")
    assert (said.kind, said.names) == (Kind.CHANGE, (("shop", "orders"),))
    assert classify(f"ALTER TABLE orders {what}", "shop").kind is Kind.ALTER


@pytest.mark.parametrize("ignore", ["", "IGNORE "])
def test_a_table_that_becomes_a_partition_loses_its_rows(ignore: str) -> None:
    """I1, I8."""
    said = classify(f"ALTER {ignore}TABLE t CONVERT TABLE orders TO PARTITION p VALUES LESS THAN (9)", "shop")
    assert (said.kind, set(said.names)) == (Kind.CHANGE, {("shop", "t"), ("shop", "orders")})


def test_a_column_called_period_removes_no_rows_with_ignore() -> None:
    for what in ("ADD COLUMN period INT", "ADD INDEX i (period)"):
        assert classify(f"ALTER IGNORE TABLE orders {what}", "shop").kind is Kind.ALTER
