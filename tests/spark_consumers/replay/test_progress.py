"""What a replay says about its progress where it is not on a terminal."""

from __future__ import annotations

import json

import pytest

from spark_consumers.replay.rebuild import ReplayProgress
from tests.clock import Clock


def test_the_time_left_is_by_the_last_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr("rich.console.monotonic", clock)
    with ReplayProgress("log", total=1000, done=0) as progress:
        for clock.now, done in ((1.0, 10), (1000.0, 20), (1010.0, 120), (1020.0, 220)):
            progress.show(done, {})
    left = [json.loads(line)["seconds_left"] for line in capsys.readouterr().err.splitlines()]
    assert left == [None, None, 88, 78]
