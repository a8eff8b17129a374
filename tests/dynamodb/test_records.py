"""What is kept while records become changes."""

from __future__ import annotations

from relay.dynamodb.records import _Versions


def test_many_event_versions_do_not_fill_the_memory() -> None:
    """I11"""
    versions = _Versions()
    for number in range(10_000):
        assert versions[f"1.{number}"] == {"event_version": f"1.{number}"}
    assert len(versions) <= 100
