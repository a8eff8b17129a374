"""``relay tail``: what stands on the topics, decoded, one record a line.

The line of ``--json`` is a contract: ``topic, partition, offset, key, value``, and ``error`` where the value
cannot be decoded. The other form is for people and may change freely.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from confluent_kafka import Message

from relay.avro.decode import Undecodable, UnknownFraming, UnknownSchema, WriterSchemas, decode
from relay.avro.registry import open_schemas
from relay.config import INTERNAL, Config
from relay.errors import ConfigError, Unavailable
from relay.kafka import topics as kafka_topics
from relay.kafka.committed import read_committed


def tail(
    config: Config,
    names: Sequence[str],
    write: Callable[[dict[str, Any]], None],
    *,
    flush: Callable[[], object],
    from_beginning: bool = False,
    exit_at_end: bool = False,
) -> None:
    """Hand every record of the topics ``names`` (default: all changes) to ``write``, until interrupted.

    ``exit_at_end``: return at the ends the topics had at the start. ``flush`` is called whenever no record
    waits. Raises ``ConfigError`` for an unknown topic, ``Unavailable`` for one that is not there.
    """
    topics = resolve(config, names)
    admin = kafka_topics.connect(config)
    there = kafka_topics.list_topics(admin, config)
    if missing := [topic for topic in topics if topic not in there]:
        raise Unavailable(
            f"there is no topic {missing[0]!r} at {config.kafka.bootstrap_servers} yet: `relay run` creates it"
        )
    changes = set(map(config.topic, config.tables))
    ends = kafka_topics.offset_bounds(
        admin, [(topic, number) for topic in topics for number in there[topic].partitions]
    )
    with contextlib.closing(open_schemas(config)) as schemas:
        for message in read_committed(config, ends, flush, from_beginning=from_beginning, exit_at_end=exit_at_end):
            write(line(message, schemas if message.topic() in changes else None))


def resolve(config: Config, names: Sequence[str]) -> list[str]:
    """Return the topics that ``names`` mean: topics, tables, or kinds of the relay's own topics."""
    tables = {table: config.topic(table) for table in config.tables}
    if not names:
        return list(dict.fromkeys(tables.values()))
    own: dict[str, str] = {kind: config.internal(kind) for kind in INTERNAL}
    known = {name: name for name in (*tables.values(), *own.values())}
    meanings = {**own, **tables, **known}
    for name in names:
        if name not in meanings:
            nearest = difflib.get_close_matches(name, meanings, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {', '.join(known)}"
            raise ConfigError(f"{name!r} is not a topic of this relay; {hint}")
    return list(dict.fromkeys(meanings[name] for name in names))


def line(message: Message, schemas: WriterSchemas | None) -> dict[str, Any]:
    """Return a record as plain JSON values. ``schemas`` decode a change; without them the value is JSON.

    The key is text where it is UTF-8 and base64 where it is not; the typed key is in the value. What cannot
    be decoded is shown in base64 with an ``error``.
    """
    key, value = message.key(), message.value()
    shown: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "key": _text(key) if isinstance(key, bytes) else key,
        "value": None,
    }
    if not isinstance(value, bytes):
        return shown
    try:
        shown["value"] = json.loads(value) if schemas is None else plain(_images(decode(schemas, value)))
    except (UnknownFraming, UnknownSchema, Undecodable) as error:
        shown |= {"value": _base64(value), "error": str(error)}
    except ValueError as error:
        shown |= {"value": _base64(value), "error": f"is not JSON: {error}"}
    return shown


def json_line(record: dict[str, Any]) -> str:
    """Return the line that ``--json`` prints."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """Return ``value`` in what JSON has: bytes as base64, times as ISO in UTC, decimals as text."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _base64(bytes(value))
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return f"{value:f}"  # I8: a JSON number would be rounded by whoever reads it
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _images(change: dict[str, Any]) -> dict[str, Any]:
    """Open the images of DynamoDB items, which are JSON inside a string."""
    opened = {name: json.loads(change[name]) for name in ("old", "new") if isinstance(change[name], str)}
    return {**change, **opened}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return _base64(value)
