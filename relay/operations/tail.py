"""``relay tail``: reads and decodes the records of the relay's topics. Their JSON form is a contract."""

import base64
import contextlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from confluent_kafka import Message

from relay.avro.decode import Undecodable, UnknownFraming, UnknownSchema, WriterSchemas, decode
from relay.avro.registry import open_schemas
from relay.config import Config
from relay.config.topic_names import only_tables, require_own_envelope, resolve_topics
from relay.errors import Unavailable
from relay.kafka import topics as kafka_topics
from relay.kafka.committed import read_committed
from relay.kafka.group_offsets import GroupOffsets
from relay.kafka.key_ranges import is_within, key_range
from relay.kafka.partition_offsets import Partition, offset_bounds
from relay.kafka.same_topics import SameTopics
from relay.keyrange import KeyRange

log = logging.getLogger(__name__)


def tail(
    config: Config,
    names: Sequence[str],
    write: Callable[[dict[str, Any]], None],
    *,
    flush: Callable[[], object],
    start: str = "latest",
    exit_at_end: bool = False,
    keyrange: str | None = None,
) -> None:
    """Pass every record of the topics ``names`` (default: all changes) to ``write``, until interrupted.

    ``start``: a start that `GroupOffsets.resolve` takes. ``exit_at_end``: return at the ends that the topics have when
    it begins. ``flush``: is called whenever no record is waiting. ``keyrange``: pass over changes of Vitess' rows that
    are not in it. Raises ``ConfigError`` for an unknown topic or start, ``Unavailable`` for a topic that does not exist
    yet.
    """
    topics = resolve_topics(config, names)
    require_own_envelope(config, [topic for topic in topics if topic not in config.own_topics.values()])
    wanted = None if keyrange is None else key_range(config, topics, keyrange, asked_as="--keyrange")
    admin = kafka_topics.connect(config)
    existing = kafka_topics.list_topics(admin, config)
    if missing := [topic for topic in topics if topic not in existing]:
        problem = f"does not exist at {config.kafka.bootstrap_servers} yet; `relay run` creates it"
        if names or len(missing) == len(topics):  # I12
            raise Unavailable(f"topic {missing[0]!r} {problem}")
        for each in missing:
            log.warning(
                "topic %r %s. The other topics are shown; to see this one, too, start again later", each, problem
            )
        topics = [topic for topic in topics if topic in existing]
    changes, only = set(map(config.topic, config.tables)), only_tables(config, names)
    bounds = offset_bounds(admin, [(topic, number) for topic in topics for number in existing[topic].partitions])
    starts = _starts(config, topics, start, bounds)
    ends = {where: (starts[where], end) for where, (_, end) in bounds.items()}
    with contextlib.closing(open_schemas(config)) as schemas:
        look = None if exit_at_end else SameTopics(admin, config, topics).read_added  # I1
        for message in read_committed(config, ends, flush, exit_at_end=exit_at_end, look=look):
            is_letter = message.topic() == config.internal("dead_letters")
            record = record_json(message, schemas if message.topic() in changes else None, is_letter=is_letter)
            value, tables = record["value"], only.get(record["topic"])
            if tables is not None and isinstance(value, dict) and value.get("table") not in tables:
                continue
            if wanted is None or message.topic() not in changes or _is_within(wanted, value):
                write(record)


def _is_within(keyrange: KeyRange, change: Any) -> bool:
    """Whether a change, in the JSON form of `record_json`, is in this range, or has no row."""
    if not isinstance(change, dict) or change["key"] is None:
        return True
    found, token = change["keyspace_id"], change["token"]
    return is_within(
        keyrange, None if found is None else base64.b64decode(found), token and token["shard"], change["table"]
    )


def _starts(
    config: Config, topics: Sequence[str], start: str, bounds: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, int]:
    if start in ("earliest", "latest"):
        return {where: low if start == "earliest" else end for where, (low, end) in bounds.items()}
    with contextlib.closing(GroupOffsets(config, "tail", topics)) as group:
        offsets = group.resolve(start)
    # Beyond the end, Kafka's client would start over from the beginning.
    return {
        (topic, number): min(max(low, offsets[topic][str(number)]), end)
        for (topic, number), (low, end) in bounds.items()
    }


def record_json(message: Message, schemas: WriterSchemas | None, *, is_letter: bool = False) -> dict[str, Any]:
    """Return a record as JSON values. ``schemas``: the schemas of changes; None for a topic whose values are JSON.

    What is not UTF-8 or cannot be decoded is base64, a value with an ``error``. ``is_letter``: the record is a dead
    letter, with its ``headers``, whose value may be one piece of a change.
    """
    key, value = message.key(), message.value()
    shown: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "key": _text(key) if isinstance(key, bytes) else key,
        "value": None,
    }
    if is_letter:
        headers: Any = message.headers() or ()
        shown["headers"] = {name: _text(each or b"") for name, each in headers}
    if not isinstance(value, bytes):
        return shown
    try:
        shown["value"] = json.loads(value) if schemas is None else decode_to_json(schemas, value)
    except (UnknownFraming, UnknownSchema, Undecodable) as error:
        shown |= {"value": _base64(value), "error": str(error)}
    except ValueError as error:
        shown |= {"value": _base64(value)} | ({} if is_letter else {"error": f"not valid JSON: {error}"})
    return shown


def json_values(value: Any) -> Any:
    """Return ``value`` in JSON types: bytes as base64, times as ISO in UTC, decimals as text."""
    if isinstance(value, dict):
        return {str(key): json_values(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(inner) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _base64(bytes(value))
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return f"{value:f}"  # I8: most JSON parsers would round a number
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decode_to_json(schemas: WriterSchemas, value: bytes) -> Any:
    """Decode a change to JSON values, with the images of DynamoDB items parsed. Raises as ``relay.avro.decode``."""
    change = decode(schemas, value)
    images = {name: json.loads(change[name]) for name in ("old", "new") if isinstance(change[name], str)}
    return json_values({**change, **images})


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return _base64(value)
