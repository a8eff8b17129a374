from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from relay.cache import Cached, ConditionalWrite, MemoryStore, Outcome, StoredEntry, TokenCache
from relay.errors import Unavailable
from tests.cache.sources import Source


class Failing(MemoryStore):
    """A store that is unreachable from its n-th call on. ``made``: whether the failing calls take effect."""

    def __init__(self, calls: int, made: bool = False) -> None:
        super().__init__()
        self.calls = calls
        self.made = made

    def _call(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise Unavailable("Redis at redis://127.0.0.1:6379/0: refused")

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        self._call()
        return super().read(keys, generation_key)

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        conflicts = super().compare_and_set(writes) if self.made else {}
        self._call()
        return conflicts if self.made else super().compare_and_set(writes)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(("calls", "outcome"), [(0, Outcome.MISS), (1, Outcome.MISS), (2, Outcome.DROPPED)])
def test_an_unreachable_store_does_not_fail_its_reader(
    caplog: pytest.LogCaptureFixture, calls: int, outcome: Outcome, made: bool
) -> None:
    """During an outage of the cache reads are slow, not wrong."""
    cache = TokenCache(Failing(calls, made), "shop", sleep=lambda _: None)
    with caplog.at_level(logging.WARNING):
        assert cache.get_or_load("k", Source().load) == Cached(b"one", outcome)
        assert cache.get_or_load("k", Source().load) == Cached(b"one", Outcome.MISS)
    assert cache.unreachable >= 2
    assert len(caplog.messages) == 1


def test_an_unavailable_loader_is_not_mistaken_for_the_store() -> None:
    cache = TokenCache(MemoryStore(), "shop")

    def unavailable() -> None:
        raise Unavailable("the table")

    with pytest.raises(Unavailable, match="the table"):
        cache.get_or_load("k", Source(meanwhile=unavailable).load)
    assert cache.unreachable == 0
