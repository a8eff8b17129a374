"""What statements say about columns is what a real server makes of them, or nothing is said (I8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from relay.mysql_dialect.altered import Shape, altered, created
from relay.mysql_dialect.catalog import ask, text_by_default
from relay.services.mariadb import MariaDB
from tests.mysql.reading import session

pytestmark = pytest.mark.services

CREATED = (
    "CREATE TABLE t (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, a VARCHAR(10) DEFAULT 'x,y)', b DECIMAL(10,2), "
    "c DATETIME(3), `d e` ENUM('p','q'), KEY (a), PRIMARY KEY (id), CHECK (b > 0)) ENGINE=InnoDB COMMENT='t (a int'",
    "create table t (id int, a int, b int key, c text character set latin1, d char(3) charset binary)",
    "create table t (id int key, c varchar(9) char set binary, d text) char set = binary",
    "CREATE TABLE t (id INT PRIMARY KEY, a CHAR(5), b VARCHAR(5) COLLATE utf8mb4_bin, c TEXT) DEFAULT CHARSET binary",
    "CREATE TABLE t (a INT, b INT, c INT, CONSTRAINT x UNIQUE (c), CONSTRAINT PRIMARY KEY USING BTREE (b, a DESC))",
    "CREATE TABLE t (id INT PRIMARY KEY, a INT AS (id + 1))",
    "CREATE TABLE t (id INT PRIMARY KEY) SELECT 1 AS a",
    "CREATE TABLE t (id INT, v INT)",
    "CREATE TABLE t (id MIDDLEINT PRIMARY KEY, a BOOL, b INT1 UNSIGNED, c INT8, d FLOAT(30), e FLOAT(7,4), f DEC, "
    "g BIT, h YEAR, i TIME(6), j TIMESTAMP NULL, k JSON, l LONGTEXT, m GEOMETRY, n DOUBLE PRECISION, o SET('a'), "
    "p FIXED(5), q CHAR VARYING(5), r CHARACTER(5) BYTE, s INT ZEROFILL, t FLOAT8, u VARBINARY(3), v TINYBLOB)",
    "/*!40000 CREATE TABLE IF NOT EXISTS */ t (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p VALUES LESS "
    "THAN (5), PARTITION q VALUES LESS THAN MAXVALUE)",
)

OF_MARIADB = (
    "ALTER TABLE t ADD COLUMN IF NOT EXISTS A INT, DROP COLUMN IF EXISTS nothing, ADD UNIQUE (a), ADD CHECK (b > 1)",
    "ALTER TABLE t ADD SYSTEM VERSIONING",
    "ALTER TABLE t WAIT 3 ADD x INT",
    "ALTER IGNORE TABLE t FORCE",
)
"""Statements that MySQL does not have."""

NATIONAL = (
    "ALTER TABLE t ADD n NCHAR(3), ADD o NVARCHAR(3), ADD p NATIONAL CHAR(3), ADD q NATIONAL VARCHAR(3) NOT NULL, "
    "ADD r NCHAR VARYING(3), ADD t NATIONAL CHARACTER VARYING(3), ADD d DATE, CHARSET binary"
)

ALTERED = (
    *OF_MARIADB,
    "ALTER TABLE t ADD x INT, ADD COLUMN y TEXT FIRST, ADD (z DATE, `after` INT)",
    "ALTER TABLE t ADD x INT AFTER a, ADD y INT AFTER x, DROP b",
    "ALTER TABLE t MODIFY a BIGINT FIRST, MODIFY COLUMN b CHAR(3)",
    "ALTER TABLE t CHANGE a b INT, CHANGE b a INT",
    "ALTER TABLE t CHANGE a z INT AFTER c, ADD y INT AFTER z",
    "ALTER TABLE t CHANGE COLUMN id Id INT, RENAME INDEX k TO j",
    "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a, id)",
    "ALTER TABLE t ADD PRIMARY KEY (b), DROP PRIMARY KEY",
    "ALTER TABLE t DROP PRIMARY KEY, DROP INDEX k",
    "ALTER TABLE t DROP INDEX `PRIMARY`",
    "ALTER TABLE t DROP CONSTRAINT `PRIMARY`",
    "ALTER TABLE t ALTER a SET DEFAULT 5, COMMENT 'DROP a', ENGINE=InnoDB, ALGORITHM=COPY, LOCK=SHARED",
    "ALTER TABLE t ENGINE InnoDB DEFAULT CHARACTER SET binary, ADD x VARCHAR(4)",
    "ALTER TABLE t ADD x VARCHAR(4), CHARSET = binary",
    "ALTER TABLE t ADD x VARCHAR(4) CHARACTER SET 'binary'",
    "ALTER TABLE t ADD x INT AS (a + 1)",
    "ALTER TABLE t CONVERT TO CHARACTER SET binary",
    "ALTER TABLE t CONVERT TO CHARACTER SET latin1, ADD x VARCHAR(3)",
    "ALTER TABLE t ORDER BY a, b",
    "ALTER TABLE t ADD INDEX (a), RENAME TO t",
    "ALTER TABLE t ADD x INT AFTER a PARTITION BY HASH (id)",
    "ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 2",
    "ALTER TABLE t DROP b, ADD b VARCHAR(3)",
    "ALTER TABLE `t` /* , ADD y INT */ ADD x INT -- , ADD z INT",
    "ALTER TABLE t ADD x SERIAL",
    "ALTER TABLE t ADD x REAL, ADD y INT",
    NATIONAL,
    "ALTER TABLE t ADD x INT COMMENT 'PRIMARY KEY', ADD y INT UNIQUE KEY, ADD z INT CHECK (z > 0)",
    "ALTER TABLE t DROP c, DROP s, DROP b, DROP id",
)


def shape(execute: Any, database: str) -> tuple[Any, ...]:
    found = ask(execute, database)["t"]
    return tuple(found.columns), tuple(found.primary)


def said(after: Shape | None) -> tuple[Any, ...] | None:
    return None if after is None else (after.columns, after.primary)


def is_run(execute: Any, sql: str) -> bool:
    """Run a statement, and return True; False on MySQL for one of MariaDB, which has to be refused there."""
    if sql not in OF_MARIADB or "MariaDB" in execute("SELECT VERSION()")[0][0]:
        execute(sql)
        return True
    with pytest.raises(pymysql.MySQLError) as refused:
        execute(sql)
    assert refused.value.args[0] == ER.PARSE_ERROR
    return False


@pytest.mark.parametrize("sql", CREATED)
def test_a_created_table_has_the_columns_of_its_statement(server: Any, unique: str, sql: str) -> None:
    with session(server, unique) as execute:
        execute(sql)
        after = created(sql, False, text_by_default(execute, unique) or None)
        if after is not None and "MariaDB" in execute("SELECT VERSION()")[0][0]:  # which makes a LONGTEXT of JSON
            columns = (replace(each, sql="" if each.sql == "json" else each.sql) for each in after.columns)
            after = replace(after, columns=tuple(columns))
        assert said(after) in (None, shape(execute, unique))


@pytest.mark.parametrize("sql", ALTERED)
def test_an_altered_table_has_the_columns_of_its_statement(server: Any, unique: str, sql: str) -> None:
    with session(server, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, c VARCHAR(5), s SET('x'), KEY k (a))")
        columns, primary = shape(execute, unique)
        before = Shape(columns, primary, text=True)
        if is_run(execute, sql):
            assert said(altered(before, sql, False)) in (None, shape(execute, unique))


def test_most_statements_are_understood(mariadb: MariaDB, unique: str) -> None:
    with session(mariadb, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, c VARCHAR(5), s SET('x'), KEY k (a))")
        columns, primary = shape(execute, unique)
        before = Shape(columns, primary, text=True)
    understood = [sql for sql in ALTERED if altered(before, sql, False) is not None]
    assert len(understood) > 0.65 * len(ALTERED)
    assert sum(created(sql, False, True) is not None for sql in CREATED) == len(CREATED) - 3


def test_text_is_text_unless_the_database_or_a_table_is_binary(server: Any, unique: str) -> None:
    with session(server, unique) as execute:
        assert text_by_default(execute, unique) is True
        execute("CREATE TABLE t (id INT PRIMARY KEY) CHARSET binary")
        assert text_by_default(execute, unique) is None
        execute("DROP TABLE t")
        execute(f"ALTER DATABASE {unique} CHARACTER SET binary")
        assert text_by_default(execute, unique) is None
