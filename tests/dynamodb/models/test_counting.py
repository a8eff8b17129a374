"""Writers of one item, killed at random: no update is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import uuid
from collections import Counter as Count
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay.dynamodb.models import Engine
from tests.dynamodb.models.counting import Tally, tally
from tests.waiting import wait_until

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[3]
GOAL = int(os.environ.get("RELAY_TEST_INCREMENTS", "800"))
"""Increments of all writers."""
KILLS = 4


class Writer:
    """A process that counts, and is started again when it was killed."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self.done: list[int] = []
        self.said: Count[str] = Count()
        self.starts = 0
        self._start()

    def _start(self) -> None:
        self.starts += 1
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._reader = threading.Thread(target=self._read, args=(self._process,))
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                word, _, number = line.partition(" ")
                self.said[word] += 1
                if word == "done" and number.endswith("\n"):
                    self.done.append(int(number))

    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def kill_and_start_again(self) -> None:
        self.kill()
        self._start()

    def ended(self) -> int:
        code = self._process.wait()
        self._reader.join()
        return code


def has_counted(engine: Engine, so_far: int) -> bool:
    return tally(engine).total >= so_far


def test_two_writers_that_are_killed_at_random_lose_no_update(table_client: Any) -> None:
    prefix = uuid.uuid4().hex[:8]
    engine = Engine(table_client, table_name=lambda table: f"{prefix}-{table}")
    engine.bind(Tally)
    engine.save(Tally(id="a", total=0, of={}), atomic=True)
    url = table_client.meta.endpoint_url
    command = [sys.executable, "-m", "tests.dynamodb.models.counting", url, prefix]
    writers = [Writer([*command, name, str(GOAL)]) for name in ("a", "b")]
    try:
        wait_until(lambda: all(writer.done for writer in writers), 60)
        for so_far in sorted(random.sample(range(GOAL * 9 // 10), KILLS)):
            wait_until(partial(has_counted, engine, so_far), 300)
            random.choice(writers).kill_and_start_again()
        assert [writer.ended() for writer in writers] == [0, 0]
    finally:
        for writer in writers:
            writer.kill()
    found = tally(engine)
    # Of each writer what it was told is done is there, and nothing is there twice or of nobody.
    assert found.total == GOAL == sum(found.of.values())
    for name, writer in zip("ab", writers, strict=True):
        assert len(set(writer.done)) == len(writer.done), "an update was lost, and done again"
        assert found.of[name] >= max(writer.done)
    assert sum(writer.starts for writer in writers) == 2 + KILLS
    assert sum(writer.said["refused"] for writer in writers) > 0, "the writers never met"
    print(f"{GOAL} increments, {[writer.starts for writer in writers]} starts, {[w.said for w in writers]}")
