"""One stream record becomes one change.

Records are DynamoDB's JSON as it stands (see ``raw_records``), so the images and keys keep every byte (I8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from relay.avro.rows import TableSchema
from relay.change import Change, Images, Operation, event_id
from relay.dynamodb.values import image_json, key_value
from relay.errors import RelayError
from relay.token import EventToken

_OPERATIONS = {"INSERT": Operation.INSERT, "MODIFY": Operation.UPDATE, "REMOVE": Operation.DELETE}
_VIEWS = {
    "NEW_AND_OLD_IMAGES": Images.NEW_AND_OLD,
    "NEW_IMAGE": Images.NEW,
    "OLD_IMAGE": Images.OLD,
    "KEYS_ONLY": Images.KEYS_ONLY,
}
_TTL_SERVICE = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How the records of one shard of one table are turned into changes."""

    table: TableSchema
    shard: str  # globally qualified

    def change(self, record: Mapping[str, Any], floor: int) -> Change:
        """Return the change of a raw ``record``, its token's timestamp not below ``floor`` (seconds).

        ``RelayError``, with the record's place, if it cannot be carried exactly.
        """
        data = record["dynamodb"]
        sequence = data["SequenceNumber"]
        position = f"DynamoDB/{sequence}"
        try:
            created = int(data["ApproximateCreationDateTime"])
            keys = data["Keys"]
            key = {column.name: key_value(keys[column.name]) for column in self.table.key}
            old, new = data.get("OldImage"), data.get("NewImage")
            return Change(
                event_id=event_id(self.shard, position, self.table.table, _identity(key), 0),
                operation=_OPERATIONS[record["eventName"]],
                source=self.table.source,
                table=self.table.table,
                key=key,
                old=image_json(old) if old is not None else None,
                new=image_json(new) if new is not None else None,
                images=_VIEWS[data["StreamViewType"]],
                # Never back along a lineage, so that a child whose clock is behind cannot make newer look older.
                token=EventToken(max(created, floor), self.shard, position),
                committed_at=created * 1_000_000,
                attributes=_attributes(record),
            )
        except (KeyError, ValueError, TypeError) as error:
            # I8: what cannot be carried exactly is refused, with its place.
            raise RelayError(
                f"{self.shard}: the record at sequence number {sequence} cannot be carried: {error!r}"
            ) from error


def _identity(key: Mapping[str, str | bytes]) -> bytes:
    parts = [value if isinstance(value, bytes) else value.encode() for value in key.values()]
    return b"".join([len(part).to_bytes(4, "big") + part for part in parts])


def _attributes(record: Mapping[str, Any]) -> dict[str, str]:
    attributes = {"event_version": record["eventVersion"]} if record.get("eventVersion") else {}
    identity = record.get("userIdentity")
    if identity:
        # Sorted: the attribute does not depend on how the service happens to order it.
        attributes["user_identity"] = orjson.dumps(identity, option=orjson.OPT_SORT_KEYS).decode()
        if identity == _TTL_SERVICE and record["eventName"] == "REMOVE":
            attributes["ttl_delete"] = "true"
    return attributes
