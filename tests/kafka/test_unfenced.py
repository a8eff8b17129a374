"""Records that are written outside the transactions of the workers."""

from __future__ import annotations

import pytest

from relay.errors import Unavailable
from relay.kafka import unfenced
from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from tests.kafka.configs import config
from tests.listening import NOBODY


class Stopped(Exception):
    """What a check raises."""


def test_while_no_broker_stores_a_record_the_caller_may_stop(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: a worker asks there whether it has to stop, and a signal would wait as long."""
    monkeypatch.setattr(unfenced, "_SLICE", 0.05)
    monkeypatch.setattr(unfenced, "_WRITE_SECONDS", 2.0)
    settings = KafkaSettings.from_config(config(unique, NOBODY))
    checks: list[int] = []

    def check() -> None:
        checks.append(len(checks))
        if len(checks) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        write_unfenced(settings, b"key", b"value", "relay status", check)
    with pytest.raises(Unavailable, match=r"cannot write to .*: run `relay status`"):
        write_unfenced(settings, b"key", b"value", "relay status")
