"""The headers of binlog files."""

from __future__ import annotations

import struct
from contextlib import closing

import pytest

from relay.mysql.binlog.files import look_into
from relay.mysql.connection import connect
from relay.mysql.errors import NotCarried
from tests.mysql.encoder import event, format_description, rotate
from tests.mysql.scripted import SETTINGS, Scripted, running

GTID_LIST = event(163, struct.pack("<I", 1) + struct.pack("<IIQ", 0, 1, 100), 1_600_000_000)
ENCRYPTED = event(164, b"\x01" + struct.pack("<I", 1) + bytes(12), 1_600_000_000, flags=0x80)
MARIADB = {**SETTINGS, "version": "11.4.2-MariaDB", "gtid_domain_id": "0"}


@pytest.mark.parametrize("head", [[], [ENCRYPTED]])
def test_the_gtids_before_a_file_are_read_also_if_it_is_encrypted(head: list[bytes]) -> None:
    server = Scripted(events=[rotate("binlog.000007"), format_description(), *head, GTID_LIST], settings=dict(MARIADB))
    with running(server), closing(connect("127.0.0.1", server.port, "relay", "")) as connection:
        assert look_into(connection, "binlog.000007").before.position == "MariaDB/0-1-100"


def test_a_file_without_the_gtids_before_it_is_refused() -> None:
    """I8."""
    row = event(16, struct.pack("<Q", 7), 1_600_000_000)
    server = Scripted(events=[rotate("binlog.000007"), format_description(), row], settings=dict(MARIADB))
    with (
        running(server),
        closing(connect("127.0.0.1", server.port, "relay", "")) as connection,
        pytest.raises(NotCarried, match="does not list the GTIDs"),
    ):
        look_into(connection, "binlog.000007")
