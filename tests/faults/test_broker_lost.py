"""A relay whose broker is gone: it stops when told to, and what it could not publish comes with the next start."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.services.kafka import KafkaBroker
from tests.command_line import run_until_caught_up
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.scripted_relay import SplittingTable, published_versions, start_relay, write_config

pytestmark = pytest.mark.services


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    with ScriptedStream(page=7) as scripted:
        yield scripted


def test_a_relay_that_has_lost_its_broker_still_stops_and_loses_nothing(
    tmp_path: Path, stream: ScriptedStream, unique: str
) -> None:
    """I1, I3"""
    broker = KafkaBroker(folder=tmp_path / "kafka")
    with broker:
        path = write_config(tmp_path, stream, broker.bootstrap_servers, unique)
        table = SplittingTable(stream, seed=1)
        table.write(30)
        run_until_caught_up(path)
        relay = start_relay(path)
        table.write(30)
        relay.wait_for("reading shard", timeout=90)
        broker.kill()
        table.write(30)
        time.sleep(3)
        assert relay.is_running, relay.log()
        # 143: the open transaction could not be ended. 0: there was none.
        assert relay.stop(signal.SIGTERM, timeout=60) in (0, 143), relay.log()
        broker.restart()
        run_until_caught_up(path)
        histories, ids = published_versions(path)
        assert histories == table.histories
        assert set(ids.values()) == {1}
