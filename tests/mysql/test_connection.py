"""Logging in at a server, its flavour, its settings and its GTIDs."""

from __future__ import annotations

import ssl
import tempfile
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from relay.errors import RelayError, Unavailable
from relay.gtid import parse
from relay.mysql import connection
from relay.mysql.binlog import files
from relay.mysql.binlog.dump import Dump
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.connection import connect
from relay.mysql.errors import Denied, Interrupted, NotCarried
from relay.mysql.roles import Role
from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.certificates import Authority
from tests.mysql.encoder import event
from tests.mysql.reading import connected, is_mysql, reading, session
from tests.mysql.scripted import OK, SETTINGS, Scripted, running
from tests.mysql.scripted_binlogs import HEAD, A, B, connected_to, layout


class TestAScriptedServer:
    def test_with_wrong_settings_is_refused_with_the_fix_of_each(self) -> None:
        wrong = SETTINGS | {
            "log_bin": "OFF",
            "binlog_format": "MIXED",
            "binlog_row_image": "MINIMAL",
            "binlog_row_metadata": "MINIMAL",
            "binlog_row_value_options": "PARTIAL_JSON",
            "gtid_mode": "OFF",
        }
        with connected_to(Scripted(settings=wrong)) as server, pytest.raises(Denied) as raised:
            server.verify()
        for each in ("log_bin", "binlog_format = 'ROW'", "row_image = 'FULL'", "row_metadata = 'FULL'", "gtid_mode"):
            assert each in str(raised.value)

    def test_that_goes_on_without_a_binlog_after_an_error_is_refused(self) -> None:
        """I1"""
        script = Scripted(settings=SETTINGS | {"binlog_error_action": "IGNORE_ERROR"})
        said = "to ABORT_SERVER in its configuration file or parameter group, and until a restart with `SET GLOBAL`"
        with connected_to(script) as server, pytest.raises(Denied, match=said):
            server.verify()

    def test_reads_only_the_statements_of_the_relay_in_a_mode_of_its_own(self) -> None:
        """I1: those of an application are read in the mode of the server."""
        script = Scripted()
        with connected_to(script) as server, closing(server.account.connect()):
            assert len([sql for sql in script.set if "sql_select_limit" in sql]) == 2
            assert len([sql for sql in script.set if "sql_mode = '', sql_quote_show_create = 1" in sql]) == 1

    @pytest.mark.parametrize("name", ["read_only", "super_read_only"])
    @pytest.mark.parametrize("value", ["0", "OFF", "off", "", 0, b"OFF"])
    def test_is_a_primary_if_its_setting_is_off(self, name: str, value: Any) -> None:
        with connected_to(Scripted()) as server:
            server.settings = {**server.settings, name: value}
            assert Role(False, server.read_only).is_primary

    @pytest.mark.parametrize("name", ["read_only", "super_read_only"])
    @pytest.mark.parametrize("value", ["1", "ON", "NO_LOCK", "NO_LOCK_NO_ADMIN"])
    def test_is_not_a_primary_however_it_is_read_only(self, name: str, value: str) -> None:
        """I1: MariaDB 12 has several, and nobody writes to a server that was fenced so."""
        with connected_to(Scripted(settings={**SETTINGS, name: value})) as server:
            assert Role(False, server.read_only).is_unknown

    def test_that_has_closed_its_binlog_is_refused(self) -> None:
        """I1: such a server has no status of it."""
        with connected_to(Scripted()) as server, pytest.raises(Denied, match="it has closed its binlog after an error"):
            server.binlog_status()

    def test_that_is_too_old_for_the_metadata_is_refused_with_its_version(self) -> None:
        old = {name: value for name, value in SETTINGS.items() if name != "binlog_row_metadata"} | {"version": "5.7.44"}
        with connected_to(Scripted(settings=old)) as server, pytest.raises(Denied, match=r"MySQL 8\.0\.1 .*5\.7\.44"):
            server.verify()

    def test_has_its_flavour_and_executed_set(self) -> None:
        script = Scripted(HEAD, executed=f"{A}:1-57,\n{B}:5")
        with running(script), closing(connection.connect("127.0.0.1", script.port, "relay", "secret")) as server:
            server.verify()
            assert (server.flavour, server.version, server.server_id, server.uuid) == ("MySQL56", "8.0.36", 5, A)
            assert server.executed() == parse(f"{A}:1-57,{B}:5")
            assert files.purged(server) == server.executed()
            (name,) = server.binlogs()
            assert files.look_into(server, name) == files.Binlog(parse(f"{A}:1-9"), 1_600_000_000)

    @pytest.mark.parametrize("tag", ["tag", "_a1"])
    def test_whose_gtids_have_tags_is_refused(self, tag: str) -> None:
        """I8: no position can contain them."""
        head = [*HEAD[:2], event(35, bytes([1, 1, 0, 0, 0, 0, 0, 1]) + uuid.UUID(A).bytes + bytes(30), 0)]
        with connected_to(Scripted(head, executed=f"{A}:1-57:{tag}:1-3,\n{B}:5")) as server:
            for ask in (server.verify, server.executed, lambda: files.purged(server)):
                with pytest.raises(NotCarried, match=rf"127.*tags \({tag}\)"):
                    ask()
            with pytest.raises(NotCarried, match=r"127.*binlog\.000001.*tags"):
                files.look_into(server, "binlog.000001")

    def test_that_does_not_answer_may_come_back(self) -> None:
        with running(Scripted()) as scripted:
            port = scripted.port
        with pytest.raises(Interrupted, match=str(port)):
            connection.connect("127.0.0.1", port, "relay", "secret")

    @pytest.mark.parametrize("plugin", [b"mysql_native_password", b"mysql_clear_password"])
    @pytest.mark.parametrize("challenge", [b"\xfemysql_clear_password\0", b"\xfedialog\0\4Password: "])
    def test_never_gets_the_password_in_clear_text_without_tls(self, plugin: bytes, challenge: bytes) -> None:
        """Whoever answers at its address could ask for it."""
        script = Scripted(plugin=plugin, challenges=[challenge])
        with running(script), pytest.raises(Denied, match=r"password in clear text.*set `tls`"):
            connection.connect("127.0.0.1", script.port, "relay", "a secret")
        assert b"a secret" not in b"".join(script.told)

    def test_gets_the_password_encrypted_with_its_key_for_a_full_authentication_without_tls(self) -> None:
        key = rsa.generate_private_key(65537, 2048)
        pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        full = [b"\xfecaching_sha2_password\0" + b"x" * 20 + b"\0", b"\1\4"]
        for last in (b"\1" + pem, b"\1no key", OK):
            script = Scripted(challenges=[*full, last])
            with running(script), pytest.raises(Denied if last is not OK else Unavailable):
                connection.connect("127.0.0.1", script.port, "relay", "a secret")
            _, _, wants_key, *more = script.told
            assert wants_key == b"\2"
            assert b"a secret" not in b"".join(script.told)
            assert [len(each) for each in more if each] == ([256] if pem in last else [])

    def test_that_offers_no_tls_is_refused_where_tls_is_required(self) -> None:
        script = Scripted()
        with running(script), pytest.raises(Unavailable, match=r"TLS|SSL"):
            connection.connect("127.0.0.1", script.port, "relay", "a secret", ssl.create_default_context())

    def test_refuses_a_position_of_the_other_flavour(self) -> None:
        with connected_to(Scripted(HEAD)) as server, pytest.raises(RelayError, match="MySQL56 server"):
            BinlogEvents(server, parse("0-1-5"), layout)


@pytest.mark.services
class TestARealServer:
    def test_has_its_flavour_settings_and_executed_set(self, server: Any, unique: str) -> None:
        server.execute(f"CREATE DATABASE {unique}")  # the executed set of a new server is empty, and has no flavour
        with connected(server) as connection:
            connection.verify()
            assert connection.flavour == ("MySQL56" if is_mysql(server) else "MariaDB")
            assert not connection.read_only
            assert connection.executed() == parse(server.gtid)
            assert connection.binlogs() == [name for name, *_ in server.execute("SHOW BINARY LOGS")]
            before = time.time()
            assert before - 1 <= connection.clock() <= time.time() + 1

    def test_refuses_a_wrong_password(self, server: Any) -> None:
        with pytest.raises(Denied, match="Access denied"):
            connect(server.host, server.port, USER, "wrong")

    def test_takes_a_password_in_any_script(self, server: Any, unique: str) -> None:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"create user {unique}@'%' identified by 'pässwort-пароль-€'")
            cursor.execute(f"grant replication slave, replication client on *.* to {unique}@'%'")
        with closing(connect("127.0.0.1", server.port, unique, "pässwort-пароль-€")) as found:
            assert found.execute("select 1") == ((1,),)

    def test_is_not_asked_with_a_password_that_is_not_text_and_that_nobody_is_shown(self) -> None:
        with pytest.raises(Denied, match="the password is not UTF-8") as raised:
            connect("127.0.0.1", 1, "relay", "secret\udcff")
        assert "secret" not in str(raised.value)

    def test_refuses_a_user_without_the_privilege_to_replicate(self, server: Any, unique: str) -> None:
        server.execute(f"CREATE USER {unique}@'%' IDENTIFIED BY 'secret'")
        with (
            closing(connect(server.host, server.port, unique, "secret")) as connection,
            closing(Dump.from_gtid(connection, parse("" if is_mysql(server) else "MariaDB/"))) as dump,
            pytest.raises(Denied, match="REPLICATION SLAVE"),
        ):
            dump.read(10)

    def test_is_read_through_tls_after_its_certificate_was_verified(self, kind: Any, unique: str) -> None:
        # Not below the folder of the tests: the account of a MariaDB server has no access to it.
        with tempfile.TemporaryDirectory() as folder:
            self._read_through_tls(kind, Path(folder), unique)

    def _read_through_tls(self, kind: Any, folder: Path, unique: str) -> None:
        authority = Authority(folder)
        folder.chmod(0o755)
        pem = authority.issue("server")
        for each in (pem, authority.ca):
            each.chmod(0o644)
        options: dict[str, str | int] = {"ssl-cert": str(pem), "ssl-key": str(pem)}
        options |= {"ssl-ca": str(authority.ca)} if kind.__name__ == "MySQL" else {"ssl": 1}
        context = ssl.create_default_context(cafile=str(authority.ca))
        with kind(options=options) as server, session(server, unique) as execute:
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


@pytest.mark.services
def test_caching_sha2_password_of_mysql_works_with_and_without_tls_and_with_a_cold_cache(mysql: Any) -> None:
    """It is the default for accounts of MySQL."""
    trusting = ssl.create_default_context()  # accepts the certificate that the server has made for itself
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    for context in (None, trusting):
        mysql.execute("FLUSH PRIVILEGES")  # which also empties the cache of passwords
        for _ in range(2):
            with connected(mysql, context) as server:
                server.verify()
                assert server.executed() == parse(mysql.gtid)


@pytest.mark.services
def test_a_connection_lasts_although_the_server_closes_those_that_are_quiet(own: Any) -> None:
    """I10: it would be lost between any two questions, and a slow reader's after each pause."""
    own.execute("SET GLOBAL wait_timeout = 1")
    own.execute("SET GLOBAL net_write_timeout = 1")
    with connected(own) as server:
        time.sleep(2.5)
        assert server.execute("SELECT @@wait_timeout, @@net_write_timeout") == ((28800, 3600),)


@pytest.mark.services
def test_present_rows_are_read_although_mariadb_shows_those_of_another_time(unique: str) -> None:
    """I1"""
    with MariaDB() as server, session(server, unique) as execute:
        execute("CREATE TABLE t (id INT PRIMARY KEY) WITH SYSTEM VERSIONING")
        execute("INSERT t VALUES (1)")
        execute("SET GLOBAL system_versioning_asof = '2001-01-01'")
        with connected(server) as found:
            assert found.execute(f"SELECT id FROM {unique}.t") == ((1,),)
