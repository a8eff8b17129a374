"""The partitions and settings of the topics of tables, by Kafka's names, as `topic_settings` of the config says."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from relay.config.errors import did_you_mean, refuse
from relay.config.model import texts
from relay.config.topic_routes import EMPTY, matching
from relay.config.yaml_file import Location

if TYPE_CHECKING:
    from relay.config.per_table import PerTableConfig

PARTITIONS = "partitions"
REPLICAS = "replication.factor"
_POLICY, _IN_SYNC = "cleanup.policy", "min.insync.replicas"


class _Values(NamedTuple):
    """The values of a setting: the words for them, their pattern as text, and the JSON schema of others, if any."""

    words: str
    pattern: str
    others: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.others, texts(self.pattern)]} if self.others else texts(self.pattern)


def _one_of(*values: str) -> _Values:
    return _Values(" or ".join(values), "|".join(values))


_WHOLE = _Values("a whole number", r"-?\d{1,19}", {"type": "integer"})
_COUNT = _Values(
    "a whole number from 1 to 10000", r"[1-9]\d{0,3}|10000", {"type": "integer", "minimum": 1, "maximum": 10_000}
)
_SHARE = _Values("a number from 0 to 1", r"0(?:\.\d+)?|1(?:\.0+)?", {"type": "number", "minimum": 0, "maximum": 1})
_FLAG = _Values("true or false", "true|false", {"type": "boolean"})
_SAFE = _Values("false, because Kafka could lose changes that it has confirmed", "false", {"const": False})  # I1
_WHOLE_NUMBERS = """
    retention.ms retention.bytes max.message.bytes segment.bytes segment.ms segment.index.bytes segment.jitter.ms
    delete.retention.ms min.compaction.lag.ms max.compaction.lag.ms file.delete.delay.ms flush.messages flush.ms
    index.interval.bytes local.retention.bytes local.retention.ms message.timestamp.after.max.ms
    message.timestamp.before.max.ms compression.gzip.level compression.lz4.level compression.zstd.level
"""
_FLAGS = ("preallocate", "remote.storage.enable", "remote.log.copy.disable", "remote.log.delete.on.disable")
_SETTINGS: dict[str, _Values] = {
    **dict.fromkeys((PARTITIONS, REPLICAS, _IN_SYNC), _COUNT),
    **dict.fromkeys(_WHOLE_NUMBERS.split(), _WHOLE),
    "min.cleanable.dirty.ratio": _SHARE,
    **dict.fromkeys(_FLAGS, _FLAG),
    "unclean.leader.election.enable": _SAFE,
    _POLICY: _one_of("delete", "compact", "compact,delete", "delete,compact"),
    "compression.type": _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
}
"""The values of each setting that Kafka has for topics."""

_OF_VENDORS = r"(?:confluent|redpanda)\..+"


def _checked(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    refuse(_problems(value))
    return value


def _problems(by_table: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    if not by_table:
        yield (), EMPTY
    for key, settings in by_table.items():
        if not isinstance(settings, dict) or not settings:
            yield (key,), "must be a mapping of settings to values, such as {partitions: 12, retention.ms: 86400000}"
            continue
        for name, value in settings.items():
            if not isinstance(value, (str, int, float)):
                yield (key, name), "must be text, a number, true or false"
            elif name in _SETTINGS:
                if not re.fullmatch(_SETTINGS[name].pattern, text_of(value)):
                    yield (key, name), f"must be {_SETTINGS[name].words}"
            elif not re.fullmatch(_OF_VENDORS, name):
                yield (key, name), f"is not a setting of topics; {did_you_mean(name, _SETTINGS, 'known settings: ')}"


_OF_TABLE: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "properties": {name: values.schema for name, values in _SETTINGS.items()},
    "patternProperties": {f"^{_OF_VENDORS}$": {"type": ["string", "number", "boolean"]}},
    "additionalProperties": False,
}
TopicSettings = Annotated[
    dict[str, dict[str, str | int | float | bool]],
    BeforeValidator(_checked),
    WithJsonSchema({"type": "object", "minProperties": 1, "additionalProperties": _OF_TABLE}),
]
"""Settings by table: by its name, by a pattern with `*`, or `default`."""


def text_of(value: str | float) -> str:
    """Return a value as Kafka writes it."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return format(Decimal(str(value)), "f")  # 0.00001, not 1e-05
    return str(value)


def chosen(by_table: Mapping[str, Mapping[str, Any]], table: str) -> dict[str, tuple[Location, str]]:
    """Return the settings of a table's topic, each from the first key that has it, with its place in the config."""
    found: dict[str, tuple[Location, str]] = {}
    for key in matching(by_table, table):
        for name, value in by_table[key].items():
            found.setdefault(name, (("topic_settings", key, name), text_of(value)))
    return found


def uncompactable(source: PerTableConfig, *, shared: bool) -> str:
    """Return why a topic of a source cannot be compacted; empty if it can. ``shared``: whether other tables have it."""
    if shared:  # I1
        return "several tables share the topic, and Kafka would delete records of one for equal keys of another"
    if source.is_debezium:
        return "Kafka would refuse the record of a TRUNCATE, which has no key in Debezium's envelope"
    # I1: compaction by hash key would drop changes of other items with the same hash key.
    return "" if source.key_mode == "item" else "Kafka would delete all but the last record of each key"


def contradictions(
    by_table: Mapping[str, Mapping[str, Any]], sources: Mapping[str, PerTableConfig], shared: Collection[str]
) -> Iterator[tuple[Location, str]]:
    """Yield problems with tables' settings. ``sources``: sources by table. ``shared``: tables that share a topic."""
    for table, source in sources.items():
        settings = chosen(by_table, table)
        place, policy = settings.get(_POLICY, ((), ""))
        if "compact" in policy and (why := uncompactable(source, shared=table in shared)):
            remedy = "" if source.is_debezium or table in shared else ", unless the source has `key: item`"
            yield place, f"must be delete for table {table!r}{remedy}: {why}"
        place, in_sync = settings.get(_IN_SYNC, ((), "1"))
        replicas = settings.get(REPLICAS, ((), in_sync))[1]
        if int(replicas) < int(in_sync):  # I1: so many replicas must confirm a write
            yield place, f"is more than the `{REPLICAS}` of {replicas} for table {table!r}: nothing could be written"
