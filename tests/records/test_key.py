"""The keys of records, which say what a record is and who owns it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.records import RecordKind, StreamId, owner_key, parse_key, partitions_key
from relay.records.key import request_key

NAME = st.text(min_size=1)


@given(NAME, NAME, NAME)
def test_a_key_says_what_its_record_is_and_of_what_whatever_the_names(source: str, label: str, name: str) -> None:
    stream = StreamId(source, label)
    keys = {
        stream.shard_key(name): (RecordKind.SHARD, stream, name),
        stream.segment_key(name): (RecordKind.SEGMENT, stream, name),
        stream.gap_key(name): (RecordKind.GAP, stream, name),
        stream.plan_key: (RecordKind.PLAN, stream, ""),
        stream.listing_key: (RecordKind.LISTING, stream, ""),
        stream.snapshot_key: (RecordKind.SNAPSHOT, stream, ""),
        request_key(source, name): (RecordKind.REQUEST, StreamId(source, ""), name),
        owner_key(7): (RecordKind.OWNER, StreamId("", ""), "7"),
        partitions_key(source, name): (RecordKind.PARTITIONS, StreamId(source, ""), name),
    }
    assert len(keys) == len(RecordKind)
    assert {key: parse_key(key) for key in keys} == keys


@pytest.mark.parametrize(
    "key",
    [
        b"{}",
        b"[]",
        b'["v1"]',
        b'["v0","plan","a","b"]',
        b'["v1","other","a","b"]',
        b'["v1","plan","a"]',
        b'["v1","plan","a","b","c"]',
        b'["v1","shard","a","b"]',
        b'["v1","shard","a","b",1]',
        b'["v1",["plan"],"a","b"]',
        b"no json",
    ],
)
def test_a_foreign_key_is_refused(key: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any ValueError says it is not a key
        parse_key(key)
