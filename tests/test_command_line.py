"""A relay that runs in the process of the tests leaves nothing behind."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import run_until_caught_up
from tests.dynamodb.endpoint import ScriptedStream
from tests.faults.scripted_relay import write_config
from tests.kafka.clients import kafka_clients
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def settings_of_the_process() -> tuple[object, ...]:
    return sys.getswitchinterval(), gc.get_threshold(), logging.getLogger("relay").level


@pytest.mark.parametrize("code", [0, 1])
def test_a_relay_in_this_process_leaves_no_client_and_no_setting(
    code: int, tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str
) -> None:
    stream.shard("root")
    stream.put("root", "k", 1)
    path = write_config(tmp_path, stream, kafka.bootstrap_servers, unique)
    settings, clients = settings_of_the_process(), kafka_clients()
    run_until_caught_up(path)
    if code:
        for version in (2, 3):
            stream.put("root", "k", version, old=version - 1)
        stream.trim("root", 2)
        run_until_caught_up(path, expected_code=code)
    # A client takes part of a second to end, in a thread of its own.
    wait_until(lambda: kafka_clients() <= clients)
    assert settings_of_the_process() == settings
