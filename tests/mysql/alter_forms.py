"""What ALTER TABLE does to the rows that are there: forms that keep all values, and forms that may change some.

Each is about a table with these columns and rows, in which ``v`` is ``COLUMN`` of each type for `TYPES`.
"""

from __future__ import annotations

TABLE = (
    "CREATE TABLE {} (id INT PRIMARY KEY, i INT, d DECIMAL(10,2), f FLOAT, v VARCHAR(20), c CHAR(5), x VARBINARY(5),"
    " dt DATETIME(3), ts TIMESTAMP(3) NULL, e ENUM('a','b'), s SET('a','b'), KEY k (c))"
)
ROWS = (
    "INSERT INTO {} VALUES (1, 0, 1.25, 0.1, 'ab  ', 'c', X'00FF', '2024-02-03 04:05:06.789', '2024-02-03 04:05:06.7',"
    " 'a', 'a,b'), (2, 2147483647, -3.5, 7, 'é2', 'é', '', '1999-12-31 23:59:59.9', '2001-01-01 00:00:00.5', 'b', 'b'),"
    " (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
)
FULL = "DELETE FROM {} WHERE id = 3"
"""Leaves only rows without NULL, so that columns may become NOT NULL."""

KEPT = (
    "ADD n INT",
    "ADD COLUMN n VARCHAR(5) CHARACTER SET latin1 COMMENT 'NOT NULL DEFAULT 5' AFTER id",
    "ADD (n INT UNSIGNED ZEROFILL NULL DEFAULT NULL, m LONGTEXT)",
    "ADD n TIMESTAMP NULL FIRST",
    "ADD n INT, ADD INDEX (n), ALGORITHM=INPLACE, LOCK=NONE",
    "ADD UNIQUE (id, v)",
    "ADD CONSTRAINT o CHECK (id > 0)",
    "DROP INDEX k",
    "RENAME INDEX k TO j",
    "ALTER v SET DEFAULT 'x'",
    "ALTER COLUMN i DROP DEFAULT",
    "COMMENT = 'DROP COLUMN v'",
    "FORCE",
    "ENGINE=InnoDB",
    "DEFAULT CHARACTER SET latin1",
    "PARTITION BY HASH (id) PARTITIONS 3",
    "MODIFY v VARCHAR(20)",
    "MODIFY COLUMN v VARCHAR(30) COMMENT 'longer' FIRST",
    "MODIFY v VARCHAR(20) NOT NULL DEFAULT 'x'",
    "MODIFY v MEDIUMTEXT AFTER id",
    "CHANGE i i BIGINT",
    "CHANGE COLUMN `i` `i` INT NOT NULL DEFAULT '5' AFTER d",
    "MODIFY i INT UNSIGNED",
    "MODIFY d DECIMAL(12,2), MODIFY x VARBINARY(9)",
    "MODIFY e ENUM('a','b','c'), MODIFY s SET('a','b','c d')",
    "MODIFY dt DATETIME(3) NOT NULL",
    "MODIFY c CHAR(6), ADD n INT",
)
"""Clauses that keep all values in a strict session, and where no row has NULL if that is excluded."""

CHANGED = (
    "ADD n INT NOT NULL",
    "ADD n INT DEFAULT 5",
    "ADD n INT DEFAULT (5) NULL",
    "ADD n VARCHAR(5) DEFAULT 'NULL'",
    "ADD n INT AUTO_INCREMENT UNIQUE",
    "ADD n INT AS (i)",
    "ADD n VARCHAR(20) GENERATED ALWAYS AS (concat(v, 'x')) STORED",
    "ADD n TIMESTAMP DEFAULT CURRENT_TIMESTAMP",
    "ADD (m INT, n INT DEFAULT 5)",
    "DROP v",
    "DROP COLUMN v, ADD v VARCHAR(20)",
    "RENAME COLUMN v TO w",
    "RENAME COLUMN v TO w, RENAME COLUMN c TO v",
    "CHANGE v w VARCHAR(20)",
    "CHANGE v V VARCHAR(20)",
    "MODIFY d DECIMAL(10,0)",
    "MODIFY d DECIMAL(10,1)",
    "MODIFY d DECIMAL(10,3)",
    "MODIFY f DOUBLE",
    "MODIFY i VARCHAR(12)",
    "MODIFY i INT(8) ZEROFILL",
    "MODIFY v CHAR(20)",
    "MODIFY v VARCHAR(20) CHARACTER SET binary",
    "MODIFY dt DATETIME",
    "MODIFY dt DATETIME(6)",
    "MODIFY dt DATE",
    "MODIFY ts TIMESTAMP",
    "MODIFY e ENUM('b','a')",
    "MODIFY e INT",
    "MODIFY s SET('b','a')",
    "CONVERT TO CHARACTER SET utf8mb4",
    "CONVERT TO CHARACTER SET latin1",
    "CHARSET latin1, MODIFY v VARCHAR(9)",
)
"""Clauses after which some rows may have others."""

GENERATED = {
    "c VARCHAR(20) CHARACTER SET utf8mb4, g INT AS (LENGTH(c)) STORED": "MODIFY c VARCHAR(20) CHARACTER SET latin1",
    "c VARCHAR(20) CHARACTER SET latin1, g INT AS (LENGTH(c)) VIRTUAL": "MODIFY c VARCHAR(20)",
    "c VARCHAR(20), g VARCHAR(9) AS (HEX(c)) STORED": "CONVERT TO CHARACTER SET utf16",
}
"""Columns of which one is generated, and a clause that keeps the values of the other, and not of that one."""

LOOSE = (
    "MODIFY v VARCHAR(1)",
    "MODIFY i INT NOT NULL",
    "MODIFY i TINYINT",
    "MODIFY v VARCHAR(20) CHARACTER SET ascii",
    "MODIFY d DECIMAL(2,1) UNSIGNED",
)
"""The same in a session that is not strict; a strict one refuses them for these rows."""

TYPES: dict[str, tuple[str, ...]] = {
    "TINYINT": ("-128", "0", "127"),
    "SMALLINT UNSIGNED": ("0", "65535"),
    "INT": ("-2147483648", "7"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "BIGINT UNSIGNED": ("0", "18446744073709551615"),
    "BIT(8)": ("7", "49"),
    "DECIMAL(5,2)": ("1.25", "-0.5"),
    "DECIMAL(12,2)": ("1.25", "1234567890.99"),
    "DECIMAL(12,4)": ("1.2345", "2"),
    "FLOAT": ("0.1", "3"),
    "DOUBLE": ("0.1", "1e20"),
    "CHAR(5)": ("'ab'", "'12'"),
    "CHAR(9)": ("'é'",),
    "VARCHAR(5)": ("'ab '", "'12'"),
    "VARCHAR(20)": ("'twenty characters   '", "'é '", "'2024-01-02'"),
    "VARCHAR(20) CHARACTER SET latin1": ("'é '", "'a'"),
    "TINYTEXT": ("'a '", "repeat('é', 100)"),
    "TEXT": ("'b '", "repeat('x', 300)"),
    "LONGTEXT": ("'c '", "repeat('x', 70000)"),
    "BINARY(5)": ("'ab'", "X'00'"),
    "VARBINARY(5)": ("X'00FF'", "'ab '"),
    "VARBINARY(9)": ("X'FF00'", "'12'"),
    "BLOB": ("X'00'", "repeat('x', 300)"),
    "DATE": ("'2024-02-03'",),
    "TIME": ("'-11:12:13'",),
    "DATETIME": ("'2024-02-03 04:05:06'",),
    "DATETIME(3)": ("'2024-02-03 04:05:06.789'",),
    "TIMESTAMP NULL": ("'2024-02-03 04:05:06'",),
    "ENUM('a','b')": ("'a'", "'b'"),
    "ENUM('a','b','c')": ("'b'", "'c'"),
    "ENUM('b','a')": ("'a'", "'b'"),
    "SET('a','b')": ("'a,b'", "''"),
    "SET('a','b','c')": ("'a,c'", "'b'"),
}
"""Types, as they are written, with values."""
