"""What the values of a cache should be, by a fresh look at the rows behind them.

Only the application knows its encoding, so its loader makes them; or the DynamoDB item, for those of
``relay.cache.DynamoDBLoader``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any

import orjson

from relay.cache import LoadedValue, Tokens
from relay.cache.keys import row_keys
from relay.config import Config
from relay.dynamodb.values import canonical_item, image_json
from relay.engine.kinds import kind_of
from relay.errors import ConfigError, RelayError, Unavailable
from relay.source import CachedItems

_AT_ONCE = 100  # keys per call of a loader


@dataclass(frozen=True, slots=True)
class ServedValue:
    """A value that the cache serves now. ``value`` is None if the cache says that the item does not exist."""

    value: bytes | None
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Comparison:
    is_same: bool = False
    truth: bytes | None = None  # the value that the rows give, if it differs
    unknown: str = ""  # why it is unknown
    misplaced: bool = False  # whether the rows make another key of it, so that their changes do not invalidate this one


_SAME = Comparison(is_same=True)
_unknown = partial(Comparison, False, None)


def truth(config: Config, loaders: Sequence[str]) -> LoadersTruth | ItemsTruth:
    """Return what computes the expected values for the config's cache. ``loaders``: each as ``module:name``.

    Raises ``ConfigError`` if a loader cannot be imported, or if one is needed and none is given.
    """
    if loaders:
        return LoadersTruth(loaders)
    keys = config.cache.keys if config.cache else {}
    sources = {table: config.tables[table] for table in keys}
    items = [
        open_items(source, keys[table])
        for table, source in sources.items()
        if source.traits.can_read_items and (open_items := kind_of(source).items) is not None
    ]
    if not items:
        raise ConfigError(
            f"the values of {', '.join(keys)} cannot be compared with rows without the application's loader: name it "
            "with --loader module:name"
        )
    return ItemsTruth(items, [text for texts in keys.values() for text in texts])


class LoadersTruth:
    """Expected values from the application's loaders. For each key, the first loader that returns a value counts.

    A loader is for ``TokenCache.get_many``, or has ``load_many``; for an ``AsyncTokenCache`` it is a coroutine
    function. It may leave out keys, and has to read from primaries, because a replica may lag.
    """

    def __init__(self, loaders: Sequence[str]) -> None:
        self._loaders = {name: imported(name) for name in loaders}
        self._runner = asyncio.Runner()  # one event loop for all calls, as in an application

    def close(self) -> None:
        self._runner.close()

    def compare(self, served: Mapping[str, ServedValue]) -> dict[str, Comparison]:
        """Compare cached values with their rows, which are read now.

        Raises ``Unavailable`` if a loader raises, ``ConfigError`` if one returns anything but values.
        """
        found: dict[str, Comparison] = {}
        keys = list(served)
        for start in range(0, len(keys), _AT_ONCE):
            wanted = {key: served[key].tokens or None for key in keys[start : start + _AT_ONCE]}
            for name in self._loaders:
                if wanted:
                    loaded = self._load(name, wanted)
                    found |= {key: _compared(served[key], value) for key, value in loaded.items()}
                    wanted = {key: compare for key, compare in wanted.items() if key not in loaded}
            found |= dict.fromkeys(wanted, _unknown("no --loader returned a value for the key"))
        return found

    def _load(self, name: str, wanted: Mapping[str, Tokens | None]) -> dict[str, LoadedValue]:
        """Return the values for the keys that the loader knows. Raises ``Unavailable`` and ``ConfigError``."""
        try:
            loaded = self._loaders[name](wanted)
            if inspect.iscoroutine(loaded):
                loaded = self._runner.run(loaded)
            values = {key: loaded[key] for key in wanted if key in loaded}
        except RelayError:
            raise
        except Exception as error:
            raise Unavailable(
                f"the loader {name} failed for {len(wanted)} keys, the first of them {next(iter(wanted))!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
        for key, value in values.items():
            if not isinstance(value, LoadedValue):
                raise ConfigError(
                    f"the loader {name} returned {type(value).__name__} for {key!r}: it must return a "
                    "relay.cache.LoadedValue for each key, as for TokenCache.get_many"
                )
        return values


def _compared(served: ServedValue, loaded: LoadedValue) -> Comparison:
    if not loaded.fresher:
        return _unknown("the loader read an older state than the cached value's: it must read from the primary")
    return Comparison(loaded.value == served.value, loaded.value, misplaced=not loaded.canonical)


def imported(name: str) -> Callable[[Mapping[str, Tokens | None]], Any]:
    """Return the callable of the loader ``module:name`` that loads many keys. Raises ``ConfigError``."""
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise ConfigError(f"--loader {name}: must be module:name, such as shop.cache:orders")
    try:
        found: Any = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"--loader {name}: {error}") from error
    except Exception as error:
        # The import runs foreign code, which may raise anything.
        raise ConfigError(f"--loader {name}: cannot be imported: {error!r}") from error
    load_many = getattr(found, "load_many", found)
    if not callable(load_many):
        raise ConfigError(f"--loader {name}: it is neither a loader, with `load_many`, nor a function")
    return load_many  # type: ignore[no-any-return]


class ItemsTruth:
    """Expected values that are DynamoDB items, in DynamoDB's typed JSON. ``templates``: the cache's key templates."""

    def __init__(self, tables: Iterable[CachedItems], templates: Sequence[str]) -> None:
        self._tables, self._templates = list(tables), templates

    def close(self) -> None:
        for table in self._tables:
            table.close()

    def compare(self, served: Mapping[str, ServedValue]) -> dict[str, Comparison]:
        """Compare as `LoadersTruth` does. Raises ``Unavailable`` if a table cannot be read."""
        possible: dict[str, list[dict[str, Any] | None]] = {key: [] for key in served}
        for table in self._tables:
            table.connect()
            primary_keys = {key: table.primary_keys(key) for key in served}
            items = table.load([each for keys in primary_keys.values() for each in keys])
            for key, keys in primary_keys.items():
                by_identity = {table.identity(each): items.get(table.identity(each)) for each in keys}
                possible[key] += _chosen(table, served[key].value, by_identity)
        return {
            key: replace(_like(each.value, possible[key]), misplaced=self._is_misplaced(key, each.value))
            for key, each in served.items()
        }

    def _is_misplaced(self, key: str, value: bytes | None) -> bool:
        with suppress(ValueError, TypeError, AttributeError):
            keys = row_keys(self._templates, [canonical_item(orjson.loads(value or b""))])
            return bool(keys) and key not in keys
        return False


def _chosen(
    table: CachedItems, value: bytes | None, items: Mapping[str, dict[str, Any] | None]
) -> Iterator[dict[str, Any] | None]:
    """Yield the items that the value may come from: the item with the value's own key, or all for a missing value."""
    if value is None:
        yield from items.values()
        return
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        identity = table.identity(orjson.loads(value))
        if identity in items:
            yield items[identity]


def _like(value: bytes | None, items: list[dict[str, Any] | None]) -> Comparison:
    if value is None:
        found = [item for item in items if item is not None]
        if not items or len(found) not in (0, len(items)):
            return _unknown("the cache says that there is no item, but the key may name several items: use --loader")
        return Comparison(truth=image_json(found[0]).encode()) if found else _SAME
    if len(items) != 1:
        return _unknown("the value is not the typed JSON of the item that its key names: use --loader")
    if items[0] is None:
        return Comparison(truth=None)
    truth = image_json(items[0]).encode()
    try:
        is_same = canonical_item(orjson.loads(value)) == canonical_item(orjson.loads(truth))
    except (ValueError, TypeError, AttributeError):
        return _unknown("the value contains a part that is not DynamoDB's typed JSON: use --loader")
    return _SAME if is_same else Comparison(truth=truth)
