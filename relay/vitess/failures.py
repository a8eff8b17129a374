"""How a stream over a shard can end, told apart by gRPC status and the server's text.

Statuses and texts are those of vtgate's `shouldRetry`, `getJournalEvent` and `keyspaceHasBeenResharded`
(go/vt/vtgate/vstream_manager.go, v0.23). What vtgate has retried by itself comes here once it gave up.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from relay.vitess.http2 import CallEnded


class Ending(Enum):
    """What to do about it."""

    TRANSIENT = auto()  # try again where it stood
    FINAL = auto()  # it will be refused again
    DENIED = auto()  # wrong credentials or no rights
    PURGED = auto()  # the binlogs after the position may be gone
    MISMATCH = auto()  # the tablet has not executed the position
    PARTICIPANTS = auto()  # a reshard's other shards are not in the stream
    UNKNOWN_SHARD = auto()  # the topology has no such shard (any more)
    NO_TABLE = auto()  # the tablet does not know a table that is asked for (yet, or any more)


_PARTICIPANTS = "not all journaling participants are in the stream"
_UNKNOWN_SHARD = re.compile(r"shard provided in VGTID, (\S+), not found in the (\S+) keyspace")
_MEMBER = re.compile(r'keyspace:\s*"([^"]*)"\s+shard:\s*"([^"]*)"')
_PURGED = re.compile(r"errno (?:1236|1789)\b|purged required binary logs|has purged binary logs")
# A tablet hears of a new table only when it reads its schema again.
_NO_TABLE = "is not present in the database"
# Texts of a tablet that has refused for good; they come as UNKNOWN.
_FOR_GOOD = (
    "unknown table",
    "cannot determine table columns",
    "partial row image encountered",
    "unsupported type",
    "Query was empty",
)
_SCHEMA = ("unknown table", "cannot determine table columns")
_BY_STATUS = {
    "INVALID_ARGUMENT": Ending.FINAL,
    "UNIMPLEMENTED": Ending.FINAL,
    "UNAUTHENTICATED": Ending.DENIED,
    "PERMISSION_DENIED": Ending.DENIED,
}


def ending(ended: CallEnded) -> Ending:
    """Say what the end of a stream means."""
    if _PARTICIPANTS in ended.text:
        return Ending.PARTICIPANTS
    if _UNKNOWN_SHARD.search(ended.text):
        return Ending.UNKNOWN_SHARD
    if _NO_TABLE in ended.text:
        return Ending.NO_TABLE
    if "GTIDSet Mismatch" in ended.text:
        return Ending.MISMATCH
    if _PURGED.search(ended.text):
        return Ending.PURGED
    if ended.code not in ("UNAVAILABLE", "CANCELLED") and any(text in ended.text for text in _FOR_GOOD):
        return Ending.FINAL
    return _BY_STATUS.get(ended.code, Ending.TRANSIENT)


def participants(ended: CallEnded, keyspace: str) -> set[str]:
    """Return the shards of ``keyspace`` that the journal names which ended a stream with PARTICIPANTS."""
    journal = ended.text.partition(_PARTICIPANTS)[2].partition("stream:")[0]
    return {shard for space, shard in _MEMBER.findall(journal) if space == keyspace}


def unknown_shard(ended: CallEnded) -> str:
    """Return the shard that the topology does not have."""
    found = _UNKNOWN_SHARD.search(ended.text)
    return found[1] if found else ""


def hint(ended: CallEnded) -> str:
    """Return what to do about an end that is final, as far as it is known."""
    if any(text in ended.text for text in _SCHEMA):
        return (
            "\nThe table was altered or dropped since, and Vitess does not know what it was like: let its tablets "
            "track that (--track-schema-versions), or reset the source to a later position"
        )
    if "partial row image" in ended.text:
        return "\nSet binlog_row_image to FULL on the database, and reset the source to a later position"
    return ""
