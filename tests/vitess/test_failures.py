"""What the end of a stream means, by its status and text."""

from __future__ import annotations

import pytest

from relay.vitess.failures import Ending, ending, hint, participants, unknown_shard
from relay.vitess.http2 import CallEnded


@pytest.mark.parametrize(
    ("code", "text", "meaning"),
    [
        ("FAILED_PRECONDITION", "tablet is not serving", Ending.TRANSIENT),
        ("UNAVAILABLE", "connection refused", Ending.TRANSIENT),
        ("INVALID_ARGUMENT", "vgtid must have at least one value", Ending.FINAL),
        ("INVALID_ARGUMENT", "GTIDSet Mismatch: requested source position:5, current target vrep", Ending.MISMATCH),
        ("UNKNOWN", "query was killed (errno 3024) (sqlstate HY000)", Ending.TRANSIENT),
        ("UNKNOWN", "log file (errno 1236) (sqlstate HY000)", Ending.PURGED),
        ("UNKNOWN", "purged (errno 1789) (sqlstate HY000)", Ending.PURGED),
        ("UNKNOWN", "stream (at source tablet) error: partial row image encountered: ensure", Ending.FINAL),
        ("UNKNOWN", "stream (at source tablet) error: unknown table t in schema", Ending.FINAL),
        ("UNKNOWN", "table t is not present in the database", Ending.NO_TABLE),
        ("INTERNAL", "not all journaling participants are in the stream: journal: [], stream: []", Ending.PARTICIPANTS),
        ("INTERNAL", "something else", Ending.TRANSIENT),
        ("FAILED_PRECONDITION", "shard provided in VGTID, 80-, not found in the ks keyspace", Ending.UNKNOWN_SHARD),
        ("UNAUTHENTICATED", "no", Ending.DENIED),
        ("PERMISSION_DENIED", "no", Ending.DENIED),
        ("UNIMPLEMENTED", "unknown service", Ending.FINAL),
        ("DEADLINE_EXCEEDED", "", Ending.TRANSIENT),
        ("OK", "vtgate ended the stream", Ending.TRANSIENT),
    ],
)
def test_each_status_and_text_has_one_meaning(code: str, text: str, meaning: Ending) -> None:
    assert ending(CallEnded(code, text)) is meaning


def test_the_participants_of_a_journal_are_parsed_from_the_error_without_the_shards_of_the_stream() -> None:
    text = (
        'error: not all journaling participants are in the stream: journal: [keyspace:"ks"  shard:"-80" '
        'keyspace:"ks" shard:"80-" keyspace:"other" shard:"0"], stream: [keyspace:"ks" shard:"x" gtid:"MariaDB/0-1-1"]'
    )
    assert participants(CallEnded("INTERNAL", text), "ks") == {"-80", "80-"}


def test_the_missing_shard_is_parsed_from_the_error() -> None:
    ended = CallEnded("FAILED_PRECONDITION", "shard provided in VGTID, -40, not found in the ks keyspace")
    assert unknown_shard(ended) == "-40"


def test_final_ends_come_with_a_hint_what_to_do() -> None:
    assert "--track-schema-versions" in hint(CallEnded("UNKNOWN", "cannot determine table columns for t"))
    assert "binlog_row_image" in hint(CallEnded("UNKNOWN", "partial row image encountered"))
    assert hint(CallEnded("UNKNOWN", "else")) == ""
