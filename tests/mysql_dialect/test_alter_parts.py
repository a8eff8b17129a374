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
