"""The records of requests for snapshots."""

from __future__ import annotations

from relay.records import CommittedRecords, SnapshotRequest


def test_requests_are_read_back_the_oldest_first() -> None:
    view = CommittedRecords()
    later = SnapshotRequest.new("shop", ["b", "a"], 2000.0)
    first = SnapshotRequest.new("shop", [], 1000.0).changed(stopped=True, now=3000.0)
    for request in (later, first, SnapshotRequest.new("other", [], 500.0)):
        view.apply(request.key, request.to_json())
    assert view.requests_of("shop") == [first, later]
    assert (first.subject, later.subject) == ("all tables", "table a, b")


def test_the_removal_of_a_request_leaves_another_one_of_the_same_tables() -> None:
    """I1: the removal may come after the next request was written."""
    view = CommittedRecords()
    done, following = (SnapshotRequest.new("shop", ["a"], 1000.0) for _ in range(2))
    view.apply(done.key, done.to_json())
    view.apply(following.key, following.to_json())
    view.apply(done.key, None)
    assert view.requests_of("shop") == [following]
