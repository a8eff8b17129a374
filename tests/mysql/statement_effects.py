"""What the statements of both servers do to the rows of tables, and what the relay makes of each.

``@t`` is the table of that name in `TABLES`, and ``@`` the database.
"""

from __future__ import annotations

import random
import re
from enum import Enum

_RENAMES = "ALTER TABLE @t /*M! RENAME TO @new, */ /*!999999 RENAME TO @old, */ ADD n INT"
_PARTS = "(PARTITION low VALUES LESS THAN (3), PARTITION high VALUES LESS THAN (100))"
TABLES = {
    "t": ("CREATE TABLE @t (id INT PRIMARY KEY, v INT)", "INSERT @t VALUES (1, 1), (2, 2), (3, 3)"),
    "u": ("CREATE TABLE @u (id INT PRIMARY KEY, v INT)", "INSERT @u VALUES (1, 10), (7, 70)"),
    "x": ("CREATE TABLE @x (id INT PRIMARY KEY, v INT)", "INSERT @x VALUES (1, 100)"),
    "p": (
        f"CREATE TABLE @p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) {_PARTS}",
        "INSERT @p VALUES (1, 1), (2, 2), (30, 3)",
    ),
    "h": (
        "CREATE TABLE @h (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 2",
        "INSERT @h VALUES (1, 1), (2, 2)",
    ),
    "bare": (f"CREATE TABLE @bare (id INT, v INT) PARTITION BY RANGE (id) {_PARTS}", "INSERT @bare VALUES (1, 1)"),
    "m": ("CREATE TABLE @m (id INT PRIMARY KEY, v INT) ENGINE=MyISAM", "INSERT @m VALUES (1, 1)"),
    "8": ("CREATE TABLE @8 (id INT PRIMARY KEY, v INT)", "INSERT @8 VALUES (1, 1)"),
    "far": ("CREATE TABLE @far (id INT PRIMARY KEY, v INT)", "INSERT @far VALUES (200, 1)"),
    "older": ("CREATE TABLE @older (id INT PRIMARY KEY, v INT)", "INSERT @older VALUES (1, 1)", "DO SLEEP(2)"),
    "empties": ("CREATE PROCEDURE @empties() TRUNCATE @t",),
    "renames": (f"CREATE PROCEDURE @renames() {_RENAMES}",),
    "prepared": (f"PREPARE @prepared FROM '{_RENAMES}'",),
}
"""The statements that make a table, a procedure or a prepared statement, before one that names it.

There always is ``t``.
"""


class Effect(Enum):
    SHOWN = "the topic has the rows of the tables"
    WARNED = "a table has rows that no change shows, and a warning says so"
    REFUSED = "rows come or go that no change shows, or may, and the relay stops there"


BOTH: dict[str, Effect] = {
    **dict.fromkeys(
        (
            "TRUNCATE @t",
            "TRUNCATE TABLE @t",
            "DROP TABLE @t",
            "DROP TABLE IF EXISTS @new, @t, @u RESTRICT",
            "DROP TABLES @u CASCADE",
            "DROP DATABASE @",
            "DROP VIEW IF EXISTS @new",
            "CREATE TABLE IF NOT EXISTS @t (id INT PRIMARY KEY)",
            "CREATE TABLE @new (id INT PRIMARY KEY, v INT)",
            "CREATE TABLE @new LIKE @t",
            "CREATE TABLE @new (LIKE @t)",
            "CREATE TABLE @new (PRIMARY KEY (id)) SELECT * FROM @t",
            "CREATE TEMPORARY TABLE @t (id INT PRIMARY KEY)",
            "CREATE VIEW @new AS SELECT * FROM @t",
            "CREATE INDEX i ON @t (v)",
            "RENAME TABLE @bare TO @old",
            "ALTER TABLE @t ADD COLUMN n INT, ADD INDEX (n)",
            "ALTER TABLE @t ADD CONSTRAINT c CHECK (v > 0)",
            "ALTER TABLE @t MODIFY v BIGINT FIRST, COMMENT 'RENAME TO x'",
            "ALTER TABLE @t ENGINE = InnoDB",
            "ALTER TABLE @t ENGINE MyISAM, FORCE",
            "ALTER TABLE @t ENGINE=MEMORY",
            "ALTER TABLE @t ORDER BY v",
            "ALTER TABLE @t CONVERT TO CHARACTER SET utf8mb4",
            "ALTER TABLE @t PARTITION BY HASH (id) PARTITIONS 3",
            "ALTER TABLE @p REMOVE PARTITIONING",
            "ALTER TABLE @p ADD PARTITION (PARTITION more VALUES LESS THAN MAXVALUE)",
            "ALTER TABLE @p REORGANIZE PARTITION low INTO (PARTITION a VALUES LESS THAN (3))",
            "ALTER TABLE @p REBUILD PARTITION low, high",
            "ALTER TABLE @p OPTIMIZE PARTITION low",
            "ALTER TABLE @p CHECK PARTITION ALL",
            "ALTER TABLE @p ANALYZE PARTITION high",
            "ALTER TABLE @h COALESCE PARTITION 1",
            "ALTER TABLE @h ADD PARTITION PARTITIONS 2",
            "ALTER TABLE @bare DROP PARTITION low",
            "ALTER TABLE @bare TRUNCATE PARTITION ALL",
            "OPTIMIZE TABLE @t, @u",
            "ANALYZE TABLE @t",
            "CHECK TABLE @t",
            "REPAIR TABLE @older QUICK",
            "CALL @empties()",
            "INSERT INTO @t VALUES (1, 5) ON DUPLICATE KEY UPDATE v = 9",
            "INSERT IGNORE INTO @t SELECT id + 5, v FROM @u",
            "REPLACE INTO @t VALUES (1, 6), (8, 8)",
            "UPDATE @t AS a, @u AS b SET a.v = 7, b.v = 8 WHERE a.id = b.id",
            "UPDATE @p SET id = 40 WHERE id = 1",
            "DELETE a, b FROM @t AS a JOIN @u AS b USING (id)",
            "DELETE FROM @t ORDER BY id LIMIT 2",
        ),
        Effect.SHOWN,
    ),
    **dict.fromkeys(
        (
            "RENAME TABLE @t TO @new",
            "RENAME TABLE @t TO @new, @u TO @old",
            "RENAME TABLE @t TO @old, @u TO @t",
            "RENAME TABLE @t TO @old, @u TO @t, @old TO @u",
            "RENAME TABLE @t TO @old, @old TO @new, @u TO @t, @t TO @old",
            "ALTER TABLE @t RENAME @new",
            "ALTER TABLE @t RENAME TO @new",
            "ALTER TABLE @t RENAME AS @new",
            "ALTER TABLE @t RENAME = @new",
            "ALTER TABLE @t ADD n INT DEFAULT (1), RENAME TO @new, COMMENT 'x'",
        ),
        Effect.WARNED,
    ),
    **dict.fromkeys(
        (
            "ALTER TABLE @p DROP PARTITION low",
            "ALTER TABLE @p TRUNCATE PARTITION low, high",
            "ALTER TABLE @p TRUNCATE PARTITION ALL",
            "ALTER TABLE @p EXCHANGE PARTITION low WITH TABLE @x",
            "ALTER TABLE @p REPAIR PARTITION low",
            "ALTER TABLE @x DISCARD TABLESPACE",
            "REPAIR TABLE @m",
            "REPAIR TABLE @older, @m QUICK EXTENDED",
            "REPAIR TABLE @t USE_FRM",
        ),
        Effect.REFUSED,
    ),
}
MARIADB: dict[str, Effect] = {
    **dict.fromkeys(
        (
            "TRUNCATE TABLE @t WAIT 1",
            "TRUNCATE TABLE @t NOWAIT",
            "DROP TABLE @t WAIT 2",
            "CREATE TABLE @new (PRIMARY KEY (id)) ENGINE=MyISAM AS SELECT id, v FROM @u WHERE v > 10",
            "CREATE OR REPLACE TABLE @t (id INT PRIMARY KEY, v INT)",
            "CREATE OR REPLACE TABLE @t LIKE @u",
            "CREATE OR REPLACE SEQUENCE @t",
            "CREATE OR REPLACE DATABASE @",
            "CREATE OR REPLACE TEMPORARY TABLE @t (id INT PRIMARY KEY)",
            "SET STATEMENT lock_wait_timeout = 5 FOR TRUNCATE TABLE @t",
            "RENAME TABLE IF EXISTS @new TO @old",
            "ALTER ONLINE TABLE @t ADD n INT",
            "ALTER TABLE IF EXISTS @new RENAME TO @old",
            "ALTER TABLE @t ENGINE = Aria",
            "INSERT INTO @t VALUES (9, 9) RETURNING id",
            "DELETE FROM @t WHERE id > 1 RETURNING v",
            "EXECUTE IMMEDIATE 'TRUNCATE @t'",
            "BEGIN NOT ATOMIC TRUNCATE @t; INSERT INTO @t VALUES (5, 5); END",
            "LOAD DATA INFILE '/etc/hosts' REPLACE INTO TABLE @t (id)",
        ),
        Effect.SHOWN,
    ),
    **dict.fromkeys(
        (
            "RENAME TABLE IF EXISTS @t TO @new",
            "RENAME TABLES @t NOWAIT TO @new",
            "ALTER TABLE IF EXISTS @t WAIT 3 RENAME TO @new",
        ),
        Effect.WARNED,
    ),
    **dict.fromkeys(
        (
            "CREATE OR REPLACE TABLE @t (PRIMARY KEY (id)) SELECT * FROM @u",
            "ALTER TABLE @t ADD SYSTEM VERSIONING",
            "ALTER IGNORE TABLE @t ADD UNIQUE (v)",
            "ALTER TABLE @p CONVERT PARTITION low TO TABLE @new",
            "ALTER TABLE @p CONVERT TABLE @far TO PARTITION more VALUES LESS THAN MAXVALUE",
            "CREATE OR REPLACE TABLE @t (id INT) ENGINE = MRG_MyISAM",
        ),
        Effect.REFUSED,
    ),
}
MYSQL: dict[str, Effect] = {
    "ALTER TABLE @t ADD INDEX i (v) INVISIBLE": Effect.SHOWN,
    "INSERT INTO @t VALUES ROW(9, 9)": Effect.SHOWN,
    "ALTER TABLE @t ENGINE = BLACKHOLE": Effect.REFUSED,
}


# fmt: off
_OPENINGS = (
    "/* ", "/*+ ", "/* /*! ", "/*! ", "/*!", "/*M! ", "/*M!", "/*m! ",
    *(
        f"/*{bang}{version}{after}"
        for version in ("40000", "040000", "50708", "080000", "100100", "999999")
        for bang, after in (("!", " "), ("!", ""), ("!", "\t/* x */ "), ("M!", " "), ("M!", ""), ("M!", " /* x */ "))
    ),
)
# fmt: on
_COMMENTED = (
    ("TRUNCATE TABLE {} @t", "x."),
    ("TRUNCATE TABLE {} @t", "@."),
    ("DROP TABLE {} @t", "@8 ,"),
    ("DROP TABLE @t {}", ", @u"),
    ("RENAME TABLE @t TO @new {}", ", @u TO @old"),
    ("ALTER TABLE @t {} ADD n INT", "RENAME TO @new,"),
    ("ALTER TABLE @t ADD n INT {}", ", RENAME TO @new"),
    ("ALTER TABLE @t ADD n INT DEFAULT (2 {} 1)", "- 1), RENAME TO @new, ADD COLUMN k INT DEFAULT (2 -"),
    ("CREATE {} TABLE @t (id INT PRIMARY KEY, v INT)", "OR REPLACE"),
)
COMMENTS = (
    *(sql.format(f"{opening}{text} */") for sql, text in _COMMENTED for opening in _OPENINGS),
    "CALL @renames()",
    "ALTER TABLE @t ADD n INT --\x7f , RENAME TO @new",
    "EXECUTE @prepared",
    "ALTER TABLE @t ADD n INT DEFAULT (2*/* ), RENAME TO @new, ADD (*/3)",
    "ALTER TABLE @t ADD n INT DEFAULT (2*/*! 3), RENAME TO @new, ADD k INT DEFAULT (*/3)",
    "ALTER TABLE @t ADD n INT DEFAULT (2 /*! + /*! 1 */ */* ), RENAME TO @new, ADD (*/3)",
)
"""Statements that depend on which comments the server executes. It does not take each of them."""


def written(statement: str, database: str, number: int, chance: random.Random | None = None) -> str:
    """Return a statement with its names: tables of the same ``number`` are the same.

    With ``chance``: names in quotes or not, with the database or not, words in lower case, comments between them.
    """
    found = []
    for part in re.split(r"( |@\w*)", statement):
        if part == "@":
            forms = [database, f"`{database}`"]
        elif part.startswith("@"):
            name = f"{part[1:]}_{number}"
            forms = [name, f"`{name}`", f"{database}.{name}", f"`{database}` . `{name}`", f"/* u */{name}"]
        elif part == " ":
            forms = [" ", " ", " ", "\n", "\t ", " /* TRUNCATE u */ ", " -- DROP TABLE u\n", " /*!40000 */ ", " # `\n"]
        else:
            forms = [part, part.lower()]
        found.append(forms[0] if chance is None else chance.choice(forms))
    return "".join(found)
