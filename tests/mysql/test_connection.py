"""What a MySQL says of itself, played by a script: settings that do not fit, GTIDs, files."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest

from relay.errors import RelayError
from relay.gtid import parse
from relay.mysql import connection
from relay.mysql.binlog import files
from relay.mysql.binlog.stream import BinlogEvents
from relay.mysql.errors import Denied, Interrupted, NotCarried
from tests.mysql.encoder import event
from tests.mysql.scripted import SETTINGS, Scripted, running
from tests.mysql.test_mysql_stream import HEAD, A, B, layout, there


class TestAServer:
    def test_that_does_not_fit_is_told_each_setting_and_how_to_mend_it(self) -> None:
        wrong = SETTINGS | {
            "log_bin": "OFF",
            "binlog_format": "MIXED",
            "binlog_row_image": "MINIMAL",
            "binlog_row_metadata": "MINIMAL",
            "binlog_row_value_options": "PARTIAL_JSON",
            "gtid_mode": "OFF",
        }
        with there(Scripted(settings=wrong)) as server, pytest.raises(Denied) as raised:
            server.verify()
        for each in ("log_bin", "binlog_format = 'ROW'", "row_image = 'FULL'", "row_metadata = 'FULL'", "gtid_mode"):
            assert each in str(raised.value)

    def test_that_is_too_old_for_the_metadata_is_told_so(self) -> None:
        old = {name: value for name, value in SETTINGS.items() if name != "binlog_row_metadata"} | {"version": "5.7.44"}
        with there(Scripted(settings=old)) as server, pytest.raises(Denied, match=r"MySQL 8\.0\.1 .*5\.7\.44"):
            server.verify()

    def test_says_what_it_is_and_has_executed(self) -> None:
        script = Scripted(HEAD, executed=f"{A}:1-57,\n{B}:5")
        with running(script), closing(connection.connect("127.0.0.1", script.port, "relay", "secret")) as server:
            server.verify()
            assert (server.flavour, server.version, server.server_id, server.uuid) == ("MySQL56", "8.0.36", 5, A)
            assert server.executed() == parse(f"{A}:1-57,{B}:5")
            assert files.purged(server) == server.executed()
            (name,) = server.binlogs()
            assert files.look_into(server, name) == files.Binlog(name, parse(f"{A}:1-9"), 1_600_000_000)

    @pytest.mark.parametrize("tag", ["tag", "_a1"])
    def test_whose_gtids_have_tags_is_refused(self, tag: str) -> None:
        """I8: no position could stand for them."""
        head = [*HEAD[:2], event(35, bytes([1, 1, 0, 0, 0, 0, 0, 1]) + uuid.UUID(A).bytes + bytes(30), 0)]
        with there(Scripted(head, executed=f"{A}:1-57:{tag}:1-3,\n{B}:5")) as server:
            for ask in (server.verify, server.executed, lambda: files.purged(server)):
                with pytest.raises(NotCarried, match=rf"127.*tags \({tag}\)"):
                    ask()
            with pytest.raises(NotCarried, match=r"127.*binlog\.000001.*tags"):
                files.look_into(server, "binlog.000001")

    def test_that_is_not_there_may_come_back(self) -> None:
        with running(Scripted()) as scripted:
            port = scripted.port
        with pytest.raises(Interrupted, match=str(port)):
            connection.connect("127.0.0.1", port, "relay", "secret")

    def test_takes_no_position_of_the_other_flavour(self) -> None:
        with there(Scripted(HEAD)) as server, pytest.raises(RelayError, match="MySQL56 server"):
            BinlogEvents(server, parse("0-1-5"), layout)
