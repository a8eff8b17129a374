"""A config that is read again is in force until it is read once more, whichever worker applied it."""

from __future__ import annotations

from typing import Any

import pytest

from relay.config import Config
from relay.engine.config_reload import ReloadedConfig
from relay.errors import ConfigError, RelayError, Unavailable
from tests.engine.maintained import Maintained
from tests.scripted_source import ScriptedSource, config_of
from tests.waiting import wait_until


class Refusing(ScriptedSource):
    def reload(self, entry: Any) -> None:
        self.entry = entry
        raise ConfigError("restart the relay")


def reload(source: ScriptedSource) -> tuple[Config, Config, ReloadedConfig]:
    """Return the config before, the one that was read, and what became of it."""
    before = config_of("test", "localhost:9092", [source])
    entry = before.sources[0].model_copy(update={"on_gap": "skip"})
    after = before.model_copy(update={"sources": [entry]})
    reloaded = ReloadedConfig(before, lambda: after)
    state = Maintained(source).state
    reloaded.request()

    def applied() -> bool | None:
        reloaded.serve([state])
        return source.entry is not None or None

    wait_until(applied)
    return before, after, reloaded


def test_the_next_worker_has_the_entry_that_the_one_before_it_has_applied() -> None:
    _, after, reloaded = reload(ScriptedSource("orders"))
    assert reloaded.config == after


def test_an_entry_that_is_refused_is_not_that_of_the_next_worker_either() -> None:
    before, _, reloaded = reload(Refusing("orders"))
    assert reloaded.config == before


def test_a_reload_that_no_worker_has_served_waits_for_the_next_one() -> None:
    source = ScriptedSource("orders")
    config = config_of("test", "localhost:9092", [source])
    reloaded = ReloadedConfig(config, lambda: config)
    reloaded.request()
    state = Maintained(source).state

    def applied() -> bool | None:
        reloaded.serve([state])
        return source.entry is not None or None

    wait_until(applied)


@pytest.mark.parametrize(("error", "said"), [(ConfigError, "is invalid"), (Unavailable, "cannot be checked now")])
def test_a_config_that_cannot_be_read_again_changes_nothing_and_the_log_says_why(
    error: type[RelayError], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Config:
        raise error("the reason")

    reloaded = ReloadedConfig(before := config_of("test", "localhost:9092", [ScriptedSource("orders")]), fail)
    reloaded.request()

    def logged() -> bool:
        reloaded.serve([])
        return f"the config {said}; keeping the current one: the reason" in caplog.text

    wait_until(lambda: logged() or None)
    assert reloaded.config is before
