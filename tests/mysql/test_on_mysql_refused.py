"""Logging in at a real MySQL, and what it does that is refused: settings, statements, events."""

from __future__ import annotations

import ssl
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.gtid import parse
from relay.mysql.binlog.dump import Dump
from relay.mysql.connection import connect
from relay.mysql.errors import Denied, Interrupted, NotCarried
from relay.services.sql_server import PASSWORD, USER
from tests.certificates import Authority
from tests.mysql.reading import connected, reading, session
from tests.mysql.server import MySQL

pytestmark = pytest.mark.services


class TestLoggingIn:
    """With ``caching_sha2_password``, which is what accounts have unless told otherwise."""

    def test_works_with_and_without_tls_and_from_a_cold_cache(self, mysql: Any) -> None:
        for context in (None, _trusting()):
            mysql.execute("FLUSH PRIVILEGES")  # and what it remembers of passwords
            for _ in range(2):
                with connected(mysql, context) as server:
                    server.verify()
                    assert server.flavour == "MySQL56"
                    assert not server.read_only
                    assert server.executed() == parse(mysql.gtid)
                    assert abs(server.clock) < 5
        with pytest.raises(Denied, match="Access denied"):
            connect(mysql.host, mysql.port, USER, "wrong")

    def test_is_refused_to_a_user_that_may_not_read_the_log(self, mysql: Any, unique: str) -> None:
        mysql.execute(f"CREATE USER {unique}@'%' IDENTIFIED BY 'secret'")
        with (
            closing(connect(mysql.host, mysql.port, unique, "secret")) as server,
            closing(Dump.from_gtid(server, parse(""))) as dump,
            pytest.raises(Denied, match="REPLICATION SLAVE"),
        ):
            dump.read(10)

    def test_checks_the_certificate_and_reads_through_tls(self, unique: str, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        pem = authority.issue("server")
        options: dict[str, str | int] = {"ssl-ca": str(authority.ca), "ssl-cert": str(pem), "ssl-key": str(pem)}
        context = ssl.create_default_context(cafile=str(authority.ca))
        with MySQL(options=options) as server, session(server, unique) as execute:
            execute("CREATE TABLE t (id INT PRIMARY KEY, payload LONGBLOB)")
            execute(f"ALTER USER {USER}@'%' REQUIRE SSL")
            with reading(server, unique, context=context) as reader:
                execute("INSERT INTO t VALUES (1, repeat('x', 3000000))")
                assert reader.rows() == [(1, b"x" * 3_000_000)]
                assert reader.stream.read(0.01) == []
            with pytest.raises(Denied, match="Access denied"):
                connect(server.host, server.port, USER, PASSWORD)
            with pytest.raises(Interrupted, match="certificate verify failed"):
                connect(server.host, server.port, USER, PASSWORD, ssl.create_default_context())


def _trusting() -> ssl.SSLContext:
    """A context that takes the certificate that a server made for itself."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize(
    ("before", "statement", "says"),
    [
        (
            "SET binlog_row_image = MINIMAL",
            "UPDATE t SET n = 2",
            r"a row of .*\.t was logged without all its columns.*FULL",
        ),
        (
            "SET binlog_row_image = NOBLOB",
            "UPDATE t SET n = 2",
            r"a row of .*\.t was logged without all its columns.*FULL",
        ),
        ("SET binlog_format = STATEMENT", "UPDATE t SET n = 2", r"\.t is logged as a statement.*ROW"),
        ("DO 0", "XA START 'a'; UPDATE t SET n = 2; XA END 'a'; XA PREPARE 'a'; XA COMMIT 'a'", r"XA.*\.t"),
        ("DO 0", "ALTER TABLE t TRUNCATE PARTITION p", r"removes or replaces rows of .*\.t.*Start after"),
        (
            "SET binlog_row_value_options = PARTIAL_JSON",
            "UPDATE t SET j = JSON_SET(j, '$.a', 2)",
            r"JSON of .*\.t is logged in parts.*binlog_row_value_options",
        ),
    ],
)
def test_what_cannot_be_read_exactly_is_refused_with_its_place(
    mysql: Any, unique: str, before: str, statement: str, says: str
) -> None:
    """I8."""
    with session(mysql, unique) as execute:
        execute(
            "CREATE TABLE t (id INT PRIMARY KEY, n INT, j JSON, b BLOB)"
            " PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))"
        )
        execute("""INSERT INTO t VALUES (1, 1, JSON_OBJECT('a', 1, 'b', REPEAT('x', 40)), 'b')""")
        with reading(mysql, unique) as reader:
            execute(before)
            for each in statement.split("; "):
                execute(each)
            with pytest.raises(NotCarried, match=says) as raised:
                reader.told()
        assert f"GTID {_uuid(mysql)}:" in str(raised.value)
        with reading(mysql, "another") as other:  # of another database it says nothing
            assert other.told() == []


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_settings_that_do_not_fit_are_told_with_what_to_set(mysql: Any, unique: str, image: str) -> None:
    """I8: ``binlog_row_metadata`` is so by default."""
    changed = {"binlog_row_metadata": "MINIMAL", "binlog_row_image": image, "binlog_row_value_options": "PARTIAL_JSON"}
    with session(mysql, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY)")
        for name, value in changed.items():
            mysql.execute(f"SET GLOBAL {name} = {value}")
        try:
            with connected(mysql) as server, pytest.raises(Denied) as told:
                server.verify()
            with reading(mysql, unique) as reader:
                execute("INSERT INTO t VALUES (1)")
                with pytest.raises(NotCarried, match=r"\.t .*binlog_row_metadata = 'FULL'"):
                    reader.told()
        finally:
            for name, value in {**dict.fromkeys(changed, "'FULL'"), "binlog_row_value_options": "''"}.items():
                mysql.execute(f"SET GLOBAL {name} = {value}")
    for name in changed:
        assert f"SET GLOBAL {name} = " in str(told.value)


def _uuid(server: Any) -> str:
    return str(server.execute("SELECT @@server_uuid")[0][0])
