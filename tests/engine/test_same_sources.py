"""Workers of one relay whose configs have different sources, on a real broker."""

from __future__ import annotations

from typing import Any

import pytest

from relay.engine import same_sources
from relay.observe.health import Stall
from relay.observe.observer import Observer
from tests.scripted_source import ScriptedSource, config_of, running
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def test_a_worker_that_lacks_a_source_of_another_says_so_until_that_one_stops(
    kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I10: nobody reads the shards of a source whose owner lacks it, and each worker was green."""
    monkeypatch.setattr(same_sources, "_RELAYED_FOR", 20.0)  # a source that has nothing to relay writes every ten
    one, two = ScriptedSource("one"), ScriptedSource("two", shards=8)
    observers = [Observer(unique, keeps_status=True, stalled_after=2.0) for _ in range(2)]

    def lacking(of: int) -> Stall | None:
        return next((stall for stall in observers[of].stalls() if "another worker relays" in stall.what), None)

    other = config_of(unique, kafka.bootstrap_servers, [one])
    with running(config_of(unique, kafka.bootstrap_servers, [one, two]), [one, two], observer=observers[0]):
        wait_until(lambda: not observers[0].not_ready_reasons() or None, 60)
        with running(other, [ScriptedSource("one")], observer=observers[1]):
            assert "relays two, which this worker's config lacks" in wait_until(lambda: lacking(1), 60).what
            assert lacking(0) is None
            assert "source two is not in the config of this worker, but has unread shards (8)" in caplog.text
            assert caplog.text.count("another worker relays source two") == 1
    with running(other, [ScriptedSource("one")], observer=observers[1]):
        wait_until(lambda: (not observers[1].not_ready_reasons() and lacking(1) is None) or None, 60)


def test_a_source_that_was_removed_from_all_configs_is_warned_of_and_not_red(
    kafka: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = ScriptedSource("one"), ScriptedSource("two")
    with running(config_of(unique, kafka.bootstrap_servers, [one, two]), [one, two]) as worker:
        wait_until(lambda: all(source.committed.checkpoints for source in worker._sources.values()) or None, 60)
    assert "is not in the config" not in caplog.text
    observer = Observer(unique, keeps_status=True, stalled_after=1.0)
    with running(config_of(unique, kafka.bootstrap_servers, [one]), [one], observer=observer):
        wait_until(lambda: not observer.not_ready_reasons() or None, 60)
        assert "source two is not in the config of this worker, but has unread shards (1)" in caplog.text
        assert not [stall for stall in observer.stalls() if "another worker relays" in stall.what]
