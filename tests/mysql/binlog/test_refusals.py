"""Binlog contents that cannot be relayed exactly are refused, with their place and what to do (I8)."""

from __future__ import annotations

from typing import Any

import pytest

from relay.gtid import parse
from relay.mysql.binlog.events import Rows
from relay.mysql.errors import Denied, NotCarried
from tests.mysql.encoder import event, gtid, packed, query, table_map
from tests.mysql.reading import connected, is_mysql, reading, session
from tests.mysql.scripted_binlogs import (
    COLUMNS,
    GTID,
    QUERY,
    TABLE_MAP,
    WRITE,
    XA_PREPARE,
    A,
    inserted,
    read_commits,
    reading_events,
    transaction,
)

ALONE = [event(GTID, gtid(A, 10)), event(QUERY, query(b"BEGIN"))]


def loaded(sql: bytes, database: str = "shop") -> bytes:
    """Return the body of a LOAD DATA that is logged as a statement."""
    body = query(sql, database)
    return body[:13] + bytes(13) + body[13:]


class TestAScriptedServer:
    @pytest.mark.parametrize(
        ("events", "message"),
        [
            (
                [*ALONE, event(QUERY, query(b"INSERT INTO orders SELECT * FROM old"))],
                r"shop\.orders is logged as a statement.*ROW",
            ),
            (
                [event(GTID, gtid(A, 10)), event(QUERY, query(b"ALTER TABLE orders DROP PARTITION p"))],
                r"removes or replaces rows of shop\.orders.*DROP PARTITION p.*Start after",
            ),
            *(
                ([event(GTID, gtid(A, 10)), event(QUERY, said)], "may affect tables of shop")
                for said in (
                    query(b"SET STATEMENT sql_mode='' FOR TRUNCATE TABLE \"orders\""),
                    query(b"TRUNCATE TABLE `orders`", charset=10),
                    query(b"TRUNCATE TABLE t /* \x95\x5c\xff */", charset=13),
                )
            ),
            (
                [
                    *ALONE,
                    event(17, b"\1\0\0\0" + b"1,a"),
                    event(18, loaded(b"LOAD DATA INFILE 'x' INTO TABLE `orders`")),
                ],
                r"may affect shop\.\w+ is logged as a statement.*LOAD DATA.*ROW",
            ),
            ([*ALONE, event(10, bytes(40))], r"unknown type 10"),
            ([event(34, gtid(A, 10))], r"has no GTID.*gtid_mode"),
            ([event(42, bytes(40))], "tag"),
            ([*ALONE, *(event(*each) for each in inserted(1)), event(QUERY, query(b"ROLLBACK"))], "rolled back"),
            ([*ALONE, *(event(*each) for each in inserted(1)), event(QUERY, query(b"ROLLBACK TO a"))], "rolled back"),
            (
                [
                    event(GTID, gtid(A, 10)),
                    event(QUERY, query(b"XA START X'61',X'',1")),
                    *(event(*each) for each in inserted(1)),
                    event(QUERY, query(b"XA END X'61',X'',1")),
                    event(XA_PREPARE, bytes(13)),
                ],
                r"XA transaction changes shop\.orders",
            ),
            (
                [
                    event(GTID, gtid(A, 10)),
                    event(QUERY, query(b"XA START X'61',X'',1")),
                    *(event(*each) for each in inserted(1, 2, 3, payload=bytes(6 << 20))),
                ],
                r"XA transaction changes shop\.orders.*up to 16 MB",
            ),
            ([*ALONE, event(TABLE_MAP, inserted(1)[0][1]), event(39, inserted(1)[1][1])], "value_options"),
            ([*ALONE, event(WRITE, inserted(1)[1][1])], "rows have no TABLE_MAP"),
            *(
                ([*ALONE, event(TABLE_MAP, inserted(1)[0][1]), event(WRITE, bytes([7, *bytes(7), *cut]))], "malformed")
                for cut in ([9, 9], [2, 0, 255])
            ),
            ([*ALONE, event(99, b"?")], "type 99"),
            (
                [*ALONE, event(TABLE_MAP, table_map(7, "shop", "orders", COLUMNS, with_names=False))],
                r"shop\.orders.*names.*binlog_row_metadata",
            ),
            (
                [
                    *ALONE,
                    event(TABLE_MAP, inserted(1)[0][1]),
                    event(WRITE, inserted(1)[1][1].replace(b"\x02\x03", b"\x02\x01", 1)),
                ],
                r"all its columns.*row_image",
            ),
            ([*ALONE, event(40, packed(2) + packed(1) + packed(7) + b"\0?")], "unknown compression 7"),
        ],
    )
    def test_is_refused_with_the_place_and_what_to_do(self, events: list[bytes], message: str) -> None:
        """I8."""
        with reading_events(events) as (stream, _), pytest.raises(NotCarried, match=message) as raised:
            read_commits(stream, 1)
        assert "binlog.000001 before " in str(raised.value)

    def test_is_refused_if_only_a_transaction_before_has_the_table_map_of_its_rows(self) -> None:
        """I8: the server may have given the id to another table since."""
        events = [*transaction(10, *inserted(1)), *transaction(11, inserted(2)[1])]
        with reading_events(events) as (stream, _):
            read_commits(stream, 1)
            with pytest.raises(NotCarried, match="rows have no TABLE_MAP before them"):
                read_commits(stream, 1)

    def test_that_drops_partitions_of_a_table_that_is_not_relayed_is_not_warned_about(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """I1: no trigger runs, and the only warning is for a statement whose triggers may."""
        statements = b"ALTER TABLE old DROP PARTITION p", b"ALTER TABLE old TRUNCATE PARTITION p", b"DELETE FROM old"
        events = [
            each
            for number, sql in enumerate(statements, 10)
            for each in (event(GTID, gtid(A, number)), event(QUERY, query(sql)))
        ]
        with reading_events(events, wanted=lambda _, table: table != "old") as (stream, _):
            read_commits(stream, 3)
        (warning,) = (each for each in caplog.messages if "triggers" in each)
        assert "'DELETE FROM old'" in warning

    def test_that_logs_an_incident_is_refused(self) -> None:
        """I9."""
        with (
            reading_events([event(26, b"\x01\x00\x09lost rows")]) as (stream, _),
            pytest.raises(NotCarried, match="changes may be missing from its binlog here: lost rows"),
        ):
            read_commits(stream, 1)

    def test_is_not_refused_for_tables_that_are_not_relayed(self) -> None:
        events = [
            *transaction(10, *inserted(1), (QUERY, query(b"DELETE FROM old"))),
            *transaction(
                11, (TABLE_MAP, table_map(8, "shop", "old", COLUMNS, with_names=False)), (WRITE, b"\x08" + bytes(40))
            ),
            event(GTID, gtid(A, 12)),
            event(QUERY, query(b"XA START X'61',X'',1")),
            *(event(*each) for each in inserted(1, table="old")),
            event(XA_PREPARE, bytes(13)),
            *transaction(13, *inserted(1, table="old"), end=event(QUERY, query(b"ROLLBACK"))),
            *transaction(
                14, (17, b"\1\0\0\0x"), (9, b"\1\0\0\0x"), (18, loaded(b"LOAD DATA INFILE 'x' INTO TABLE old"))
            ),
            *transaction(15, (17, b"\1\0\0\0x"), (11, b"\1\0\0\0")),
            *transaction(16, (99, b"")),
        ]
        events[-2] = event(99, b"", flags=0x80)  # the server says that it may be ignored
        with reading_events(events, wanted=lambda _, table: table == "orders") as (stream, _):
            found = read_commits(stream, 7)
            assert stream.executed == parse(f"{A}:1-16")
        assert [each.table.name for each in found if isinstance(each, Rows)] == ["shop.orders"]


COMMON_REFUSALS = [
    ("SET binlog_row_image = MINIMAL", "UPDATE t SET n = 2", r"row of .*\.t was logged without all its columns.*FULL"),
    ("SET binlog_row_image = NOBLOB", "UPDATE t SET n = 2", r"row of .*\.t was logged without all its columns.*FULL"),
    ("SET binlog_row_image = MINIMAL", "DELETE FROM t", r"row of .*\.t was logged without all its columns.*FULL"),
    ("SET binlog_row_image = NOBLOB", "DELETE FROM t", r"row of .*\.t was logged without all its columns.*FULL"),
    ("SET binlog_row_image = NOBLOB", "UPDATE t SET b = 'c'", r"row of .*\.t was logged without all its columns.*FULL"),
    ("SET binlog_row_image = MINIMAL", "INSERT t (id) VALUES (2)", r"row of .*\.t was logged without all .*FULL"),
    ("SET binlog_format = STATEMENT", "UPDATE t SET n = 2", r"\.t is logged as a statement.*ROW"),
    ("DO 0", "XA START 'a'; UPDATE t SET n = 2; XA END 'a'; XA PREPARE 'a'; XA COMMIT 'a'", r"XA.*\.t"),
    ("DO 0", "ALTER TABLE t TRUNCATE PARTITION p", r"adds, removes or replaces rows of .*\.t.*Start after"),
    ("DO 0", "REPAIR TABLE t USE_FRM", r"adds, removes or replaces rows of .*\.t.*Start after"),
    ("DO 0", "CREATE TABLE b (id INT) ENGINE=MRG_MYISAM", r"adds, removes or replaces rows of .*\.b.*Start after"),
]
PARTIAL_JSON = (
    "SET binlog_row_value_options = PARTIAL_JSON",
    "UPDATE t SET j = JSON_SET(j, '$.a', 2)",
    r"JSON of .*\.t is logged in parts.*binlog_row_value_options",
)


@pytest.mark.services
@pytest.mark.parametrize(
    ("flavour", "before", "statement", "message"),
    [
        *(("mariadb", *each) for each in COMMON_REFUSALS),
        *(("mysql", *each) for each in [*COMMON_REFUSALS, PARTIAL_JSON]),
    ],
)
def test_a_change_that_is_not_logged_exactly_is_refused_with_its_place(
    request: pytest.FixtureRequest, unique: str, flavour: str, before: str, statement: str, message: str
) -> None:
    """I8, on a real server."""
    server = request.getfixturevalue(flavour)
    with session(server, unique) as execute:
        execute(
            "CREATE TABLE t (id INT PRIMARY KEY, n INT, j JSON, b BLOB)"
            " PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))"
        )
        execute("""INSERT INTO t VALUES (1, 1, JSON_OBJECT('a', 1, 'b', REPEAT('x', 40)), 'b')""")
        with reading(server, unique) as reader:
            execute(before)
            for each in statement.split("; "):
                execute(each)
            with pytest.raises(NotCarried, match=message) as raised:
                reader.transactions()
        own_gtids = "0-" if flavour == "mariadb" else f"{server.execute('SELECT @@server_uuid')[0][0]}:"
        assert f"GTID {own_gtids}" in str(raised.value)
        with reading(server, "another") as other:  # the other database has no error
            assert other.transactions() == []


@pytest.mark.services
@pytest.mark.parametrize(
    ("key", "what"),
    [
        (", UNIQUE (v)", "MODIFY v VARCHAR(1)"),
        (", UNIQUE (v)", "CHANGE v w VARCHAR(1)"),
        (", UNIQUE (v)", "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"),
        ("", "ADD COLUMN (w INT DEFAULT 1, UNIQUE (w))"),
        ("", "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (2))"),
    ],
)
def test_an_alter_table_with_ignore_that_removes_a_row_is_refused(
    mariadb: Any, unique: str, key: str, what: str
) -> None:
    """I8: the row is not in the binlog."""
    with session(mariadb, unique) as execute:
        execute(f"CREATE TABLE t (id INT, v VARCHAR(9) COLLATE utf8mb4_bin{key})")
        execute("INSERT INTO t VALUES (1, 'ab'), (2, 'AB')")
        with reading(mariadb, unique) as reader:
            execute(f"ALTER IGNORE TABLE t {what}")
            assert execute("SELECT id FROM t") == ((1,),)
            with pytest.raises(NotCarried, match=rf"removes or replaces rows of {unique}\.t"):
                reader.transactions()


@pytest.mark.services
@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_wrong_settings_are_refused_with_the_statements_that_fix_them(server: Any, unique: str, image: str) -> None:
    """I8."""
    wrong = {"binlog_row_metadata": "MINIMAL", "binlog_row_image": image}
    wrong |= {"binlog_row_value_options": "PARTIAL_JSON"} if is_mysql(server) else {"binlog_format": "MIXED"}
    right = {**dict.fromkeys(wrong, "'FULL'"), "binlog_row_value_options": "''", "binlog_format": "'ROW'"}
    with session(server, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY)")
        for name, value in wrong.items():
            server.execute(f"SET GLOBAL {name} = {value}")
        try:
            with connected(server) as connection, pytest.raises(Denied) as raised:
                connection.verify()
            with reading(server, unique) as reader:
                execute("INSERT INTO t VALUES (1)")
                with pytest.raises(NotCarried, match=r"\.t .*binlog_row_metadata = 'FULL'"):
                    reader.transactions()
        finally:
            for name in wrong:
                server.execute(f"SET GLOBAL {name} = {right[name]}")
    for name in wrong:
        assert f"SET GLOBAL {name} = {right[name]}" in str(raised.value)


@pytest.mark.services
def test_times_in_the_format_of_mariadb_5_3_are_refused(mariadb: Any, unique: str) -> None:
    """I8: their decimals are not logged."""
    with session(mariadb, unique) as execute:
        mariadb.execute("SET GLOBAL mysql56_temporal_format = OFF")
        try:
            execute("CREATE TABLE t (id INT PRIMARY KEY, at DATETIME(3))")
        finally:
            mariadb.execute("SET GLOBAL mysql56_temporal_format = ON")
        with reading(mariadb, unique) as reader:
            execute("INSERT INTO t VALUES (1, '2024-01-02 03:04:05.678')")
            with pytest.raises(NotCarried, match=r"\.t .*column at .*mysql56_temporal_format"):
                reader.transactions()
        execute("ALTER TABLE t FORCE")
        with reading(mariadb, unique) as reader:
            execute("INSERT INTO t VALUES (2, '2024-01-02 03:04:05.678')")
            assert reader.rows() == [(2, "2024-01-02 03:04:05.678")]
