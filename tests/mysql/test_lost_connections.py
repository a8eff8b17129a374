"""A database whose connections something in between ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import Relay
from tests.mysql.relayed import Relayed
from tests.waiting import wait_until

pytestmark = pytest.mark.services

DUMPS = "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"


def arrived(relayed: Relayed, count: int) -> Callable[[], bool | None]:
    return lambda: len(relayed.changes("t")) >= count or None


def test_a_connection_that_is_ended_every_moment_is_named_once_and_loses_nothing(
    kafka: Any, own: Any, unique: str, tmp_path: Path
) -> None:
    """I1, I10: each change arrives, so nothing else would tell."""
    own.execute(f"CREATE DATABASE {unique}")
    own.execute(f"CREATE TABLE {unique}.t (id INT PRIMARY KEY)")
    relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps({"-": [own.address]}))
    relayed.run()
    relay = Relay([sys.executable, "-m", "relay.cli", "run", str(relayed.path)], tmp_path / "log")
    try:
        for number in range(15):
            own.execute(f"INSERT {unique}.t VALUES ({number})")
            wait_until(arrived(relayed, number + 1))
            for (connection,) in own.execute(DUMPS):
                own.execute(f"KILL {connection}")
        relay.wait_for("its connection is lost every few seconds")
    finally:
        relay.kill()
    assert relay.log().count("its connection is lost every few seconds") == 1
    assert sorted(change["key"]["id"] for change in relayed.changes("t")) == list(range(15))
