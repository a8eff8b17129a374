"""The records of statements on ``<name>.ddl``, in JSON. ``schemas/README.md`` describes them."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from relay.change import AlteredTable, SchemaChange, StatementText, TableColumns
from relay.errors import RelayError
from relay.kafka.limits import Headers, record_size, too_small

log = logging.getLogger(__name__)


def statement_record(
    change: SchemaChange, resume_timestamp: int, relayed_at: int, topic: str, largest: float
) -> tuple[bytes, bytes, Headers]:
    """Return value, key and headers of a statement's record, without its text, or columns, if it is too large.

    Raises ``RelayError`` if that is not enough.
    """
    # I2: all statements of a shard have the same key.
    key = change.token.shard.encode()
    headers: Headers = [("event_id", change.event_id.encode()), ("token", change.token.to_json_bytes())]
    said = "source %s: the record of statement %s is too large for %s, which takes %d bytes: without %s it has %d"
    for what, shortened in _FORMS:
        change = shortened(change)
        value = _value(change, resume_timestamp, relayed_at)
        size = record_size(value, key, headers)
        if what:
            log.warning(said, change.source, change.event_id, topic, int(largest), what, size)
        if size <= largest:
            return value, key, headers
    raise RelayError(
        f"source {change.source}: even without its text and the columns of its tables, the record of statement "
        f"{change.event_id} takes {size} bytes, but {too_small(topic, int(largest), size)}"
    )


def _without_columns(change: SchemaChange) -> SchemaChange:
    unknown: dict[str, Any] = {"before": None, "before_by": None, "after": None, "after_by": None}
    return replace(change, tables=tuple(replace(table, **unknown) for table in change.tables))


_FORMS: tuple[tuple[str, Callable[[SchemaChange], SchemaChange]], ...] = (
    ("", lambda change: change),
    ("its text", lambda change: replace(change, statement="", text=StatementText.OMITTED)),
    ("its text and the columns of its tables", _without_columns),
)


def _value(change: SchemaChange, resume_timestamp: int, relayed_at: int) -> bytes:
    return orjson.dumps(
        {
            "event_id": change.event_id,
            "kind": change.kind,
            "source": change.source,
            "database": change.database,
            "statement": None if change.text is StatementText.OMITTED else change.statement,
            "statement_text": change.text.value,
            "tables": [_table(table) for table in change.tables],
            "token": orjson.Fragment(change.token.to_json_bytes()),
            "transaction": change.transaction,
            "resume_timestamp": resume_timestamp,
            "committed_at": change.committed_at,
            "relayed_at": relayed_at,
        }
    )


def _table(table: AlteredTable) -> dict[str, Any]:
    return {
        "table": table.table,
        "renamed_to": table.renamed_to,
        "before": _columns(table.before),
        "before_known_by": table.before_by,
        "after": _columns(table.after),
        "after_known_by": table.after_by,
    }


def _columns(table: TableColumns | None) -> dict[str, Any] | None:
    if table is None:
        return None
    columns = [
        {"name": each.name, "type": each.type, **({"decimals": True} if each.has_decimals else {})}
        for each in table.columns
    ]
    found = {"columns": columns, "primary_key": list(table.primary)}
    return {**found, "protected": dict(table.protected)} if table.protected else found
