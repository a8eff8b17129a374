"""Workers of one relay whose configs have different sources, on a real broker."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from relay.engine import same_sources
from relay.observe.health import Stall
from relay.observe.observer import Observer
from tests.scripted_source import ScriptedSource, config_of, running
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def test_workers_with_different_sources_name_each_other_until_all_have_the_same(
    kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I10: nobody reads the shards of a source whose owner lacks it, and each worker was green."""
    monkeypatch.setattr(same_sources, "_ASK_EVERY", 0.5)
    one, two = ScriptedSource("one"), ScriptedSource("two", shards=8)
    observers = [Observer(unique, keeps_status=True, stalled_after=2.0) for _ in range(2)]

    def difference(of: int) -> Stall | None:
        return next((stall for stall in observers[of].stalls() if "other sources" in stall.what), None)

    with running(config_of(unique, kafka.bootstrap_servers, [one, two]), [one, two], observer=observers[0]):
        wait_until(lambda: not observers[0].not_ready_reasons() or None, 60)
        assert difference(0) is None
        with running(config_of(unique, kafka.bootstrap_servers, [one]), [ScriptedSource("one")], observer=observers[1]):
            stalls = [wait_until(partial(difference, of), 60) for of in range(2)]
            assert "such as two, which it lacks" not in stalls[0].what
            assert "such as two, which it lacks" in stalls[1].what
            assert all(f"{unique}-relay-" in stall.what and "+" not in stall.what for stall in stalls)
            assert "source two is not in the config of this worker, but has unread shards (8)" in caplog.text
            wait_until(lambda: caplog.text.count("Nobody reads a shard whose owner lacks") >= 2 or None, 60)
        wait_until(lambda: difference(0) is None or None, 60)


def test_a_source_that_was_removed_from_all_configs_is_warned_of_and_not_red(
    kafka: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = ScriptedSource("one"), ScriptedSource("two")
    with running(config_of(unique, kafka.bootstrap_servers, [one, two]), [one, two]) as worker:
        wait_until(lambda: all(source.checkpoints for source in worker._sources) or None, 60)
    assert "is not in the config" not in caplog.text
    observer = Observer(unique, keeps_status=True, stalled_after=1.0)
    with running(config_of(unique, kafka.bootstrap_servers, [one]), [one], observer=observer) as worker:
        assert wait_until(lambda: worker._same_sources.lacking() or None, 60) == ("two",)
        wait_until(lambda: not observer.not_ready_reasons() or None, 60)
        assert "source two is not in the config of this worker, but has unread shards (1)" in caplog.text
        assert not [stall for stall in observer.stalls() if "other sources" in stall.what]
