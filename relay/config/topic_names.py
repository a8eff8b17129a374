"""The topics that a name given by a user means."""

import difflib
from collections.abc import Mapping, Sequence

from relay.config.cache import CacheConfig
from relay.config.config import Config
from relay.errors import ConfigError


def resolve_topics(config: Config, names: Sequence[str]) -> list[str]:
    """Return the topics for ``names``, which may be topics, tables, or kinds of internal topics such as ``gaps``.

    Without names, return all topics of changes. Raises ``ConfigError`` for another name.
    """
    return _resolve(config, names, config.own_topics)


def topics_of_changes(config: Config, names: Sequence[str]) -> list[str]:
    """Return the topics for ``names``, which may be tables or their topics; without names, all of them.

    If the config has a source that does not name its tables, any name of a table is taken. Raises ``ConfigError``.
    """
    if isinstance(names, str):
        names = [names]  # and not a topic for each of its characters
    if not config.names_tables:
        if not names:
            raise ConfigError("name the tables to read: a source of the config reads tables that it does not name")
        known = {config.topic(table) for table in config.tables}
        names = [name if name in known else config.topic(name) for name in names]
        return list(dict.fromkeys(names))
    return _resolve(config, names, {})


def topics_of_cache(config: Config, cache: CacheConfig) -> list[str]:
    """Return the topics whose records invalidate the cache: the topics of its tables, of gaps, and of statements."""
    own = config.own_topics
    # One stream, whose checkpoint covers gaps and statements too: a restart misses none (I6, I9).
    return [*map(config.topic, cache.keys), *(own[kind] for kind in ("gaps", "ddl") if kind in own)]


def _resolve(config: Config, names: Sequence[str], own: Mapping[str, str]) -> list[str]:
    tables = {table: config.topic(table) for table in config.tables}
    if not names:
        return list(dict.fromkeys(tables.values()))
    known = {name: name for name in (*tables.values(), *own.values())}
    meanings = {**own, **tables, **known}
    for name in names:
        if name not in meanings:
            nearest = difflib.get_close_matches(name, meanings, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"its topics are {', '.join(known)}"
            raise ConfigError(f"{name!r} is not a topic of this relay; {hint}")
    return list(dict.fromkeys(meanings[name] for name in names))
