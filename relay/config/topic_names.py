"""The topics that names given by a user stand for."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from relay.config.config import Config
from relay.config.errors import nearest
from relay.config.sinks import CacheConfig
from relay.errors import ConfigError


def resolve_topics(config: Config, names: Sequence[str], *, internal: bool = True) -> list[str]:
    """Return the topics for ``names``: topics, tables, or kinds of the relay's own topics, if ``internal``: ``gaps``.

    Without names, return all topics of changes. Raises ``ConfigError`` for another name.
    """
    own = config.own_topics if internal else {}
    tables = {table: config.topic(table) for table in config.tables}
    if not names:
        return list(dict.fromkeys(tables.values()))
    known = {name: name for name in (*tables.values(), *own.values())}
    meanings = {**own, **tables, **known}
    for name in names:
        if name not in meanings:
            like = nearest(name, meanings)
            hint = f"did you mean `{like}`?" if like else f"its topics are {', '.join(known)}"
            raise ConfigError(f"{name!r} is not a topic of this relay; {hint}")
    return list(dict.fromkeys(meanings[name] for name in names))


def topics_of_changes(config: Config, names: Sequence[str]) -> list[str]:
    """Return the topics for ``names``, which may be tables or their topics; without names, all of them.

    If a source of the config names no tables, any table name is accepted. Raises ``ConfigError``.
    """
    if isinstance(names, str):
        names = [names]  # not a topic for each of its characters
    if config.names_tables:
        topics = resolve_topics(config, names, internal=False)
    elif names:
        known = _known(config)
        topics = list(dict.fromkeys(name if name in known else config.topic(name) for name in names))
    else:
        raise ConfigError("name the tables to read: a source in the config does not name its tables")
    require_own_envelope(config, topics)
    return topics


def only_tables(config: Config, names: Sequence[str]) -> Mapping[str, Collection[str]]:
    """Return, by shared topic, the only tables that ``names`` mean, unless they name the topic itself."""
    names = [names] if isinstance(names, str) else names
    known, found = _known(config), dict[str, set[str]]()
    for name in (each for each in names if each not in known):  # I1
        found.setdefault(config.topic(name), set()).add(name)
    return {topic: found[topic] for topic in (found.keys() & config.shared_topics).difference(names)}


def _known(config: Config) -> Set[str]:
    """Return the topics of changes that are known without asking a database. A name of one means it, not a table."""
    return {*map(config.topic, config.tables), *config.shared_topics}


def require_own_envelope(config: Config, topics: Iterable[str]) -> None:
    """Raise ``ConfigError`` for a topic whose records are not in the relay's own envelope."""
    owners = {config.topic(table): source for table, source in config.tables.items()}
    unnamed = next((each for each in config.sources if each.is_debezium and not each.names_tables), None)
    for topic in topics:
        if (source := owners.get(topic, unnamed)) is not None and source.is_debezium:
            raise ConfigError(
                f"topic {topic}: source {source.name} has `envelope: debezium`, whose records are only for sinks that "
                "read Debezium's format. Name other topics; or relay the table with `envelope: change`, in a relay "
                "with another `name` if you need both"
            )


def topics_of_cache(config: Config, cache: CacheConfig) -> list[str]:
    """Return the topics whose records invalidate the cache: the topics of its tables, of gaps, and of statements."""
    own = config.own_topics
    # One stream, whose checkpoint also covers gaps and statements: a restart misses none (I6, I9).
    return [*dict.fromkeys(map(config.topic, cache.keys)), *(own[kind] for kind in ("gaps", "ddl") if kind in own)]
