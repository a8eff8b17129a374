"""A worker that was paused for longer than its copy of the checkpoints can be trusted (I4)."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from relay.kafka.freshness import _ASK_EVERY
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.harness import Relay
from tests.faults.scripted_relay import published_versions
from tests.operating import Operated
from tests.waiting import wait_until

pytestmark = pytest.mark.services

TRUSTED = _ASK_EVERY + 5.0
"""Seconds instead of half an hour. A worker that is not paused asks for the ends more often."""
IMPATIENT = f"""
from relay.kafka import freshness
freshness._LONGEST_UNREAD = {TRUSTED}
from relay.cli import main
main()
"""


def test_a_worker_that_slept_through_a_reset_starts_again_from_the_checkpoints(
    tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    """I3, I4"""
    stream.shard("root")
    stream.put("root", "k", 1)
    operated = Operated(tmp_path, stream, kafka.bootstrap_servers, unique)
    relay = Relay([sys.executable, "-c", IMPATIENT, "run", str(operated.path)], tmp_path / "relay.log")
    try:
        relay.wait_for("reading shard")
        wait_until(lambda: operated.versions() == [1] or None, 60)
        relay.pause()
        wait_until(lambda: not operated.status()["members"] or None, 60)
        operated.command("reset", "CONFIG", "s", "--to", "trim_horizon")
        time.sleep(TRUSTED)
        relay.wake()
        relay.wait_for("starting again from the checkpoints")
        wait_until(lambda: operated.versions() == [1, 1] or None, 60)
        stream.put("root", "k", 2, old=1)
        wait_until(lambda: operated.versions() == [1, 1, 2] or None, 60)
        assert relay.terminate() == 0, relay.log()
    finally:
        relay.kill()
    assert published_versions(operated.path)[0] == {"k": [1, 1, 2]}
