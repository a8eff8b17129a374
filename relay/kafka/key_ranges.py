"""Filters the changes of one range of keyspace ids, for readers of the topics."""

from collections.abc import Collection

from relay.config import Config
from relay.errors import ConfigError, RelayError
from relay.keyrange import KeyRange, shard_range


def key_range(config: Config, topics: Collection[str], text: str, *, asked_as: str) -> KeyRange:
    """Return the key range that a reader of ``topics`` asks for. Raises ``ConfigError``, which names ``asked_as``."""
    try:
        wanted = KeyRange.parse(text)
    except ValueError as error:
        raise ConfigError(f"{asked_as}: {error}") from None
    named = {source.name: {*map(config.topic, source.table_names)} for source in config.sources if source.names_tables}
    others = set(topics).difference(*named.values())  # the topics of sources that do not name their tables
    for source in config.sources:
        if named.get(source.name, others).intersection(topics) and source.type != "vitess":
            raise ConfigError(
                f"{asked_as}: source {source.name} is of type {source.type}, whose changes have no keyspace ids: name "
                "only tables of Vitess"
            )
    return wanted


def is_within(keyrange: KeyRange, keyspace_id: bytes | None, shard: str | None, table: str) -> bool:
    """Return whether a change is in this range, by its keyspace id or its shard. Raises ``RelayError`` if unknown."""
    if keyspace_id is not None or keyrange.complete:
        return keyrange.contains(keyspace_id or b"")
    of_shard = shard_range(shard.rpartition("/")[2]) if shard else KeyRange()
    if not keyrange.covers(of_shard) and keyrange.intersects(of_shard):  # I1
        unknown = "does not cover the whole keyspace (the shard of a change from a snapshot is unknown)"
        covers = f"covers only a part of its shard, {shard}" if shard else unknown
        raise RelayError(
            f"a change of table {table} has no keyspace id, because the relay cannot compute the primary vindex, and "
            f"key range {keyrange} {covers}: read the table without a key range"
        )
    return keyrange.covers(of_shard)
