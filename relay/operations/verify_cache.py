"""``relay verify``: compares cached values with the rows behind them, as Meta's Polaris does."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from relay.cache import entry_key, generation_key, open_store
from relay.cache.entry import decode
from relay.cache.store import SampledStore, Store
from relay.config import CacheConfig, Config
from relay.config.template import Template
from relay.errors import ConfigError
from relay.operations.expected_values import ItemsTruth, LoadersTruth, ServedValue, truth
from relay.operations.suspicion import ROUNDS, Judgement, Suspicion, Terms

_LOOKS = 20  # least number of looks in one round
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks, which double each time
_SHOWN_BYTES = 300
_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class StaleEntry:
    """A value that the cache served for ``seconds`` although the rows give ``truth``. None if there is no item."""

    key: str
    value: bytes | None
    truth: bytes | None
    seconds: float
    shows_values: bool = True  # False if the values may come from protected columns

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "cached": self._shown(self.value),
            "truth": self._shown(self.truth),
            "seconds": round(self.seconds, 1),
        }

    def _shown(self, value: bytes | None) -> str | None:
        if value is None:
            return None
        if not self.shows_values:
            return f"not shown, because of `protect` ({len(value)} bytes)"
        text = value[:_SHOWN_BYTES].decode(errors="backslashreplace")
        return text if len(value) <= _SHOWN_BYTES else f"{text}... ({len(value)} bytes)"


@dataclass(slots=True)
class Verification:
    """The result. Each sampled key is ``consistent``, ``stale``, ``unknown`` or ``without_value``."""

    namespace: str
    within: float
    sampled: int = 0
    consistent: int = 0
    late: int = 0  # how many of the consistent ones differed at first
    slowest: float = 0.0  # the seconds until the last of them agreed
    without_value: int = 0  # invalidated, being filled, or past their time to live
    stale: list[StaleEntry] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)  # keys that match no template, so nothing invalidates them
    unknown: Counter[str] = field(default_factory=Counter)  # the number of keys for each reason

    @property
    def checked(self) -> int:
        return self.consistent + len(self.stale)

    def to_json(self) -> dict[str, Any]:
        return {
            "namespace": self.namespace,
            "sampled": self.sampled,
            "checked": self.checked,
            "consistent": self.consistent,
            "late": self.late,
            "slowest_seconds": round(self.slowest, 1),
            "stale": len(self.stale),
            "unknown": self.unknown.total(),
            "without_value": self.without_value,
            "within_seconds": self.within,
            "consistent_within": self.consistent / self.checked if self.checked else None,
            "stale_entries": [entry.to_json() for entry in self.stale],
            "unknown_reasons": dict(self.unknown),
            "unmatched": len(self.unmatched),
            "unmatched_keys": self.unmatched[:_EXAMPLES],
        }


def verify(
    config: Config,
    *,
    sample: int,
    within: float,
    loaders: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Compare up to ``sample`` values with their rows, which the consumer has ``within`` seconds to invalidate.

    ``loaders``: names as ``module:name``. ``say``: receives progress messages. Raises ``ConfigError`` and
    ``Unavailable``.
    """
    cache = config.cache
    if cache is None:
        raise ConfigError("the config has no `cache:` section: add one to verify the cache")
    with closing(truth(config, loaders)) as compared_with, closing(open_store(cache.url)) as store:
        shows_values = not any(source.protect for source in config.sources)
        result = Verification(cache.namespace, within)
        return _Verifier(store, cache, compared_with, say, shows_values, result).run(sample)


def served_values(store: Store, namespace: str, keys: Collection[str], now: float) -> dict[str, ServedValue]:
    """Return the values of ``keys`` that the cache serves at ``now``, in seconds since the epoch."""
    found, generation = store.read([entry_key(namespace, key) for key in keys], generation_key(namespace))
    served = {}
    for key, stored in zip(keys, found, strict=True):
        entry = decode(stored.meta) if stored else None
        if stored and entry and entry.serves(generation, now):
            served[key] = ServedValue(stored.value, entry.tokens)
    return served


@dataclass(slots=True)
class _Verifier:
    store: SampledStore
    cache: CacheConfig
    truth: LoadersTruth | ItemsTruth
    say: Callable[[str], None]
    shows_values: bool
    result: Verification
    suspects: dict[str, Suspicion] = field(default_factory=dict)

    def run(self, sample: int) -> Verification:
        result = self.result
        templates = [Template.parse(text) for texts in self.cache.keys.values() for text in texts]
        prefix = entry_key(result.namespace, "")
        keys = [name.removeprefix(prefix) for name in self.store.sample(prefix, sample)]
        result.sampled = len(keys)
        served = self._served(keys)
        result.without_value = len(keys) - len(served)
        result.unmatched = sorted(
            key for key in served if all(next(each.matches(key), None) is None for each in templates)
        )
        self._settle(served, served)
        if self.suspects:
            self.say(f"{len(self.suspects)} values differ from their rows: looking again for up to {result.within:g} s")
        pause = _FIRST_PAUSE
        while self.suspects:
            time.sleep(min(pause, result.within / _LOOKS))
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._settle(list(self.suspects), self._served(self.suspects))
        return result

    def _served(self, keys: Collection[str]) -> dict[str, ServedValue]:
        return served_values(self.store, self.result.namespace, keys, time.time())

    def _settle(self, keys: Iterable[str], values: Mapping[str, ServedValue]) -> None:
        """Count the keys whose state is certain, and keep the others as suspects. ``values``: the served values."""
        compared = self.truth.compare(values) if values else {}
        now, within, result = time.monotonic(), self.result.within, self.result
        for key in keys:
            is_first, served, found = key not in self.suspects, values.get(key), compared.get(key)
            suspicion = self.suspects.setdefault(key, Suspicion(now, now))
            # The consumer has `within` seconds, however far behind it is.
            settled = suspicion.of_value(served, found, Terms(now, now, within, ROUNDS * within))
            if settled is None:
                continue
            del self.suspects[key]
            if settled.judgement is Judgement.CONSISTENT:
                result.consistent += 1
                if not is_first:
                    result.late += 1
                    result.slowest = max(result.slowest, now - suspicion.first)
            elif settled.judgement is Judgement.UNKNOWN:
                result.unknown[settled.detail] += 1
            elif served is not None and found is not None:
                seconds = now - suspicion.first
                result.stale.append(StaleEntry(key, served.value, found.truth, seconds, self.shows_values))
