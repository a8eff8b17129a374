"""How the stream of a shard can end, by the server's gRPC status and text.

They are from `shouldRetry`, `getJournalEvent` and `keyspaceHasBeenResharded` in vtgate's vstream_manager.go (Vitess
v0.23). vtgate retries some failures itself, and ends the stream once it gives up.
"""

import re
from enum import Enum, auto

from relay.vitess.http2 import CallEnded


class BrokenStream(Exception):
    """The events of a stream are invalid: reopen the stream at the last position."""


class Ending(Enum):
    TRANSIENT = auto()  # retry at the same position
    FINAL = auto()  # a retry would be refused too
    DENIED = auto()  # wrong credentials, or no permission
    PURGED = auto()  # the binlogs after the position may be purged
    MISMATCH = auto()  # the tablet has not executed the position
    PARTICIPANTS = auto()  # the other participants of a journal are not in the stream
    UNKNOWN_SHARD = auto()  # the topology does not have the shard, or no longer has it
    NO_TABLE = auto()  # the tablet does not know a table, or no longer knows it


_PARTICIPANTS = "not all journaling participants are in the stream"
_UNKNOWN_SHARD = re.compile(r"shard provided in VGTID, (\S+), not found in the (\S+) keyspace")
_MEMBER = re.compile(r'keyspace:\s*"([^"]*)"\s+shard:\s*"([^"]*)"')
_BY_TEXT = (
    (re.compile(_PARTICIPANTS), Ending.PARTICIPANTS),
    (_UNKNOWN_SHARD, Ending.UNKNOWN_SHARD),
    # A tablet learns of a new table only when it reloads its schema.
    (re.compile("is not present in the database"), Ending.NO_TABLE),
    (re.compile("GTIDSet Mismatch"), Ending.MISMATCH),
    (re.compile(r"errno (?:1236|1789)\b|purged required binary logs|has purged binary logs"), Ending.PURGED),
)
_SCHEMA = ("unknown table", "cannot determine table columns")
# Error texts of tablets that would refuse again; their status is UNKNOWN.
_REFUSALS = (*_SCHEMA, "partial row image encountered", "unsupported type", "Query was empty")
_BY_STATUS = {
    "INVALID_ARGUMENT": Ending.FINAL,
    "UNIMPLEMENTED": Ending.FINAL,
    "UNAUTHENTICATED": Ending.DENIED,
    "PERMISSION_DENIED": Ending.DENIED,
}


def ending(ended: CallEnded) -> Ending:
    for text, kind in _BY_TEXT:
        if text.search(ended.text):
            return kind
    if ended.code not in ("UNAVAILABLE", "CANCELLED") and any(text in ended.text for text in _REFUSALS):
        return Ending.FINAL
    return _BY_STATUS.get(ended.code, Ending.TRANSIENT)


def participants(ended: CallEnded, keyspace: str) -> set[str]:
    """Return the participants in ``keyspace`` of the journal that ended a stream with PARTICIPANTS."""
    journal = ended.text.partition(_PARTICIPANTS)[2].partition("stream:")[0]
    return {shard for space, shard in _MEMBER.findall(journal) if space == keyspace}


def unknown_shard(ended: CallEnded) -> str:
    """Return the shard that the topology does not have, for UNKNOWN_SHARD."""
    return found[1] if (found := _UNKNOWN_SHARD.search(ended.text)) else ""


def hint(ended: CallEnded) -> str:
    """Return advice about a final end; "" if there is none."""
    if any(text in ended.text for text in _SCHEMA):
        return (
            "\nThe table has since been altered or dropped, and Vitess does not know its earlier columns: reset the "
            "source to a later position, and run the tablets with --track-schema-versions from now on"
        )
    if "partial row image" in ended.text:
        return "\nSet binlog_row_image to FULL on the database, and reset the source to a later position"
    return ""
