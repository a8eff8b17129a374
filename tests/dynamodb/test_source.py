"""The DynamoDB source against a scripted endpoint: listing, reading, resuming, and errors."""

from __future__ import annotations

import orjson
import pytest

from relay.change import Snapshot, Uncarriable
from relay.config import DynamoDBConfig
from relay.dynamodb.source import DynamoDBSource
from relay.errors import RelayError
from relay.lineage import Shard
from relay.source import Segment
from tests.dynamodb.endpoint import LABEL, TABLE, Refused, ScriptedStream, full
from tests.dynamodb.opened_source import reader
from tests.reads import read_page


def test_a_listing_spans_pages_and_keeps_parents(source: DynamoDBSource, stream: ScriptedStream) -> None:
    stream.shard("a")
    stream.split("a", "b", "c", "d")
    stream.shard("e", "gone")
    assert {s.id: s.parents for s in source.shards()} == {
        full("a"): (),
        full("b"): (full("a"),),
        full("c"): (full("a"),),
        full("d"): (full("a"),),
        full("e"): (full("gone"),),
    }
    assert stream.calls.count("DescribeStream") - 1 == 3


def test_a_call_that_is_refused_for_good_raises_an_error_with_the_stream(
    source: DynamoDBSource, stream: ScriptedStream
) -> None:
    stream.shard("s")

    def refuse(operation: str) -> None:
        raise Refused("ValidationException")

    stream.before = refuse
    with pytest.raises(RelayError, match=LABEL):
        read_page(reader(source))


@pytest.mark.parametrize("columns", [None, {"id": "string", "version": "int", "text": "string"}])
def test_a_snapshot_row_that_is_not_valid_text_is_passed_on_unchanged(
    stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch, columns: dict[str, str] | None
) -> None:
    """I8: the encoder decides."""
    stream.shard("s")
    stream.put("s", "k", 1)
    stream.items["k"]["text"] = {"S": "@@"}
    scan = stream._Scan
    answer = lambda request: orjson.Fragment(orjson.dumps(scan(request)).replace(b"@@", b"\\ud83d"))  # noqa: E731
    monkeypatch.setattr(stream, "_Scan", answer)
    config = DynamoDBConfig(
        name="orders", type="dynamodb", table=TABLE, region="us-east-1", endpoint_url=stream.url, columns=columns
    )
    source = DynamoDBSource(config)
    source.connect()
    (change,) = read_page(source.snapshots.open(Segment(Shard("segment"), Snapshot("one", 0), 0, 1))).changes
    source.close()
    assert isinstance(change.new, Uncarriable)
    assert change.new.item["text"] == {"S": "\ud83d"}
